"""Resampling against scipy, against plain slow recomputations and against cases small enough for a pencil."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.statistics.resampling import (
    MINIMUM_PAIRS,
    Scores,
    average,
    estimate,
    interquartile_mean,
    paired_difference,
    performance_profile,
    probability_of_improvement,
)
from fl_core.base.errors import InputError

accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=25)


def table(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(size=shape)


def column(values: Sequence[float] | Mapping[int, float]) -> Scores:
    """Scores of one training on one instance."""
    by_seed = values if isinstance(values, Mapping) else dict(enumerate(values))
    return Scores({("", seed): [value] for seed, value in by_seed.items()})


def crossed(values: Any, sizes: Sequence[int], drawn: bool = False) -> Scores:
    """Scores [trainings, pairs] on instances with so many seeds each."""
    pairs = [(f"instance {i}", seed) for i, size in enumerate(sizes) for seed in range(size)]
    return Scores(dict(zip(pairs, np.asarray(values).T.tolist(), strict=True)), drawn)


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


SHAPES = [(1, (7,)), (3, (5,)), (1, (3, 4)), (4, (6, 2, 3)), (2, (1, 1))]
"""Trainings, and seeds of each instance."""


@st.composite
def tied_tables(draw: st.DrawFn) -> tuple[Scores, Scores]:
    """Two controllers on the same pairs, with few different scores, so that many are equal."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    score = st.integers(0, 4).map(lambda step: step / 4)
    rows = st.lists(score, min_size=sum(sizes), max_size=sum(sizes))
    first, second = (draw(st.lists(rows, min_size=1, max_size=4)) for _ in range(2))
    return crossed(first, sizes), crossed(second, sizes)


@pytest.mark.parametrize("statistic", [interquartile_mean, average])
@pytest.mark.parametrize("size", [2, 5, 20])
def test_the_interval_of_one_training_is_scipys(statistic: Callable[..., Any], size: int) -> None:
    values = table(size, seed=size)
    found = estimate(column(values), statistic, level=0.9, resamples=500, seed=3)
    bootstrap: Any = scipy.stats.bootstrap
    scipys = bootstrap(
        (values,),
        lambda sample, axis: statistic(np.moveaxis(sample, axis, -1)),
        n_resamples=500,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert found.interval == pytest.approx((scipys.low, scipys.high), abs=1e-12)
    assert found.value == pytest.approx(float(statistic(values)))


def test_the_interval_of_a_difference_is_scipys_of_paired_samples() -> None:
    first, second = table(9, seed=1), table(9, seed=2)
    found = paired_difference(column(first), column(second), level=0.9, resamples=500, seed=3)
    bootstrap: Any = scipy.stats.bootstrap
    scipys = bootstrap(
        (first, second),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        paired=True,
        n_resamples=500,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert found.interval == pytest.approx((scipys.low, scipys.high), abs=1e-12)


def slow_draws(trainings: int, sizes: Sequence[int], draw: random.Random) -> tuple[list[int], list[int]]:
    """One resample: which trainings, and which pairs, each from the instance in whose place it stands.

    Pairs that are alone in their instances stand for each other.
    """
    pairs, start = [], 0
    sizes = sizes if max(sizes) > 1 else [sum(sizes)]
    for size in sizes:
        pairs += [start + draw.randrange(size) for _ in range(size)]
        start += size
    return [draw.randrange(trainings) for _ in range(trainings)], pairs


def middle(values: list[float]) -> float:
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return math.fsum(kept) / len(kept)


@pytest.mark.parametrize(("trainings", "sizes"), SHAPES)
def test_intervals_over_trainings_and_instances_are_those_of_a_plain_loop(trainings: int, sizes: Sequence[int]) -> None:
    """Another generator and a loop: equal up to the Monte Carlo error of the interval's ends."""
    values = table(trainings, sum(sizes), seed=trainings)
    other = table(2, sum(sizes), seed=99)
    draw, middles, means, wins = random.Random(1), [], [], []
    for _ in range(4000):
        rows, pairs = slow_draws(trainings, sizes, draw)
        others, _ = slow_draws(2, sizes, draw)
        middles.append(middle([values[t, p] for t in rows for p in pairs]))
        mine = math.fsum(values[t, p] for t in rows for p in pairs) / (trainings * len(pairs))
        theirs = math.fsum(other[t, p] for t in others for p in pairs) / (2 * len(pairs))
        means.append(mine - theirs)
        ahead = sum(values[t, p] > other[u, p] for t in rows for u in others for p in pairs)
        wins.append(ahead / (trainings * 2 * len(pairs)))
    mine, theirs = crossed(values, sizes), crossed(other, sizes)
    for found, slow in (
        (estimate(mine, resamples=8000), middles),
        (paired_difference(mine, theirs, resamples=8000), means),
        (probability_of_improvement(mine, theirs, resamples=8000), wins),
    ):
        low, high = np.quantile(slow, [0.025, 0.975])
        assert found.interval == pytest.approx((low, high), abs=0.1 * max(0.1, high - low))


@pytest.mark.parametrize("trainings", [1, 3])
def test_drawn_instances_are_resampled_with_their_seeds_as_in_a_plain_loop(trainings: int) -> None:
    instances, seeds = 7, 3
    values, other = (table(size, instances * seeds, seed=size) for size in (trainings, 2))
    draw, middles, means = random.Random(1), [], []
    for _ in range(4000):
        blocks = [draw.randrange(instances) for _ in range(instances)]
        pairs = [block * seeds + seed for block in blocks for seed in range(seeds)]
        rows, others = ([draw.randrange(size) for _ in range(size)] for size in (trainings, 2))
        middles.append(middle([values[t, p] for t in rows for p in pairs]))
        mine = math.fsum(values[t, p] for t in rows for p in pairs) / (trainings * len(pairs))
        means.append(mine - math.fsum(other[t, p] for t in others for p in pairs) / (2 * len(pairs)))
    scores, theirs = (crossed(one, [seeds] * instances, drawn=True) for one in (values, other))
    difference = paired_difference(scores, theirs, resamples=8000)
    for found, slow in ((estimate(scores, resamples=8000), middles), (difference, means)):
        low, high = np.quantile(slow, [0.025, 0.975])
        assert found.interval == pytest.approx((low, high), abs=0.1 * max(0.1, high - low))
    assert (difference.pairs, difference.drawn) == (21, 7)


def test_more_seeds_of_few_drawn_instances_narrow_nothing_and_prove_nothing() -> None:
    """Where only the instance matters, each counts once however many seeds it has."""
    by_instance = table(5, seed=3)
    few, many = (crossed([np.repeat(by_instance, n)], [n] * 5, drawn=True) for n in (2, 40))
    assert estimate(few, average).interval == pytest.approx(estimate(many, average).interval)
    assert estimate(many, average).interval == pytest.approx(estimate(column(by_instance), average).interval)
    worse = crossed([np.repeat(by_instance - 2, 40)], [40] * 5, drawn=True)
    assert paired_difference(many, worse).interval.low > 0
    assert paired_difference(many, worse).sign == 0  # five instances
    lone = crossed([table(9)], [9], drawn=True)
    assert estimate(lone).interval == estimate(column(table(9))).interval


def test_trainings_are_resampled_as_a_whole() -> None:
    """Where only the training matters, more seeds must not narrow the interval."""
    by_training = table(5, seed=3)
    few, many = (crossed(np.repeat(by_training[:, None], n, axis=1), [n]) for n in (2, 40))
    assert estimate(few, average).interval == estimate(many, average).interval
    assert estimate(many, average).interval == pytest.approx(
        estimate(column(by_training), average, resamples=20_000).interval, abs=0.02
    )


def test_seeds_stay_within_their_instance() -> None:
    """Where only the instance matters, there is nothing to resample."""
    values = [[0.1] * 4 + [0.9] * 4]
    assert estimate(crossed(values, [4, 4]), average).interval == pytest.approx((0.5, 0.5))
    pooled = estimate(crossed(values, [8]), average).interval
    assert pooled.low < 0.4 < 0.6 < pooled.high


def test_instances_of_one_seed_each_are_resampled_as_a_sample_of_instances() -> None:
    """Else no pair could ever be left out, and any difference would be certain."""
    mine, theirs = table(9, seed=1)[None, :], table(9, seed=2)[None, :]
    for compare in (paired_difference, probability_of_improvement):
        found = compare(crossed(mine, [1] * 9), crossed(theirs, [1] * 9)).interval
        assert found == compare(crossed(mine, [9]), crossed(theirs, [9])).interval
        assert found.high > found.low
    assert estimate(crossed(mine, [1] * 9)).interval == estimate(crossed(mine, [9])).interval


def test_intervals_cover_the_true_mean_about_as_often_as_they_say() -> None:
    """Two-way random effects: a training's, a seed's and their own noise; the true mean is 0."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        values = rng.normal(size=(10, 1)) + rng.normal(size=(1, 20)) + rng.normal(size=(10, 20))
        low, high = estimate(crossed(values, [20]), average, resamples=400).interval
        hits += low <= 0 <= high
    assert 0.86 < hits / 200 < 0.99  # percentile intervals of ten trainings: a little too narrow


@given(accuracies, st.randoms())
@settings(max_examples=60, deadline=None)
def test_intervals_are_finite_ordered_and_inside_the_data(values: list[float], shuffle: random.Random) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = estimate(column(values), resamples=200).interval
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    seeds = list(enumerate(values))
    shuffle.shuffle(seeds)
    assert estimate(column(dict(seeds)), resamples=200).interval == (low, high)


@pytest.mark.parametrize("values", [[0.3], [0.3] * 7, [0.1, 0.1]])
def test_one_value_and_equal_values_give_an_interval_without_width(values: list[float]) -> None:
    assert estimate(column(values)).interval == pytest.approx((values[0], values[0]))


def test_nothing_and_nan_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        column([])
    with pytest.raises(InputError, match="one value per training"):
        Scores({("", 0): []})
    with pytest.raises(InputError, match="finite"):
        column([0.1, math.nan])


def test_paired_difference_and_improvement_by_hand() -> None:
    a, b = column({1: 0.5, 2: 0.7, 3: 0.6, 4: 0.9}), column({4: 0.5, 3: 0.6, 2: 0.6, 1: 0.6})
    found = paired_difference(a, b)
    assert found.mean == pytest.approx((-0.1 + 0.1 + 0.0 + 0.4) / 4)
    assert found.pairs == 4
    assert probability_of_improvement(a, b).value == (2 + 0.5) / 4
    assert found.sign == 0  # too few pairs, whatever the interval


def test_pairing_removes_what_the_seeds_have_in_common() -> None:
    seeds = table(20)
    better = column(seeds + 0.01)
    found = paired_difference(better, column(seeds))
    assert found.interval == pytest.approx((0.01, 0.01))
    assert found.sign == 1
    assert paired_difference(column(seeds), better).sign == -1


@pytest.mark.parametrize("compare", [paired_difference, probability_of_improvement])
def test_other_pairs_are_refused(compare: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"only one of two has seed \['?3"):
        compare(column({1: 0.1, 3: 0.1}), column({1: 0.1}))
    with pytest.raises(InputError, match="seed"):
        compare(crossed([[0.1, 0.2]], [1, 1]), crossed([[0.1, 0.2]], [2]))


@given(tied_tables())
@settings(max_examples=60, deadline=None)
def test_improvement_is_the_mann_whitney_u_of_the_trainings_on_each_pair(tables: tuple[Scores, Scores]) -> None:
    a, b = tables
    shares = [
        scipy.stats.mannwhitneyu(a.values[:, pair], b.values[:, pair], method="asymptotic").statistic
        / (a.trainings * b.trainings)
        for pair in range(len(a.pairs))
    ]
    found = probability_of_improvement(a, b, resamples=50)
    assert found.value == pytest.approx(np.mean(shares))
    assert 0 <= found.interval.low <= found.interval.high <= 1 + 1e-12


@given(tied_tables())
@settings(max_examples=40, deadline=None)
def test_both_directions_agree(tables: tuple[Scores, Scores]) -> None:
    a, b = tables
    assert paired_difference(a, b, resamples=50).mean == pytest.approx(-paired_difference(b, a, resamples=50).mean)
    both = probability_of_improvement(a, b, resamples=50).value + probability_of_improvement(b, a, resamples=50).value
    assert both == pytest.approx(1)
    same = probability_of_improvement(a, a, resamples=50)
    assert same.value == pytest.approx(0.5)  # a controller is no better than itself, however many ties it has


@given(tied_tables(), st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_profiles_are_scipys_empirical_survival_function(
    tables: tuple[Scores, Scores], thresholds: list[float]
) -> None:
    scores = tables[0]
    found = performance_profile(scores, thresholds, resamples=50)
    np.testing.assert_allclose(found.shares, scipy.stats.ecdf(scores.flat).sf.evaluate(thresholds), atol=1e-12)
    assert (found.low >= -1e-12).all()
    assert (found.low <= found.high).all()
    assert (found.high <= 1 + 1e-12).all()


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_interquartile_mean_is_scipys_and_lies_within_the_middle(values: list[float]) -> None:
    found = float(interquartile_mean(values))
    assert found == pytest.approx(float(scipy.stats.trim_mean(values, 0.25)), abs=1e-9)
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    assert kept[0] - 1e-9 <= found <= kept[-1] + 1e-9


def test_groups_without_scores_are_refused_and_groups_of_one_stand_for_themselves() -> None:
    scores = crossed([[0.2, 0.4, 0.9]], [2, 1])
    with pytest.raises(InputError, match="at least one pair"):
        scores.on("instance 2")
    alone = scores.on("instance 1")
    assert estimate(alone).interval == (0.9, 0.9)
    assert probability_of_improvement(alone, alone).value == 0.5
    assert performance_profile(alone, [0.8, 0.9]).shares.tolist() == [1.0, 0.0]


def test_the_band_of_a_profile_is_the_interval_of_a_share() -> None:
    values = table(3, 12, seed=4)
    band = performance_profile(crossed(values, [12]), [0.5])
    share = estimate(crossed((values > 0.5).astype(float), [12]), average)
    assert (band.low[0], band.high[0]) == pytest.approx(share.interval)


def test_the_claim_needs_as_many_pairs_as_a_sign_test() -> None:
    p_value = scipy.stats.binomtest(MINIMUM_PAIRS, MINIMUM_PAIRS).pvalue
    assert p_value < 0.05 < scipy.stats.binomtest(MINIMUM_PAIRS - 1, MINIMUM_PAIRS - 1).pvalue
