"""Tuning the number of rounds together with a fixed clip norm."""

from __future__ import annotations

from typing import Any

import pytest

from envs import Setting, make_core
from envs.instances import instance_seeds
from envs.playing import run_to_the_end
from experiments.cli import main
from experiments.contenders.bench import Bench
from experiments.contenders.preparing import make_players
from experiments.contenders.rounds_search import CLIP_FACTORS, RoundsContender, RoundsSearch
from fl_core.run.config import RunSettings
from policies import FixedClip

SMALL: dict[str, Any] = {
    "task": "digits",
    "clients": 6,
    "rounds": 4,
    "local_steps": 1,
    "executor": "vectorized",
    "evaluation_samples": 50,
}


def _score(bench: Bench, rounds: int, clip_norm: float) -> float:
    core = make_core(bench.search_instances, **SMALL | {"rounds": rounds}, population="proxy", reward="final-accuracy")
    runs = [RunSettings(seed=seed) for seed in instance_seeds("train", bench.search_instances)]
    run_to_the_end(core, FixedClip.for_env(core, clip_norm=clip_norm), runs, lambda _: None)
    return sum(core.final_accuracy(row) for row in range(core.runs)) / core.runs


def test_the_best_pair_is_that_of_a_plain_recomputation() -> None:
    bench = Bench(Setting.of(**SMALL, instances="test"), 2)
    found = bench.outcome(RoundsSearch(bench))
    clips = bench.best_clip
    scores = {(4, clip): score for clip, score in clips.scores.items()}
    for rounds in (2, 8):
        for factor in CLIP_FACTORS:
            clip = min(max(clips.clip_norm * factor * 4 / rounds, 0.1), 8.0)
            scores[rounds, clip] = _score(bench, rounds, clip)
    assert found.score == pytest.approx(max(scores.values()), abs=1e-6)
    assert scores[found.rounds, found.clip_norm] == pytest.approx(found.score, abs=1e-6)
    assert found.tried == len(scores)
    assert found.played == 13 * 2 * 4 + 3 * 2 * (2 + 8) == sum(one.rounds for one in found.releases)


def test_the_player_runs_as_many_rounds_as_were_found_at_the_same_epsilon() -> None:
    bench = Bench(Setting.of(**SMALL, instances="test"), 1)
    (player,) = make_players(["tuned:rounds"], bench)
    rounds = bench.outcome(RoundsContender().search(bench)).rounds
    assert player.setting.federation.rounds == rounds
    assert player.setting.federation.epsilon == bench.setting.federation.epsilon
    assert f"for {rounds} rounds" in player.label


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--controller", "tuned:rounds"], "changes rounds, which a run is given"),
        (["compare", "--controllers", "tuned:rounds", "--noise-multiplier", "4"], "but noise_multiplier is given"),
    ],
)
def test_rounds_that_are_given_are_not_tuned(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in " ".join(capsys.readouterr().err.split())
