"""Statistics against scipy, against plain slow recomputations and against cases small enough for a pencil."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.results import ControllerResult
from experiments.statistics import (
    MINIMUM_PAIRS,
    Difference,
    Interval,
    average,
    bootstrap_interval,
    default_baseline,
    interquartile_mean,
    paired_difference,
    percent,
    points,
    probability_of_improvement,
    summarise,
    verdict,
)
from fl_core.errors import InputError
from tests.experiments.test_results import make_comparison, make_controller, make_episode

accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=25)


def table(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(size=shape)


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([9, 1, 2, 4]) == 3.0  # 1 and 9 are cut
    assert interquartile_mean([0, 1, 2, 3, 100]) == 2.0  # ⌊5/4⌋ = 1 is cut at each end
    assert interquartile_mean([0, 0, 1, 2, 3, 4, 50, 60]) == 2.5
    assert interquartile_mean([1, 2, 6]) == 3.0  # below four values: the plain mean
    assert interquartile_mean([0.3]) == 0.3


def test_interquartile_mean_of_multiples_of_four_is_the_mean_between_the_quartiles() -> None:
    values = np.sort(table(20))
    assert interquartile_mean(values) == pytest.approx(values[5:15].mean())


@pytest.mark.parametrize("size", range(1, 30))
def test_interquartile_mean_matches_scipy_on_random_tables(size: int) -> None:
    values = table(7, size, seed=size)
    np.testing.assert_allclose(interquartile_mean(values), scipy.stats.trim_mean(values, 0.25, axis=1))
    cut = size // 4
    expected = [sum(sorted(line)[cut : size - cut]) / (size - 2 * cut) for line in values.tolist()]
    np.testing.assert_allclose(interquartile_mean(values), expected)


@pytest.mark.parametrize("statistic", [interquartile_mean, average])
@pytest.mark.parametrize("size", [2, 5, 20])
def test_bootstrap_is_scipys(statistic: Callable[..., Any], size: int) -> None:
    values = np.sort(table(size, seed=size))
    found = bootstrap_interval(values, statistic, level=0.9, resamples=500, seed=3)
    bootstrap: Any = scipy.stats.bootstrap
    scipys = bootstrap(
        (values,),
        lambda sample, axis: statistic(np.moveaxis(sample, axis, -1)),
        n_resamples=500,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert found == pytest.approx((scipys.low, scipys.high), abs=1e-12)


def test_bootstrap_agrees_with_a_plain_slow_one() -> None:
    """Another generator and a loop: equal up to the Monte Carlo error of the interval's ends."""
    values = [float(x) for x in table(12, seed=5)]
    draw = random.Random(1)
    means = sorted(math.fsum(draw.choices(values, k=12)) / 12 for _ in range(20_000))
    slow = (means[int(0.025 * 20_000)], means[int(0.975 * 20_000)])
    assert bootstrap_interval(values, average, resamples=20_000) == pytest.approx(slow, abs=0.005)


def test_bootstrap_covers_the_true_mean_about_as_often_as_it_says() -> None:
    samples = np.random.default_rng(2).normal(size=(300, 20))
    intervals = [bootstrap_interval(sample, average, resamples=400) for sample in samples]
    assert 0.88 < np.mean([low <= 0 <= high for low, high in intervals]) < 0.98  # percentile: a little too narrow


@given(accuracies, st.randoms())
@settings(max_examples=60, deadline=None)
def test_intervals_are_finite_ordered_inside_the_data_and_blind_to_order(
    values: list[float], shuffle: random.Random
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interval = bootstrap_interval(values, interquartile_mean, resamples=200)
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    shuffled = values.copy()
    shuffle.shuffle(shuffled)
    assert bootstrap_interval(shuffled, interquartile_mean, resamples=200) == interval


@given(st.lists(st.floats(0, 0.5), min_size=2, max_size=12))
@settings(max_examples=40, deadline=None)
def test_the_interval_of_a_symmetric_sample_holds_its_mean(half: list[float]) -> None:
    values = [0.5 + x for x in half] + [0.5 - x for x in half]
    low, high = bootstrap_interval(values, average, resamples=500)
    assert low - 1e-9 <= 0.5 <= high + 1e-9


@pytest.mark.parametrize("values", [[0.3], [0.3] * 7, [0.1, 0.1]])
def test_one_value_and_equal_values_give_an_interval_without_width(values: list[float]) -> None:
    assert bootstrap_interval(values, interquartile_mean) == pytest.approx((values[0], values[0]))


def test_bootstrap_refuses_nothing_and_nan() -> None:
    with pytest.raises(InputError, match="at least one"):
        bootstrap_interval([], average)
    with pytest.raises(InputError, match="finite"):
        bootstrap_interval([0.1, math.nan], average)


def test_paired_difference_and_improvement_by_hand() -> None:
    a, b = {1: 0.5, 2: 0.7, 3: 0.6, 4: 0.9}, {4: 0.5, 3: 0.6, 2: 0.6, 1: 0.6}
    found = paired_difference(a, b)
    assert found.mean == pytest.approx((-0.1 + 0.1 + 0.0 + 0.4) / 4)
    assert found.pairs == 4
    assert probability_of_improvement(a, b) == (2 + 0.5) / 4
    assert found.sign == 0  # too few pairs, whatever the interval


def test_pairing_removes_what_the_seeds_have_in_common() -> None:
    seeds = {seed: float(x) for seed, x in enumerate(table(20))}
    better = {seed: x + 0.01 for seed, x in seeds.items()}
    found = paired_difference(better, seeds)
    assert found.interval == pytest.approx((0.01, 0.01))
    assert found.sign == 1
    assert paired_difference(seeds, better).sign == -1


@pytest.mark.parametrize("compare", [paired_difference, probability_of_improvement])
def test_other_seeds_are_refused(compare: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"only one of two has seed \[3\]"):
        compare({1: 0.1, 3: 0.1}, {1: 0.1})
    with pytest.raises(InputError, match="at least one seed"):
        compare({}, {})


@given(st.dictionaries(st.integers(), st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=15))
@settings(max_examples=40, deadline=None)
def test_pairs_are_antisymmetric(pairs: dict[int, tuple[float, float]]) -> None:
    a, b = ({seed: pair[side] for seed, pair in pairs.items()} for side in (0, 1))
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert there.mean == pytest.approx(-back.mean)
    assert there.interval.low <= there.interval.high
    assert probability_of_improvement(a, b) + probability_of_improvement(b, a) == pytest.approx(1)


def test_the_claim_needs_as_many_pairs_as_a_sign_test() -> None:
    p_value = scipy.stats.binomtest(MINIMUM_PAIRS, MINIMUM_PAIRS).pvalue
    assert p_value < 0.05 < scipy.stats.binomtest(MINIMUM_PAIRS - 1, MINIMUM_PAIRS - 1).pvalue


def test_summary_holds_every_figure() -> None:
    base = make_controller("best-fixed", [0.5, 0.6, 0.7, 0.8], search_rounds=320)
    episodes = tuple(
        make_episode(
            seed, accuracy, epsilon_spent=7.96 + 0.01 * seed, epsilon_pld=7.9 + 0.01 * seed, diverged=seed == 2
        )
        for seed, accuracy in enumerate([0.6, 0.6, 0.8, 0.8])
    )
    learned = make_controller("ppo:x", [], episodes=episodes, training_rounds=640)
    first, second = summarise(make_comparison(base, learned))
    assert (first.difference, first.improvement, first.learned) == (None, None, False)
    assert first.search_rounds == 320
    assert second.seeds == 4
    assert second.global_accuracy == pytest.approx(0.7)
    assert second.personal_accuracy == pytest.approx(0.75)
    assert second.difference is not None
    assert second.difference.mean == pytest.approx(0.05)
    assert second.improvement == 0.75
    assert second.epsilon_mean == pytest.approx(7.975)
    assert second.epsilon_max == pytest.approx(7.99)
    assert second.epsilon_pld == pytest.approx(7.93)
    assert (second.training_rounds, second.diverged, second.learned, second.unequal) == (640, 1, True, False)


def test_the_order_of_episodes_does_not_matter() -> None:
    base = make_controller("best-fixed", list(table(9)))
    values = {seed: float(x) for seed, x in enumerate(table(9, seed=1))}
    turned = dict(reversed(values.items()))
    first = summarise(make_comparison(base, make_controller("aqc", values)))
    assert summarise(make_comparison(base, make_controller("aqc", turned))) == first


def test_summary_refuses_other_seeds_and_unknown_baselines() -> None:
    with pytest.raises(InputError, match="same seeds"):
        summarise(make_comparison(make_controller("fixed:1", {1: 0.1}), make_controller("aqc", {2: 0.1})))
    with pytest.raises(InputError, match="did you mean best-fixed"):
        summarise(make_comparison(), "best-fixd")


def test_default_baseline() -> None:
    def names(*given: str) -> str:
        return default_baseline(make_comparison(*(make_controller(name, [0.1]) for name in given)))

    assert names("aqc", "fixed:0.5", "best-fixed") == "best-fixed"
    assert names("aqc", "fixed:0.5") == "fixed:0.5"
    assert names("aqc", "decay") == "aqc"


def test_texts_of_numbers() -> None:
    assert percent(0.8125, Interval(0.8, 0.82)) == "81.2 [80.0, 82.0]"
    assert points(Difference(0.021, Interval(0.01, 0.032), 20)) == "+2.1 [+1.0, +3.2]"
    assert points(Difference(-0.021, Interval(-0.0321, 0.0001), 20)) == "−2.1 [−3.2, 0.0]"
    assert points(Difference(-0.0001, Interval(-0.0001, -0.0001), 1)) == "0.0"


def spent(name: str, values: list[float], epsilon: float, pld: float | None = None) -> ControllerResult:
    pld = epsilon if pld is None else pld
    episodes = tuple(make_episode(s, v, epsilon_spent=epsilon, epsilon_pld=pld) for s, v in enumerate(values))
    return make_controller(name, [], episodes=episodes)


@pytest.mark.parametrize(
    ("controller", "unequal", "words"),
    [
        (spent("x", [0.9, 0.9], 8.0), False, ""),
        (spent("x", [0.9, 0.9], 8.05), False, ""),
        (spent("x", [0.9, 0.9], 8.2), True, "spent up to ε = 8.2, above the target of 8"),
        (spent("x", [0.9, 0.9], 7.9, 8.5), True, "spent up to ε = 8.5"),
        (spent("x", [0.9, 0.9], 4.0), False, "spent less than the target of 8 on 2 of 2 seeds (least 4)"),
        (make_controller("x", [0.9, 0.9], epsilon_target=4.0), True, "another target, ε = 4 instead of 8"),
        (make_controller("x", [0.9, 0.9], epsilon_target=8.0), False, ""),
        (spent("x", [0.9, 0.9], math.inf), True, "above the target"),
    ],
)
def test_unequal_privacy_is_flagged_and_left_out_of_the_verdict(
    controller: ControllerResult, unequal: bool, words: str
) -> None:
    comparison = make_comparison(make_controller("best-fixed", [0.5, 0.5]), controller)
    row = summarise(comparison)[1]
    assert row.unequal is unequal
    assert words in row.budget_note
    assert bool(row.budget_note) == bool(words)
    text = verdict(comparison)
    assert ("x is left out of this verdict" in text) is unequal
    assert text.startswith("Only best fixed" if unequal else "x has the highest")


def test_no_privacy_at_all_is_no_inequality() -> None:
    comparison = make_comparison(spent("a", [0.5], math.inf), spent("b", [0.6], math.inf), epsilon=math.inf)
    assert not any(row.unequal or row.budget_note for row in summarise(comparison))
    assert "no privacy limit" in verdict(comparison)


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
    assert "Rounds spent beforehand: best fixed 320 for search, ppo 6,400 for training; none for the others." in text
    assert "\n" not in text


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
    assert alone.endswith("One seed: no interval.")
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
    assert "too few seeds to say whether it beats it" in text


def test_verdict_without_any_controller_at_the_target() -> None:
    text = verdict(make_comparison(spent("a", [0.5], 9), spent("b", [0.5], 10)))
    assert text.startswith("No controller kept to the ε target, so nothing can be compared.")


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_no_figure_and_no_verdict_is_ever_nan(columns: list[list[float]]) -> None:
    comparison = make_comparison(*(make_controller(f"c{i}", column) for i, column in enumerate(columns)))
    for row in summarise(comparison):
        assert all(math.isfinite(value) for value in (*row.global_interval, *row.personal_interval, row.epsilon_mean))
        assert 0 <= row.global_accuracy <= 1
    assert "nan" not in verdict(comparison)
