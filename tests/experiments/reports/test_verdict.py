"""The verdict says what the numbers say, and no more."""

from __future__ import annotations

import math

import pytest

from experiments.reports.verdict import ENOUGH_TRAININGS, verdict
from experiments.reports.words import epsilons_text, percent, points, share_text, target_share
from experiments.statistics.resampling import MINIMUM_PAIRS, Difference, Interval
from tests.experiments.records.test_comparison import make_comparison, make_controller, make_episode
from tests.experiments.statistics.test_summary import on_instances, played, spent, table


def test_texts_of_numbers() -> None:
    assert percent(0.8125, Interval(0.8, 0.82)) == "81.2 [80.0, 82.0]"
    assert points(Difference(0.021, Interval(0.01, 0.032), 20)) == "+2.1 [+1.0, +3.2]"
    assert points(Difference(-0.021, Interval(-0.0321, 0.0001), 20)) == "−2.1 [−3.2, 0.0]"
    assert points(Difference(-0.0001, Interval(-0.0001, -0.0001), 1)) == "0.0"


BASE = [0.50, 0.52, 0.54, 0.56, 0.58, 0.60, 0.62, 0.64]


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        ([0.02, 0.03] * 4, "ppo, which is learned, beats best fixed (+2.5 [+2.1, +2.9] points; ahead on 100 %"),
        ([0.02, -0.02] * 4, "ppo, which is learned, shows no significant difference from best fixed (0.0 ["),
        ([-0.02, -0.03] * 4, "ppo, which is learned, loses to best fixed (−2.5 ["),
    ],
)
def test_verdict_says_whether_learning_beats_the_baseline(shift: list[float], words: str) -> None:
    learned = make_controller("ppo", [a + b for a, b in zip(BASE, shift, strict=True)], training_rounds=6400)
    text = verdict(make_comparison(make_controller("best-fixed", BASE, search_rounds=320), learned))
    assert words in text
    assert "Rounds spent beforehand: best fixed (320 for search), ppo (6,400 for training)." in text
    assert "\n" not in text


def test_controllers_without_rounds_beforehand_are_named_only_where_there_are_some() -> None:
    searched = make_controller("best-fixed", BASE, search_rounds=320)
    assert "(320 for search); none for the others." in verdict(make_comparison(searched, make_controller("aqc", BASE)))
    assert "(320 for search)." in verdict(make_comparison(searched))
    assert "beforehand" not in verdict(make_comparison(make_controller("aqc", BASE)))


def test_what_was_spent_is_told_by_target_or_as_shares() -> None:
    assert epsilons_text([(4.0, 3.9), (8.0, 8.0)]) == "3.9, 8"
    assert epsilons_text([(float(i), 0.99 * i) for i in range(1, 6)]) == "99 % of it"
    assert share_text([1.0, 0.9949]) == "99.5 to 100 %"
    assert target_share(math.inf, math.inf) == 1.0


def test_verdict_names_the_best_and_those_it_cannot_be_told_from() -> None:
    near = [x + (0.004 if seed % 2 else -0.006) for seed, x in enumerate(BASE)]
    low = [x - 0.1 for x in BASE]
    text = verdict(
        make_comparison(make_controller("aqc", BASE), make_controller("near", near), make_controller("low", low))
    )
    assert text.startswith(
        "aqc has the highest final global accuracy at ε = 8: interquartile mean 57.0 % (95 % interval"
    )
    assert "aqc is ahead, in points with 95 % interval, of low (+10.0 [+10.0, +10.0])." in text
    assert "No significant difference from aqc (the interval of the lead contains zero): near (+0.1 [" in text


def test_verdict_on_ties_single_seeds_few_seeds_and_one_controller() -> None:
    one, two = make_controller("one", [0.5]), make_controller("two", [0.5])
    alone = verdict(make_comparison(one))
    assert alone.startswith("Only one was run at this ε, so there is nothing to compare: 50.0 % final global accuracy.")
    assert "accuracy. One seed: no interval. ε holds for unit one client" in alone
    tie = verdict(make_comparison(one, two))
    assert tie.startswith("one and two share the highest final global accuracy at ε = 8: 50.0 %.")
    assert "One seed: no interval" in tie
    few = verdict(make_comparison(make_controller("a", [0.1, 0.2]), make_controller("b", [0.3, 0.4])))
    assert f"2 seeds are too few to call any difference significant (at least {MINIMUM_PAIRS})" in few


def test_verdict_says_when_mean_and_interquartile_mean_disagree() -> None:
    low_tail = make_controller("low-tail", [0.0, 0.0, 0.6, 0.6, 0.6, 0.6, 0.61, 0.61])
    high_tail = make_controller("high-tail", [0.5, 0.5, 0.59, 0.59, 0.59, 0.59, 1.0, 1.0])
    text = verdict(make_comparison(low_tail, high_tail))
    assert text.startswith("low tail has the highest")
    assert "In the plain mean over pairs, though, low tail is behind high tail (−" in text


def test_verdict_counts_divergence_and_too_few_seeds_for_learning() -> None:
    bad = make_controller("ppo", [], episodes=(make_episode(0, 0.1, diverged=True),), training_rounds=1)
    text = verdict(make_comparison(make_controller("best-fixed", [0.5]), bad))
    assert "Diverged: ppo on 1 of 1 seeds." in text
    assert "too few runs to say whether it beats it" in text


def test_verdict_without_any_controller_at_the_target() -> None:
    text = verdict(make_comparison(spent("a", [0.5], 9), spent("b", [0.5], 10)))
    assert text.startswith("No controller kept to the ε target, so nothing can be compared.")


def test_the_verdict_says_what_the_interval_of_a_learned_controller_contains() -> None:
    base = table(1, 1, 8, seed=1)

    def words(trainings: int) -> str:
        learned = played("ppo", table(trainings, 1, 8, seed=2), training_rounds=9)
        return verdict(on_instances(1, played("best-fixed", base), learned))

    assert "ppo: 1 training seed: the interval does not contain the variation between trainings." in words(1)
    assert "ppo: 3 training seeds, so few that the interval is too narrow." in words(3)
    assert "too narrow" not in words(ENOUGH_TRAININGS)
    assert "training seed" not in verdict(on_instances(1, played("best-fixed", base)))


def test_the_verdict_counts_trainings_instances_and_seeds() -> None:
    better = played("ppo", 0.5 + 0.4 * table(3, 2, 8, seed=2), training_rounds=9, epsilon=1.9)
    text = verdict(on_instances(2, played("best-fixed", 0.4 * table(1, 2, 8), epsilon=1.9), better))
    assert "at ε = 4, 8: interquartile mean" in text
    assert "3 training seeds on 2 instances with 16 seeds in all" in text


def test_crashes_of_several_trainings_are_counted_in_runs() -> None:
    episodes = tuple(make_episode(0, 0.1, diverged=training == 1, training=training) for training in (0, 1))
    bad = make_controller("ppo", [], episodes=episodes, trainings=("a", "b"), training_rounds=1)
    assert "Diverged: ppo on 1 of 2 runs." in verdict(make_comparison(bad))
