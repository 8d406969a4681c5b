"""Robust means of scores, and bootstrap intervals over trainings and paired runs.

The scores of a controller form a table: one row per training (a schedule, which is not trained, has one), one column
per pair. A pair is an instance (a setting of the task) and a seed; two controllers on one pair meet the same partition,
cohorts, batches and noise. Trainings and pairs are crossed, each training plays every pair, so both are resampled:
trainings as a whole, and pairs within their instance (stratified), or, where each instance has but one, over all
(collapsed strata). Instances that were drawn at random stand for all that could have been drawn, so they are resampled
as a whole, with their seeds (clusters). Resampling runs instead would take a lucky training or instance for so many
lucky runs. With one training the intervals say nothing about what another training would have given.

Sources: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (interquartile
mean, stratified percentile bootstrap, probability of improvement, performance profiles); Owen 2007, "The pigeonhole
bootstrap" (crossed samples: resample rows and columns independently); Efron 1979 (bootstrap); Davison and Hinkley
1997, "Bootstrap Methods", 3.8 (clusters are resampled as a whole); Cochran 1977, "Sampling Techniques", 5A.12 (strata
with one unit each are collapsed, which makes intervals too wide rather than too narrow).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from experiments.records.comparison import ControllerResult, Pair
from fl_core.base.arrays import FloatArray, IndexArray
from fl_core.base.errors import require

Statistic = Callable[[FloatArray], FloatArray]
"""Reduces the last axis: [..., n] -> [...]."""

LEVEL = 0.95
RESAMPLES = 2000

MINIMUM_PAIRS = 6
"""Pairs, or drawn instances, needed to claim a difference. With n of them all of one sign happen by chance with
probability 2/2ⁿ, which is above 5 % for n < 6 although the bootstrap interval, which cannot leave the range of the
data, then excludes zero."""

_CHUNK = 2_000_000
"""Most resampled scores held at a time."""


class Interval(NamedTuple):
    """A confidence interval, ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % bootstrap interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """Lead of a controller over another on the same pairs, in accuracy (0.01 is one point)."""

    mean: float
    interval: Interval
    """95 % bootstrap interval of the mean over trainings and pairs."""
    pairs: int
    drawn: int = 0
    """Instances drawn at random that these pairs are of; 0 where they were not drawn."""

    @property
    def is_small(self) -> bool:
        """True if there are too few pairs, or drawn instances, to call any difference significant."""
        return (self.drawn or self.pairs) < MINIMUM_PAIRS

    @property
    def sign(self) -> int:
        """1 or −1 where the interval lies above or below zero and there are enough pairs to say so, else 0."""
        if self.is_small:
            return 0
        return int(self.interval.low > 0) - int(self.interval.high < 0)


@dataclass(frozen=True)
class Profile:
    """Share of runs with a score above each threshold, with its pointwise 95 % interval."""

    thresholds: FloatArray
    shares: FloatArray
    low: FloatArray
    high: FloatArray


class Design(NamedTuple):
    """Resampling of the pairs: blocks of neighbouring ones are drawn with replacement from those of their stratum."""

    strata: tuple[int, ...]
    """Blocks of each."""
    block: int = 1
    """Pairs of a block."""


class Scores:
    """A metric of a controller: `values` [trainings, pairs], the pairs in order of instance and seed.

    Raises:
        InputError: there are no scores, or some are not finite.
    """

    def __init__(self, by_pair: Mapping[Pair, Sequence[float]], drawn: bool = False) -> None:
        """Tabulate the scores of all trainings for each pair; `drawn` for instances that were drawn at random."""
        require(len(by_pair) > 0, "Scores need at least one pair of an instance and a seed.")
        self.pairs = tuple(sorted(by_pair))
        self.values = np.array([by_pair[pair] for pair in self.pairs], dtype=np.float64).T
        require(self.values.ndim == 2 and self.values.size > 0, "Scores need one value per training and pair.")
        require(bool(np.isfinite(self.values).all()), "Scores must be finite.")
        self.drawn = drawn

    @classmethod
    def of(cls, controller: ControllerResult, metric: str, drawn: bool) -> Scores:
        """Collect a metric, an attribute of `Episode`, of a controller's episodes."""
        return cls(controller.by_pair(metric), drawn)

    @property
    def trainings(self) -> int:
        """Number of trainings."""
        return len(self.values)

    @property
    def flat(self) -> FloatArray:
        """All scores [trainings · pairs]."""
        return self.values.reshape(-1)

    def on(self, instance: str) -> Scores:
        """Select the scores on one instance."""
        kept = [index for index, pair in enumerate(self.pairs) if pair[0] == instance]
        return Scores({self.pairs[index]: self.values[:, index].tolist() for index in kept})

    @property
    def instances(self) -> tuple[int, ...]:
        """Number of pairs of each instance, in order."""
        return tuple(Counter(name for name, _ in self.pairs).values())

    def design(self) -> Design:
        """Choose the resampling of the pairs.

        Resampled within its instance, a lone pair would never vary, and the interval would have no width: where no
        instance has a second pair, all are drawn from all.
        """
        sizes = self.instances
        if self.drawn and len(set(sizes)) == 1 < len(sizes):  # whole instances are the blocks, of one stratum
            return Design((len(sizes),), sizes[0])
        return Design((len(sizes),) if max(sizes) == 1 else sizes)


def interquartile_mean(values: ArrayLike) -> FloatArray:
    """Average the middle half of the values, over the last axis.

    As `scipy.stats.trim_mean(values, 0.25)` and rliable: ⌊n/4⌋ values are cut at each end and the rest weighs equally,
    so where n is no multiple of 4 slightly more than half is kept, and below n = 4 it is the plain mean.
    """
    return np.asarray(scipy.stats.trim_mean(np.asarray(values, dtype=np.float64), 0.25, axis=-1))


def average(values: ArrayLike) -> FloatArray:
    """Average over the last axis."""
    return np.asarray(np.mean(np.asarray(values, dtype=np.float64), axis=-1))


def estimate(
    scores: Scores,
    statistic: Statistic = interquartile_mean,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Compute a statistic of all scores and its percentile bootstrap interval.

    With one training and one instance this is `scipy.stats.bootstrap` with method "percentile". One score, which scipy
    refuses, and equal scores give an interval of width zero.
    """
    pairs = _pair_draws(scores.design(), resamples, seed)
    trainings = _training_draws(scores.trainings, resamples, seed)
    # The interquartile mean sorts its values, so here the draws themselves are gathered, a chunk at a time.
    step = max(1, _CHUNK // scores.values.size)
    found = [
        statistic(
            scores.values[trainings[i : i + step, :, None], pairs[i : i + step, None, :]].reshape(-1, scores.flat.size)
        )
        for i in range(0, resamples, step)
    ]
    return Estimate(float(statistic(scores.flat)), _percentiles(np.concatenate(found), level))


def paired_difference(
    a: Scores, b: Scores, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Average a − b over the same pairs, each side over its trainings too, and bootstrap its interval.

    Both sides are resampled together over pairs, and each by itself over its trainings.

    Raises:
        InputError: the pairs differ.
    """
    _check_pairs(a, b)
    # A resampled mean is the scores weighed by how often each was drawn: two products replace gathering the draws.
    over_pairs, over_a, over_b = _weights(a, b, resamples, seed)
    found = (over_pairs @ a.values.T * over_a).sum(axis=1) - (over_pairs @ b.values.T * over_b).sum(axis=1)
    differences = a.values.mean(axis=0) - b.values.mean(axis=0)
    drawn = len(a.instances) if a.drawn else 0
    return Difference(float(differences.mean()), _percentiles(found, level), differences.size, drawn)


def probability_of_improvement(
    a: Scores, b: Scores, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Estimate the probability that a training of a is above one of b on the same pair, ties counted half.

    On one pair this is the Mann-Whitney U of the trainings over the number of their combinations; with one training
    each it is 1, ½ or 0. The mean over the pairs is taken.

    Raises:
        InputError: the pairs differ.
    """
    _check_pairs(a, b)
    first, second = a.values[:, None, :], b.values[None, :, :]
    ahead = ((first > second) + 0.5 * (first == second)).reshape(-1, len(a.pairs))
    over_pairs, over_a, over_b = _weights(a, b, resamples, seed)
    both = (over_a[:, :, None] * over_b[:, None, :]).reshape(resamples, -1)
    found = (over_pairs @ ahead.T * both).sum(axis=1)
    return Estimate(float(ahead.mean()), _percentiles(found, level))


def performance_profile(
    scores: Scores, thresholds: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Profile:
    """Compute the share of runs whose score is above each threshold, with a pointwise interval."""
    steps = np.asarray(thresholds, dtype=np.float64)
    above = (scores.values[:, :, None] > steps).astype(np.float64)
    over_pairs = _pair_weights(scores.design(), resamples, seed)
    over_trainings = _counts(_training_draws(scores.trainings, resamples, seed), scores.trainings)
    found = np.zeros((resamples, steps.size))
    for training, runs in enumerate(above):
        found += over_trainings[:, training, None] * (over_pairs @ runs)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Profile(steps, above.mean(axis=(0, 1)), low, high)


def _check_pairs(a: Scores, b: Scores) -> None:
    alone = sorted(set(a.pairs) ^ set(b.pairs))
    shown = [seed if not instance else f"{seed} of {instance}" for instance, seed in alone[:3]]
    require(not alone, f"The controllers are compared on the same seeds, but only one of two has seed {shown}.")


@lru_cache(maxsize=4)
def _pair_draws(design: Design, resamples: int, seed: int) -> IndexArray:
    """Draw indices of pairs [resamples, pairs] with replacement, by the design."""
    rng, strata = np.random.default_rng(seed), design.strata
    starts = np.cumsum([0, *strata[:-1]])
    parts = [start + rng.integers(0, size, (resamples, size)) for start, size in zip(starts, strata, strict=True)]
    blocks = np.concatenate(parts, axis=1)[:, :, None] * design.block + np.arange(design.block)
    return blocks.reshape(resamples, -1)


@lru_cache(maxsize=4)
def _pair_weights(design: Design, resamples: int, seed: int) -> FloatArray:
    return _counts(_pair_draws(design, resamples, seed), sum(design.strata) * design.block)


def _training_draws(trainings: int, resamples: int, seed: int, side: int = 1) -> IndexArray:
    """Draw indices of trainings [resamples, trainings]; a stream of its own leaves the pairs the same."""
    return np.random.default_rng([seed, side]).integers(0, trainings, (resamples, trainings))


def _counts(draws: IndexArray, size: int) -> FloatArray:
    """Count the draws of each of `size` items, as shares [resamples, size]."""
    rows = np.arange(len(draws))[:, None] * size
    counted = np.bincount((rows + draws).reshape(-1), minlength=len(draws) * size)
    return np.asarray(counted.reshape(len(draws), size) / draws.shape[1], dtype=np.float64)


def _weights(a: Scores, b: Scores, resamples: int, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weigh the pairs, a's trainings and b's trainings in each resample."""
    return (
        _pair_weights(a.design(), resamples, seed),
        _counts(_training_draws(a.trainings, resamples, seed, 1), a.trainings),
        _counts(_training_draws(b.trainings, resamples, seed, 2), b.trainings),
    )


def _percentiles(values: FloatArray, level: float) -> Interval:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
