from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agents import resume, train
from agents.checkpoint import load_checkpoint
from agents.curricula import Instances, mean_by_instance
from envs import make_core
from envs.instances import instance_seeds
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from tests.agents.conftest import SHORT, TINY


def test_easy_first_plays_what_uniform_plays_from_the_best_to_the_worst_reference() -> None:
    easy = Instances(6, 3, rows=4, repeats=2, curriculum="easy-first", updates=5)
    uniform = Instances(6, 3, rows=4, repeats=2)
    expected = [seed for update in range(5) for seed in uniform.of_update(update)]
    assert easy.to_measure() == sorted(set(expected))
    assert uniform.to_measure() == []
    scores = {str(seed): (seed * 7 % 5) / 10 for seed in easy.to_measure()}
    played = [seed for update in range(5) for seed in easy.of_update(update, scores)]
    assert Counter(played) == Counter(expected)
    difficulty = [scores[str(seed)] for seed in played]
    assert difficulty == sorted(difficulty, reverse=True)


def test_prioritized_plays_new_ones_first_then_half_of_them_again() -> None:
    instances = Instances(100, 3, rows=8, repeats=2, curriculum="prioritized")
    first = instances.of_update(0)
    assert first == Instances(100, 3, rows=8, repeats=2).of_update(0)
    scores = {str(seed): float(place) for place, seed in enumerate(dict.fromkeys(first))}
    second = instances.of_update(1, scores)
    assert second == instances.of_update(1, dict(reversed(scores.items())))
    different = list(dict.fromkeys(second))
    assert len(different) == 4
    assert sum(str(seed) in scores for seed in different) == 2


def test_prioritized_prefers_where_the_policy_is_worst() -> None:
    """With one place for a known instance, each is drawn with a probability of 1 over its rank."""
    instances = Instances(1000, 0, rows=2, curriculum="prioritized")
    scores = {str(seed): float(-seed) for seed in instance_seeds("train", 4)}  # the last one has the lowest
    again = Counter(
        seed for update in range(2000) for seed in instances.of_update(update, scores) if str(seed) in scores
    )
    total = sum(1 / rank for rank in (1, 2, 3, 4))
    for rank, seed in enumerate(reversed(instance_seeds("train", 4)), start=1):
        assert again[seed] / 2000 == pytest.approx(1 / rank / total, abs=0.04)


def test_prioritized_goes_on_when_all_are_known() -> None:
    instances = Instances(4, 0, rows=4, curriculum="prioritized")
    scores = dict.fromkeys(map(str, instance_seeds("train", 4)), 0.0)
    for update in range(1, 20):
        assert set(instances.of_update(update, scores)) <= set(instance_seeds("train", 4))


def test_rewards_are_averaged_by_instance() -> None:
    assert mean_by_instance([5, 5, 7], [1.0, 2.0, 4.0]) == {"5": 1.5, "7": 4.0}


def test_references_are_final_accuracies_of_the_default() -> None:
    core = make_core(2, **{**TINY, "decision_rounds": 1, "reward": "advantage"})
    found = core.references([1, 2, 3])
    plain = make_core(1, **{**TINY, "decision_rounds": 1, "reward": "final-accuracy", "executor": "vectorized"})
    default = plain.knobs[0].encode(plain.knobs[0].default).reshape(1, 1)
    for seed, accuracy in zip([1, 2, 3], found, strict=True):
        plain.reset([0], [RunSettings(seed=seed)])
        while not plain.finished.all():
            plain.step(default)
        assert plain.final_accuracy(0) == pytest.approx(accuracy, abs=0.02)


@pytest.mark.parametrize("curriculum", ["easy-first", "prioritized"])
def test_training_resumes_exactly_and_counts_every_round(
    curriculum: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = 0
    plain = Federation.run_round

    def counted(self: Federation, *args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        report = plain(self, *args, **kwargs)
        ran += int(report.ran.sum())
        return report

    def stop(entry: dict[str, Any]) -> None:
        if entry["update"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Federation, "run_round", counted)
    config = dataclasses.replace(SHORT, curriculum=curriculum, episodes=8)
    whole = train(TINY, config, tmp_path / "whole")
    assert whole.cost.total == ran
    with pytest.raises(KeyboardInterrupt):
        train(TINY, config, tmp_path / "stopped", on_update=stop)
    result = resume(tmp_path / "stopped")
    assert (result.folder / "controller.json").read_text() == (whole.folder / "controller.json").read_text()
    mine, theirs = load_checkpoint(tmp_path / "stopped").progress, load_checkpoint(tmp_path / "whole").progress
    assert mine == theirs
    assert len(theirs.scores) > 0
    if curriculum == "prioritized":
        assert len({seed for played in theirs.played for seed in played}) < 8


def test_an_unknown_curriculum_is_refused() -> None:
    with pytest.raises(InputError, match="curriculum 'hard-first' is unknown"):
        dataclasses.replace(SHORT, curriculum="hard-first")
