from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents import TrainingConfig, TrainingResult, load_controller, resume, train
from agents.algorithms import ALGORITHMS
from agents.checkpoint import load_checkpoint
from agents.results import Measurements
from agents.validation import Validation
from envs import EnvCore, Setting, make_core
from envs.instances import instance_seeds
from envs.tasks import TASKS
from experiments.contenders.environments import Environments
from experiments.contenders.trainings import Trainings
from fl_core.base.errors import InputError
from fl_core.privacy.curves import gdp_mu
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from tests.agents.conftest import SHORT, TINY


class _Interrupt:
    """Stops a training after an update, as Ctrl-C does."""

    def __init__(self, update: int):
        self.update = update

    def __call__(self, entry: dict[str, Any]) -> None:
        if entry["update"] == self.update:
            raise KeyboardInterrupt


def _record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "controller.json").read_text())
    return record


# ---------------------------------------------------------------- results


def test_history_and_cost(trained: TrainingResult) -> None:
    assert [entry["update"] for entry in trained.history] == [0, 1, 2, 3]
    assert [entry["decisions"] for entry in trained.history] == [0, 4, 8, 12]
    assert [entry["validation_accuracy"] is not None for entry in trained.history] == [True, False, True, True]
    scores = [entry["validation_accuracy"] for entry in trained.history if entry["validation_accuracy"] is not None]
    assert trained.best_score == max(scores)
    assert trained.initial_score == scores[0]
    rounds = 4
    assert trained.cost.training == 6 * rounds
    assert trained.cost.reference == 6 * rounds
    assert trained.cost.validation == 3 * 2 * rounds
    assert trained.cost.total == 72


def test_a_training_over_generated_instances_sees_their_contexts_and_resumes(tmp_path: Path) -> None:
    drawn = TINY | {"generator": "clients=8|10,update_scale=0.2..5", "context": "visible"}
    whole = train(drawn, SHORT, tmp_path / "whole")
    assert whole.controller.view["context"] == "visible"
    assert "differ in clients=8|10,update_scale=0.2..5" in whole.controller.trained_on
    assert whole.cost.total == 72, "as many rounds as with instances of one shape"
    with pytest.raises(KeyboardInterrupt):
        train(drawn, SHORT, tmp_path / "stopped", on_update=_Interrupt(1))
    assert _record(resume(tmp_path / "stopped").folder) == _record(whole.folder)
    whole.controller.check(make_core(1, **drawn))
    with pytest.raises(InputError, match="context_learning_rate"):
        whole.controller.check(make_core(1, **(drawn | {"context": "hidden"})))


def test_runs_that_end_early_count_as_whole_ones_of_what_is_released(trained: TrainingResult, tmp_path: Path) -> None:
    assert trained.controller.blueprint.training["released"] == vars(trained.cost)
    spent = 0.0
    plain = Federation.run_round

    def counted(self: Federation, *args: Any, **kwargs: Any) -> Any:
        nonlocal spent
        before = [book.budget.epsilon_spent() for book in self.charging.books]
        report = plain(self, *args, **kwargs)
        after = [book.budget.epsilon_spent() for book in self.charging.books]
        spent += sum(gdp_mu(one, 1e-5) ** 2 for one in after) - sum(gdp_mu(one, 1e-5) ** 2 for one in before if one)
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "run_round", counted)
        result = train({**TINY, "knobs": "budget_pace"}, dataclasses.replace(SHORT, log_std_init=2.0), tmp_path / "run")
    released = result.controller.blueprint.training["released"]
    assert result.cost.training < released["training"], "at this exploration some runs spend all at once"
    [counts] = Trainings((result.controller,)).releases(Environments())
    assert counts.rounds == sum(released.values())
    assert counts.rounds / counts.noise_multiplier**2 >= spent * (1 - 1e-6)


def test_best_controller_reaches_the_reported_score(trained: TrainingResult) -> None:
    setting = Setting.from_record(trained.controller.blueprint.settings)
    told: list[int] = []
    accuracies, rounds, diverged = Validation(setting, 2).score(trained.controller, told.append)
    assert np.mean(accuracies) == trained.best_score
    assert accuracies == trained.controller.blueprint.training["validation_accuracies"]
    assert diverged == 0
    assert sum(told) == rounds == 2 * 4


def test_every_federated_round_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost equals what the federations did, short of the one round that measured the executors."""
    ran = 0
    plain = Federation.run_round

    def counted(self: Federation, *args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        report = plain(self, *args, **kwargs)
        ran += int(report.ran.sum())
        return report

    monkeypatch.setattr(Federation, "run_round", counted)
    assert train(TINY, SHORT, tmp_path / "run").cost.total == ran
    ran = 0
    result = train({**TINY, "reward": "accuracy-gain"}, SHORT, tmp_path / "gain")
    assert result.cost.reference == 0
    assert result.cost.total == ran
    ran = 0
    small = {**TINY, "instance_count": 3}
    result = train(small, SHORT, tmp_path / "few")
    assert result.cost.reference == 3 * 4
    assert result.cost.total == ran
    ran = 0
    result = train(TINY, dataclasses.replace(SHORT, episodes_per_instance=2), tmp_path / "shared")
    assert result.cost.reference == 3 * 4
    assert result.cost.total == ran


def test_same_seed_same_controller(trained: TrainingResult, tmp_path: Path) -> None:
    again = train(TINY, SHORT, tmp_path / "again")
    assert _record(again.folder) == _record(trained.folder)
    other = train(TINY, dataclasses.replace(SHORT, seed=1), tmp_path / "other")
    assert _record(other.folder)["weights_sha256"] != _record(trained.folder)["weights_sha256"]


def test_events_have_readable_names(trained: TrainingResult) -> None:
    events = EventAccumulator(str(trained.folder.parent))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"validation/accuracy", "episodes/reward, mean of the update", "rollout/ep_rew_mean", "train/loss"} <= tags
    assert [event.step for event in events.Scalars("validation/accuracy")] == [0, 8, 12]
    assert [event.step for event in events.Scalars("train/approx_kl")] == [4, 8, 12]


def test_rows_that_end_early_do_not_stop_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose episode is over after one decision plays its instance again."""
    plain = EnvCore.step
    calls = 0

    def cut(self: EnvCore, actions: Any, rows: Any = None) -> Any:
        nonlocal calls
        rewards, ended = plain(self, actions, rows)
        if self.spec.reward == "advantage":
            calls += 1
            if calls % 2:
                ended = ended.copy()
                ended[0] = self.finished[0] = True
        return rewards, ended

    monkeypatch.setattr(EnvCore, "step", cut)
    result = train(TINY, SHORT, tmp_path / "run")
    assert result.cost.training == 6 * 4
    assert result.cost.reference == 6 * 4
    assert np.isfinite([entry["episode_reward"] for entry in result.history[1:]]).all()


def test_training_improves_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the reward is the action itself, a few updates find it."""
    plain = EnvCore.step

    def pay_for_the_action(self: EnvCore, actions: Any, rows: Any = None) -> Any:
        _, ended = plain(self, actions, rows)
        return np.asarray(actions, dtype=np.float64)[:, 0].clip(-1, 1), ended

    monkeypatch.setattr(EnvCore, "step", pay_for_the_action)
    config = TrainingConfig(
        environments=8, episodes=160, learning_rate=1e-2, target_kl=1.0, validation_instances=1, validation_every=20
    )
    result = train({**TINY, "rounds": 2, "reward": "final-accuracy"}, config, tmp_path / "run")
    rewards = [entry["episode_reward"] for entry in result.history[1:]]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3


# ---------------------------------------------------------------- interruption


def test_interrupted_and_resumed_equals_uninterrupted(trained: TrainingResult, tmp_path: Path) -> None:
    for update in (0, 1, 2):
        folder = tmp_path / f"stopped-{update}"
        with pytest.raises(KeyboardInterrupt):
            train(TINY, SHORT, folder, on_update=_Interrupt(update))
        assert not (folder / "controller").exists()
        result = resume(folder)
        assert _record(result.folder) == _record(trained.folder)
        assert result.history == trained.history
        mine, theirs = load_checkpoint(folder), load_checkpoint(trained.folder.parent)
        assert mine.progress == theirs.progress
        for name, value in theirs.learner.items():
            assert torch.equal(mine.learner[name], value), name


def test_interrupted_between_checkpoints_goes_back_to_the_last(trained: TrainingResult, tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, checkpoint_every=2)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(TINY, config, folder, on_update=_Interrupt(1))
    assert load_checkpoint(folder).progress.update == 0
    result = resume(folder)
    assert _record(result.folder)["weights_sha256"] == _record(trained.folder)["weights_sha256"]
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train/approx_kl")] == [4, 8, 12]


def test_a_resumed_training_logs_the_averages_of_one_that_did_not_stop(trained: TrainingResult, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(TINY, SHORT, folder, on_update=_Interrupt(1))
    resume(folder)
    for tag in ("rollout/ep_rew_mean", "rollout/ep_len_mean"):
        logged = []
        for place in (folder, trained.folder.parent):
            events = EventAccumulator(str(place))
            events.Reload()
            logged.append([(event.step, event.value) for event in events.Scalars(tag)])
        assert logged[0] == logged[1] != [], tag


def test_what_grows_with_every_update_is_appended_not_rewritten(trained: TrainingResult, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lines: list[bytes] = []

    def look(measured: Measurements) -> None:
        lines.append((folder / "updates.jsonl").read_bytes())
        assert len(lines[-1].splitlines()) == measured["update"] + 1

    train(TINY, SHORT, folder, on_update=look)
    assert all(after.startswith(before) for before, after in itertools.pairwise(lines))
    progress = json.loads((folder / "checkpoint.json").read_text())["progress"]
    assert {"history", "played"}.isdisjoint(progress)
    assert load_checkpoint(folder).progress.history == trained.history
    (folder / "updates.jsonl").write_bytes(lines[-1].replace(b"true", b"null").replace(b"0.", b"1.", 1))
    with pytest.raises(InputError, match="damaged or was exchanged"):
        resume(folder)


def test_processes_learn_as_rows_do_and_resume(trained: TrainingResult, tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, parallel="processes")
    whole = train(TINY, config, tmp_path / "whole")
    assert whole.parallel == "processes"
    assert whole.cost == trained.cost
    mine, theirs = whole.controller.policy.state_dict(), trained.controller.policy.state_dict()
    for name, value in mine.items():  # equal but for the order of sums in stacked training, which may flip a hit
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=0.02)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, config, tmp_path / "stopped", on_update=_Interrupt(2))
    assert _record(resume(tmp_path / "stopped").folder) == _record(whole.folder)


def _change_task(patch: pytest.MonkeyPatch, **federation: Any) -> None:
    usual = TASKS["digits"]
    patch.setitem(
        TASKS, "digits", dataclasses.replace(usual, federation=dataclasses.replace(usual.federation, **federation))
    )


def test_settings_left_to_their_defaults_are_kept_as_they_were(
    trained: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default that has changed since takes no part in a training that goes on."""
    with pytest.raises(KeyboardInterrupt):
        train(TINY, SHORT, tmp_path / "run", on_update=_Interrupt(1))
    _change_task(monkeypatch, learning_rate=0.01, weight_decay=0.5)
    result = resume(tmp_path / "run")
    assert _record(result.folder) == _record(trained.folder)
    assert result.controller.blueprint.settings["weight_decay"] == 0.0
    assert set(result.controller.blueprint.settings) == set(Setting.of().as_record())


@pytest.mark.parametrize(
    ("patched", "value", "sentence"),
    [
        (
            "agents.provenance.code_version",
            lambda: "0" * 12,
            r"with code \w+, but here it is 000000000000; start",
        ),
        (
            "envs.signals.SIGNAL_SETS",
            {"public": ("public", "raw")},
            r"with features\.\w+ not recorded, but here it is",
        ),
        (
            "envs.setting.ACCOUNTED_TELEMETRY_SHARE",
            0.2,
            r"telemetry_share 0\.1, but here it is 0\.2; start",
        ),
    ],
)
def test_a_training_made_under_other_settings_is_refused(
    patched: str, value: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = {"signals": "accounted"} if "TELEMETRY" in patched else {}
    with pytest.raises(KeyboardInterrupt):
        train(TINY | signals, SHORT, tmp_path / "run", on_update=_Interrupt(0))
    monkeypatch.setattr(patched, value)
    with pytest.raises(InputError, match=sentence):
        resume(tmp_path / "run")


def test_another_range_of_the_task_takes_no_part_in_a_training_that_goes_on(
    trained: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(TINY, SHORT, tmp_path / "run", on_update=_Interrupt(0))
    monkeypatch.setitem(TASKS, "digits", dataclasses.replace(TASKS["digits"], clip_range=(0.2, 8.0), clip_norm=2.0))
    assert _record(resume(tmp_path / "run").folder) == _record(trained.folder)


def test_resuming_a_finished_training_returns_its_controller(trained: TrainingResult, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained.folder.parent, folder)
    shutil.rmtree(folder / "controller")
    assert _record(resume(folder).folder) == _record(trained.folder)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        resume(tmp_path / "nowhere")
    with pytest.raises(InputError, match="to continue from"):
        resume(tmp_path)
    with pytest.raises(InputError, match="interrupted training has to be resumed"):
        load_controller(tmp_path)


def test_a_used_folder_is_refused(trained: TrainingResult) -> None:
    with pytest.raises(InputError, match="already holds a training"):
        train(TINY, SHORT, trained.folder.parent)


@pytest.mark.parametrize("name", ["checkpoint.json", "checkpoint-00003.safetensors"])
@pytest.mark.parametrize("damage", ["remove", "truncate", "flip"])
def test_a_damaged_checkpoint_is_refused(trained: TrainingResult, tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained.folder.parent, folder)
    path = folder / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[:-20])
    else:
        place = content.rindex(b"7") if name.endswith("json") else len(content) - 3
        content[place] ^= 1
        path.write_bytes(content)
    with pytest.raises(InputError):
        resume(folder)


def test_a_training_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="written"):
        train(TINY, SHORT, tmp_path / "file" / "run")


def test_bad_settings_are_refused_before_work_starts(tmp_path: Path) -> None:
    refused = ({"task": "digit"}, {"epsilon": -1.0}, {"nonsense": 1}, {"reward": "x"}, {"task": ["digits"]})
    for settings in (*refused, {"knobs": "none"}):
        with pytest.raises(InputError):
            train(settings, SHORT, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- validation


def test_validation_plays_the_frozen_instances(trained: TrainingResult) -> None:
    class Spy:
        """Records nothing but plays the default."""

        def predict(self, observation: Any, state: Any = None, start: Any = None, deterministic: bool = True) -> Any:
            return np.zeros((len(observation), 1)), None

    validation = Validation(Setting.of(**TINY).replace(executor="vectorized"), 3)
    assert validation.seeds == instance_seeds("validation", 3)
    found, *_ = validation.score(Spy(), lambda _: None)
    core = EnvCore(validation._core.setting, 1)
    accuracies = []
    for seed in validation.seeds:
        core.reset([0], [RunSettings(seed=seed)])
        while not core.finished.all():
            core.step(np.zeros((1, 1)))
        accuracies.append(core.final_accuracy(0))
    assert np.mean(found) == pytest.approx(np.mean(accuracies), abs=0.02)
    validation._rows = 2  # in batches that do not divide the set
    validation._core = EnvCore(validation._core.setting, 2)
    assert np.mean(validation.score(Spy(), lambda _: None)[0]) == pytest.approx(np.mean(found), abs=0.02)


# ---------------------------------------------------------------- divergence


@pytest.mark.parametrize("algo", ["td3", "ppo"])
def test_a_training_whose_weights_stop_being_finite_ends_in_a_sentence_and_keeps_what_was_good(
    tmp_path: Path, algo: str
) -> None:
    """Weights become NaN after the first update: the second meets them in its rollout or while it learns."""
    folder = tmp_path / "run"
    changes: dict[str, Any] = {"learning_starts": 1, "n_epochs": None} if algo == "td3" else {}
    config = dataclasses.replace(SHORT, algo=algo, validation_every=9, **changes)
    real = ALGORITHMS[algo].learner_class().train

    def poisoned(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        if self.num_timesteps > 4:
            for one in self.policy.parameters():
                torch.nn.init.constant_(one, math.nan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ALGORITHMS[algo].learner_class(), "train", poisoned)
        with pytest.raises(InputError, match=r"diverged in update 2: weights are no longer finite; .* of update 0"):
            train(TINY, config, folder)
    assert load_checkpoint(folder).progress.update == 1
    assert load_controller(folder).blueprint.training["updates"] == 1


def test_validation_counts_the_runs_whose_policy_fails() -> None:
    class Lost:
        def predict(self, observation: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            return np.array([[math.nan], [0.0]], dtype=np.float32)[: len(observation)], None

    validation = Validation(Setting.of(**TINY, instances="validation"), 2)
    _, rounds, diverged = validation.score(Lost(), lambda _: None)
    assert (rounds, diverged) == (4, 1)


def test_actions_outside_the_range_are_counted_before_the_learner_clips_them(tmp_path: Path) -> None:
    """With the standard deviation of 1 that stable-baselines3 starts with, about 32 % of a normal variable."""
    config = dataclasses.replace(SHORT, episodes=64, environments=64, log_std_init=0.0)
    history = train(TINY | {"reward": "final-accuracy"}, config, tmp_path / "run").history
    assert history[0]["actions_outside"] is None
    assert history[1]["actions_outside"] == pytest.approx(0.32, abs=0.12)
