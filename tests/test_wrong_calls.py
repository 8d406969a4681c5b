"""Wrong calls of the public names are refused in one sentence, whatever stands in the place of an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import TrainingConfig, from_sb3, import_policy, load_controller, resume, train
from envs import DPilotEnv, DPilotVectorEnv, EnvCore, EnvSpec, Setting, Task, instance_seeds, make_core
from experiments import Comparison, read_record
from fl_core import (
    Federation,
    FederationConfig,
    InputError,
    Ledger,
    Release,
    RoundPlan,
    RunSettings,
    build_model,
    edit,
    epsilon,
    epsilon_after_steps,
    find_method,
    load_dataset,
    noise_multiplier_for,
    without,
)
from fl_core.privacy.releases import BudgetExhausted
from policies import FixedClip, make_controller, parse_controller

SETTINGS: dict[str, Any] = {"clients": 6, "rounds": 2, "executor": "vectorized", "reward": "final-accuracy"}
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, float("nan"), float("inf"), 1e308, 10**400, "", "nosuch", ",,,", "\x00", [], [None], {}),
    *(object(), b"x", np.zeros((2, 3)), np.array(["a"]), (1, "a"), int, lambda: None, Path("nowhere")),
)
FED = Federation(FederationConfig(clients=6, rounds=6, local_steps=1, executor="vectorized"), 2)
FED.start([0, 1], [RunSettings(seed=1), RunSettings(seed=2)])
CORE = make_core(2, **SETTINGS)
SINGLE, ROWS = DPilotEnv(**SETTINGS), DPilotVectorEnv(2, **SETTINGS)


def ledger() -> Ledger:
    return Ledger(8.0, 1e-5, 1.0, 4)


def spent() -> Ledger:
    made = ledger()
    made.charge(0, [Release("update", made.uniform_noise_multiplier)])
    return made


def begun() -> EnvCore:
    CORE.reset([0, 1], [RunSettings(seed=1), RunSettings(seed=2)])
    return CORE


CALLS: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Federation": (Federation, {"config": FED.config, "runs": 1}),
    "Federation.start": (FED.start, {"rows": [0], "settings": [RunSettings(seed=1)]}),
    "Federation.run_round": (FED.run_round, {"plan": RoundPlan.constant(2), "evaluate": False}),
    "Federation.evaluate": (FED.evaluate, {"mode": "holdout"}),
    "RoundPlan.constant": (RoundPlan.constant, {"runs": 2, "clip_norm": 1.0, "server_learning_rate": 1.0}),
    "RoundPlan.from_values": (
        RoundPlan.from_values,
        {"runs": 2, "values": {"clip_norm": np.ones(2)}, "clip_norm": 1.0},
    ),
    "RoundPlan.check": (lambda **k: RoundPlan.constant(2).check(**k), {"runs": 2, "knobs": (), "layers": 1}),
    "RoundPlan": (lambda settings: RoundPlan(np.ones(2), np.ones(2), None, settings).check(2), {"settings": {}}),
    "Ledger": (Ledger, {"epsilon": 8.0, "delta": 1e-5, "sampling_rate": 0.5, "rounds": 4, "claim": False}),
    "Ledger.can_afford": (lambda **k: ledger().can_afford(**k), {"releases": [Release("update", 3.0)]}),
    "Ledger.charge": (lambda **k: ledger().charge(**k), {"round_index": 0, "releases": [Release("update", 30.0)]}),
    "Ledger.epsilon_by": (lambda **k: spent().epsilon_by(**k), {"accountant": "pld"}),
    "Ledger.epsilon_of_noise": (lambda **k: spent().epsilon_of_noise(**k), {"delta": 1e-5}),
    "Ledger.epsilon_of_uploads": (lambda **k: spent().epsilon_of_uploads(**k), {"cohorts": [3.0]}),
    "Ledger.renewed": (lambda **k: ledger().renewed(**k), {"epsilon": 2.0}),
    "Release": (lambda **k: ledger().charge(0, [Release(**k)]), {"name": "update", "noise_multiplier": 30.0}),
    "epsilon": (epsilon, {"segments": spent().segments(), "delta": 1e-5, "accountant": "pld"}),
    "epsilon_after_steps": (epsilon_after_steps, {"multipliers": [3.0], "sampling_rate": 0.5, "delta": 1e-5}),
    "noise_multiplier_for": (noise_multiplier_for, {"epsilon": 3.0, "delta": 1e-5, "sampling_rate": 0.5, "steps": 4}),
    "build_model": (build_model, {"name": "mlp", "shape": (1, 8, 8), "classes": 10}),
    "edit": (edit, {"recipe": find_method("dp-fedavg"), "changes": ["sparsification=random"]}),
    "without": (without, {"recipe": find_method("fedglp-adp"), "names": ["layers"]}),
    "load_dataset": (load_dataset, {"name": "digits", "root": None, "device": "cpu", "population": "all"}),
    "EnvCore": (EnvCore, {"setting": Setting.of(**SETTINGS), "runs": 1}),
    "EnvCore.reset": (CORE.reset, {"rows": [0], "settings": [RunSettings(seed=1)]}),
    "EnvCore.step": (lambda **k: begun().step(**k), {"actions": np.zeros((2, 1)), "rows": [0, 1]}),
    "EnvCore.references": (CORE.references, {"seeds": [1]}),
    "DPilotEnv.reset": (SINGLE.reset, {"seed": 0, "options": {"instance": 1}}),
    "DPilotEnv.step": (lambda **k: (SINGLE.reset(seed=0), SINGLE.step(**k)), {"action": np.zeros(1, np.float32)}),
    "DPilotVectorEnv.reset": (ROWS.reset, {"seed": 0, "options": None}),
    "DPilotVectorEnv": (DPilotVectorEnv, {"num_envs": 1, **SETTINGS}),
    "Setting": (Setting, {"task": Setting.of(**SETTINGS).task, "spec": EnvSpec()}),
    "Setting.holding": (lambda **k: Setting.of(**SETTINGS).holding(**k), {"clip_norms": [1.0]}),
    "Task": (
        Task,
        {"name": "x", "summary": "s", "federation": FederationConfig(), "clip_range": (0.1, 1.0), "clip_norm": 0.5},
    ),
    "instance_seeds": (instance_seeds, {"name": "test", "size": 2, "first": 0}),
    "Knob.check": (SINGLE.knobs[0].check, {"value": 1.0}),
    "FixedClip.for_env": (FixedClip.for_env, {"anchor": 1.0, "env": SINGLE}),
    "make_controller": (make_controller, {"spec": "fixed:1", "env": SINGLE, "anchor": 1.0}),
    "parse_controller": (parse_controller, {"spec": "fixed:1"}),
    "load_controller": (load_controller, {"folder": "nowhere"}),
    "resume": (resume, {"folder": Path("nowhere")}),
    "train": (partial(train, {"nosuch": 1}), {"config": TrainingConfig(), "folder": Path("nowhere")}),
    "train's settings": (lambda asked: train(asked, TrainingConfig(), Path("nowhere")), {"asked": "x"}),
    "import_policy": (import_policy, {"path": "nowhere.zip", "setting": Setting.of(**SETTINGS), "options": None}),
    "from_sb3": (from_sb3, {"model": "x"}),
    "read_record": (read_record, {"folder": Path("nowhere")}),
    "Comparison.read": (Comparison.read, {"path": Path("nowhere")}),
}
NEVER_RIGHT = {"load_controller", "resume", "import_policy", "from_sb3", "read_record", "Comparison.read"}
NEVER_RIGHT |= {"train", "train's settings"}
"""Calls that have no right form here, since they want a file; each of their forms is refused."""


VALID = {"train's settings": {}}
"""Values among the wrong ones that a call takes, and that would begin long work."""


@pytest.mark.parametrize("name", CALLS)
def test_each_wrong_argument_gets_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, right = CALLS[name]
    if name not in NEVER_RIGHT:
        call(**right)
    told = []
    for argument in right:
        for value in WRONG:
            if isinstance(value, dict) and VALID.get(name) == value:
                continue
            try:
                call(**{**right, argument: value})
            except InputError as error:
                told.append(str(error))
            except BudgetExhausted as error:
                told.append(f"{error}.".replace("..", "."))
    assert told
    assert all("\n" not in sentence and sentence.endswith((".", "?")) for sentence in told)
    assert not list(tmp_path.iterdir())
