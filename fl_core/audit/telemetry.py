"""Accounted figures: what a round releases beside its updates, held against what the books were told of it.

With the noise off, neighbouring cohorts bound how far one client moves a noised mean. With it on, two federations of
one seed play the same rounds from the same models and release the same sums, one with noise and one without: the
difference of an accounted figure is its noise, measured in units of the std that its charge implies. That noise must be
another one in every round, run and figure, and another one than that of the updates. Every figure needs a charge of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats

from fl_core.audit.bounds import Measurement, censored_spread
from fl_core.audit.findings import Finding
from fl_core.audit.neighbours import Neighbours, without_noise
from fl_core.audit.sensitivity import TOLERANCE
from fl_core.audit.staging import StagedFederation, audit_seeds
from fl_core.base.arrays import FloatArray
from fl_core.privacy.telemetry import PER_LAYER, TELEMETRY, by_figure
from fl_core.run.charging import RISK
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan, RoundReport

SAMPLES = 96
"""Releases of each figure, over all rounds and runs, at least."""
MOST_ROUNDS = 24
MOST_FLOATS = 2**26
"""Numbers in the clients' tensors, at most, for which further runs are added to make up the samples."""
COMPARED = 2**12
"""Coordinates of the update whose noise is compared with a figure's, at most."""
STILL = 1e-30
"""Server learning rate at which the models stay where they are."""
RISK_FIGURE, RISK_DECADES = "risk_noised", 4.0
"""Figure of the noised mean risk, and decades around 1 that its logarithm is told within."""
ERROR = 1e-3
"""Probability of an alarm on true noise, half for its amounts and half for repetitions."""


@dataclass(frozen=True)
class FigureNoise:
    """Measurements of one accounted release.

    Attributes:
        moved: farthest that one client moves its sum, of claimed sensitivity 1.
        noise: std of its noise over the one that its charge implies; None where it was not charged.
    """

    moved: float
    noise: Measurement | None


@dataclass(frozen=True)
class TelemetryNoise:
    """Results of the attack on the accounted figures.

    Attributes:
        figures: of each release, by its name in the books.
        repeated: what shares noise, in words.
        samples: releases of each figure.
    """

    figures: Mapping[str, FigureNoise]
    repeated: tuple[str, ...]
    samples: int

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is not as charged."""
        found = [one for name, figure in self.figures.items() for one in _of_figure(name, figure)]
        found += [Finding("telemetry", "repeated", True, f"noise is shared by {one}") for one in self.repeated]
        return tuple(found)


def _of_figure(name: str, figure: FigureNoise) -> Iterator[Finding]:
    if figure.moved > 1 + TOLERANCE:
        text = f"one client moves the sum behind {name} by {figure.moved:.3g} times its sensitivity"
        yield Finding("telemetry", "sensitivity", True, text)
    if figure.noise is None:
        yield Finding("telemetry", "uncharged", True, f"{name} is released without a charge")
    elif figure.noise.high < 1:
        text = f"{name} has {figure.noise.value:.3g} of the noise that is charged"
        yield Finding("telemetry", "little", True, text)
    elif figure.noise.low > 1:
        text = f"{name} has {figure.noise.value:.3g} times the noise that is charged"
        yield Finding("telemetry", "much", False, text)


def attack_telemetry(config: FederationConfig, clip_norm: float, seed: int) -> TelemetryNoise | None:
    """Bound the sensitivity of every accounted figure and measure its noise; None where there is none.

    Args:
        config: the federation as it is to run.
        clip_norm: C.
        seed: of the runs and the updates.
    """
    pair = _Pair(config, clip_norm, seed)
    if not pair.names:
        return None
    pair.play()
    moved = _moved(config, clip_norm, seed, pair.names)
    noises = pair.noises()
    figures = {name: FigureNoise(moved.get(name, 0.0), noises[name]) for name in pair.names}
    return TelemetryNoise(figures, tuple(pair.repeated()), pair.samples)


# --- Sums behind figures ------------------------------------------------------------------------------------------


def accounted(report: RoundReport) -> dict[str, list[str]]:
    """Map the releases behind a report's accounted figures to these figures' names."""
    found: dict[str, list[str]] = {}
    for figure in report.figures:
        if report.signal_class(figure) == "accounted":
            one = by_figure(figure)
            names = [name for name, telemetry in TELEMETRY.items() if telemetry is one]
            name = RISK if figure == RISK_FIGURE else (*names, figure)[0]
            found.setdefault(name, []).append(figure)
    return found


def sums(federation: StagedFederation, report: RoundReport, figures: list[str]) -> FloatArray:
    """Recover the noised sums, of sensitivity 1, behind the figures of one release `[runs, values]`."""
    values = np.stack([report.figures[figure] for figure in figures], axis=-1)
    if figures == [RISK_FIGURE]:
        return np.asarray(np.log10(values) / RISK_DECADES * federation.config.cohort)
    one = by_figure(figures[0])
    assert one is not None
    neutral = one.low if PER_LAYER in figures[0] else (one.low + one.high) / 2
    shares = federation.charging.client_shares()
    clients = np.full(federation.runs, float(federation.config.clients)) if shares is None else shares.sum(-1)
    expected = clients * federation.config.cohort / federation.config.clients
    return np.asarray((values - neutral) / (one.high - neutral) * expected[:, None])


def quiet(config: FederationConfig) -> FederationConfig:
    """Turn off all noise, but go on telling what the telemetry tells."""
    bought = config.telemetry_share > 0 or config.bit_noise > 0
    return replace(without_noise(config), telemetry_share=0.1 if bought else 0.0)


def _moved(config: FederationConfig, clip_norm: float, seed: int, names: list[str]) -> dict[str, float]:
    """Find the farthest that one client moves each sum, between neighbouring cohorts with the noise off."""
    neighbours = Neighbours(quiet(config), clip_norm, seed)
    worst: dict[str, float] = {}
    for whole, less in neighbours.pairs(("own", "still", "alone"), silent=False):
        for name, figures in accounted(whole.report).items():
            if name in names:
                before, after = (sums(neighbours.federation, one.report, figures) for one in (whole, less))
                worst[name] = max(worst.get(name, 0.0), float(np.linalg.norm(before - after)))
    return worst


# --- Noise --------------------------------------------------------------------------------------------------------


class _Pair:
    """Two federations of the same seeds and sums, one of them without noise."""

    def __init__(self, config: FederationConfig, clip_norm: float, seed: int):
        self._config, self._clip = config, clip_norm
        probe = StagedFederation(config, audit_seeds(seed, 1))
        self._rounds = min(config.rounds, MOST_ROUNDS)
        room = MOST_FLOATS // (config.clients * probe.model.size)
        self._seeds = audit_seeds(seed, max(1, min(-(-SAMPLES // self._rounds), room)))
        report, *_ = probe.play(RoundPlan.constant(1, clip_norm))
        self.names = list(accounted(report))
        self._noise: dict[str, list[FloatArray]] = {name: [] for name in self.names}
        self._limits: dict[str, list[FloatArray]] = {name: [] for name in self.names}
        self._uncharged: set[str] = set()
        self._updates: list[FloatArray] = []

    @property
    def samples(self) -> int:
        """Releases of each figure."""
        return len(self._updates) * len(self._seeds)

    def play(self) -> None:
        """Gather the noise of every figure over rounds in which models stay where they are."""
        loud, silent = (StagedFederation(one, self._seeds) for one in (self._config, quiet(self._config)))
        for index in range(self._rounds):
            plan = replace(loud.varied_plan(self._clip, index), server_learning_rate=np.full(loud.runs, STILL))
            report, cohort, _, released = loud.play(plan)
            if report.refused.any():
                return
            silent.replayed = released
            bare = replace(RoundPlan.constant(loud.runs, 1.0, STILL), clip_norm=plan.clip_norm)
            true, *_ = silent.play(bare)
            size = released.total.shape[-1]
            places = torch.linspace(0, size - 1, min(size, COMPARED)).long()
            self._updates.append(released.total[:, places].to("cpu", torch.float64).numpy())
            sizes = np.maximum(cohort.sizes, 1.0)
            for name, figures in accounted(report).items():
                self._add(name, loud, sums(loud, report, figures), sums(silent, true, figures), sizes)

    def _add(
        self, name: str, federation: StagedFederation, told: FloatArray, true: FloatArray, sizes: FloatArray
    ) -> None:
        """Standardise the noise of a round by its charge; uncharged noise is left as it is."""
        charged = [_charged(federation, row, name) for row in range(federation.runs)]
        if None in charged:
            self._uncharged.add(name)
        std = np.array([one or 1.0 for one in charged])
        if self._config.placement == "local":
            std = std * np.sqrt(sizes)
        self._noise[name].append((told - true) / std[:, None])
        reach = self._config.cohort if name == RISK else math.inf  # the mean risk is cut off at -1 and 1
        limit = (reach - np.abs(true)) / std[:, None]
        self._limits[name].append(np.where(np.isfinite(limit), limit, np.inf))

    def noises(self) -> dict[str, Measurement | None]:
        """Std of every figure's noise over the charged one."""
        error = ERROR / 2 / len(self.names)
        found: dict[str, Measurement | None] = {}
        for name in self.names:
            noise, limits = np.concatenate(self._noise[name]).ravel(), np.concatenate(self._limits[name]).ravel()
            found[name] = None if name in self._uncharged else censored_spread(noise, limits, error)
        return found

    def repeated(self) -> Iterator[str]:
        """Name what shares noise: rounds, runs, figures of a round, or a figure and its update."""
        columns = {name: np.stack(self._noise[name]) for name in self.names}  # [rounds, runs, values]
        named = [(name, columns[name][..., index]) for name in self.names for index in range(columns[name].shape[-1])]
        updates = np.stack(self._updates)
        tests = len(named) * (2 * self._rounds + len(named) + updates.shape[-1])
        limit = float(stats.norm.isf(ERROR / 4 / tests))
        seen = set()
        for index, (name, noise) in enumerate(named):
            if any(_shared(noise[lag:], noise[:-lag]) > limit for lag in range(1, len(noise))):
                seen.add(f"rounds of {name}")
            if any(_shared(noise[:, 1:], noise[:, :-1]) > limit for _ in noise[:1, 1:]):
                seen.add(f"runs of {name}")
            for other, rival in named[index + 1 :]:
                if _shared(noise, rival) > limit:
                    seen.add(f"{name} and {other}" if other != name else f"the values of {name}")
            if float(_shared(noise[..., None], updates).max()) > limit:
                seen.add(f"{name} and the update")
        yield from sorted(seen)


def _shared(one: FloatArray, other: FloatArray) -> FloatArray:
    """Deviate of the correlation of two arrays over their first two dimensions; normal where they are independent."""
    products = one * other
    deviate = np.abs(products.sum((0, 1))) / np.maximum(np.sqrt((products**2).sum((0, 1))), 1e-300)
    return np.asarray(deviate)


def _charged(federation: StagedFederation, row: int, name: str) -> float | None:
    """Noise multiplier that the books of a run were told for a release of the last round; None for none."""
    charge = federation.charging.budgets[row].charges[-1]
    told = [one.noise_multiplier for one in charge.releases if one.name == name]
    return told[0] if charge.round == federation.rounds[row] - 1 and told else None
