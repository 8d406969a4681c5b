"""Tuning the number of rounds together with a fixed clip norm."""

from __future__ import annotations

import pytest

from envs import Setting
from envs.instances import instance_seeds
from experiments.cli import main
from experiments.contenders.bench import Bench
from experiments.contenders.preparing import make_players
from experiments.contenders.rounds_search import CLIP_FACTORS, RoundsContender, RoundsSearch
from tests.experiments.contenders.small_runs import SMALL, mean_accuracy


def test_the_best_pair_is_that_of_a_plain_recomputation() -> None:
    bench = Bench(Setting.of(**SMALL, instances="test"), 2)
    found = bench.outcome(RoundsSearch(bench))
    clips = bench.best_clip
    scores = {(4, clip): score for clip, score in clips.scores.items()}
    for rounds in (2, 8):
        for factor in CLIP_FACTORS:
            clip = min(max(clips.clip_norm * factor * 4 / rounds, 0.1), 8.0)
            scores[rounds, clip] = mean_accuracy(rounds, instance_seeds("train", 2), "proxy", clip)
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
