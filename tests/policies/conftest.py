"""Views without an environment behind them, so that formulas are tested in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from envs.knobs import Knob, known_knobs, make_knobs
from envs.signals import last_action, make_features
from envs.tasks import find_task
from policies import ControllerSpec, View

LAYERS = {"fc1": 2080, "fc2": 330}
METHODS = {"layer_weights": "fedglp-adp", "personal_limit": "fedglp-adp", "client_budget_strength": "adp-pfl"}
"""A method that has the knob, where the usual one has not."""

ViewMaker = Callable[..., View]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_view(rounds: int = 40, decision_rounds: int = 1, knobs: str = "clip_norm", signals: str = "public") -> View:
    task = find_task("digits")
    made = make_knobs(task, knobs, tuple(known_knobs().values()), [*LAYERS])
    features = make_features(signals, made, classes=10, telemetry=("clip-bit", "layer-norms"), layers=[*LAYERS])
    return View(made, features, rounds, decision_rounds, LAYERS, lambda epsilon: 24 / epsilon)


def env_settings(spec: ControllerSpec) -> dict[str, str]:
    """Choose the settings of an environment for a controller."""
    method = next((method for knob, method in METHODS.items() if knob in spec.knobs), "dp-fedavg")
    telemetry = spec.controller.needed_telemetry or "clip-bit"
    return {"knobs": spec.knobs, "signals": spec.signals, "method": method, "telemetry": telemetry}


def observe(
    view: View, round_index: int | NDArray[np.int64], clip_norm: float = 1.0, unclipped: float = 0.5
) -> NDArray[np.float32]:
    """The observation at a round, as the environment scales it; `[n, features]` for an array of rounds."""
    rounds = np.atleast_1d(round_index)
    columns = {
        "round_fraction": 2 * rounds / view.rounds - 1,
        **{last_action(knob.name): float(knob.encode(clip_norm)) for knob in view.knobs[:1]},
        "unclipped_share_noised": 2 * unclipped - 1,
    }
    rows = np.zeros((len(rounds), len(view.features)), dtype=np.float32)
    for column, feature in enumerate(view.features):
        rows[:, column] = columns.get(feature.name, 0.0)
    return rows if np.ndim(round_index) else rows[0]


def clip_of(action: NDArray[np.float32], knob: Knob) -> float:
    """Clip norm of an action coordinate, written out from the range 0.1 to 8 of `digits` on a log scale."""
    assert (knob.low, knob.high, knob.scale) == (0.1, 8.0, "log")
    return math.exp(math.log(0.1) + (float(action[0]) + 1) / 2 * math.log(80))


@pytest.fixture(scope="session")
def public() -> View:
    return make_view()


@pytest.fixture(scope="session")
def both_knobs() -> View:
    return make_view(knobs="clip_norm,server_learning_rate")


@pytest.fixture(scope="session")
def accounted() -> View:
    return make_view(signals="accounted")
