"""Noise attack: measurement of the noise in rounds in which nobody uploads anything.

Clients train as in the canary attack, so that masks and risks are those of attacked clients; their uploads are
replaced by zero where they arrive. The release is then noise, and must have the claimed std in every layer and every
coordinate that the server receives, and be drawn anew in every round, run and coordinate. Clip norms and budgets change
from round to round, so that noise for those of another round shows.

In n releases a coordinate of d is found to have less than a part r of its noise where χ²_n at error/d is below n·r²: of
48 releases, at most 0.4 of the claimed std in a single one of a million coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fl_core.audit.bounds import Measurement, spread_interval
from fl_core.audit.claims import claimed_std, claimed_upload_std, received
from fl_core.audit.findings import Finding
from fl_core.audit.staging import Moves, StagedFederation, audit_seeds, saturated
from fl_core.base.arrays import FloatArray
from fl_core.base.streams import torch_generator
from fl_core.run.config import FederationConfig

SAMPLES = 48
"""Releases that are looked at, over all rounds and runs, at least."""
MOST_FLOATS = 2**26
"""Numbers in the clients' tensors, at most, for which further runs are added to make up the samples."""
COMPARED = 2**14
"""Coordinates whose noise is compared between rounds, at most."""
MOST_COMPARED = 160
"""Releases compared with each other, at most."""
ERROR = 1e-4
"""Probability of an alarm on true noise, a fifth each for layers, coordinates, rounds, repetitions and tiles."""


@dataclass(frozen=True)
class Noise:
    """Measurements of the noise.

    Attributes:
        layers: per layer, its std over the claimed one.
        names: of the layers.
        lowest, highest: std over the claimed one of the coordinates with least and most noise.
        some_low, some_high: True if those are beyond what chance explains.
        repeated: True if two releases share noise.
        correlation: the largest between two releases.
        rounds: std over the claimed one in every round.
        tiled: distance at which the coordinates of a release share noise; None where chance explains all.
        samples: number of releases.
    """

    layers: tuple[Measurement, ...]
    names: tuple[str, ...]
    lowest: float
    highest: float
    some_low: bool
    some_high: bool
    repeated: bool
    correlation: float
    rounds: tuple[Measurement, ...]
    tiled: int | None
    samples: int

    @property
    def least(self) -> Measurement:
        """Measurement of the layer with the least noise."""
        return min(self.layers, key=lambda one: one.value)

    @property
    def most(self) -> Measurement:
        """Measurement of the layer with the most noise."""
        return max(self.layers, key=lambda one: one.value)

    @property
    def too_low(self) -> bool:
        """True if there is less noise than claimed somewhere."""
        return self.some_low or any(one.high < 1 for one in (*self.layers, *self.rounds))

    @property
    def too_high(self) -> bool:
        """True if there is more noise than claimed somewhere."""
        return self.some_high or any(one.low > 1 for one in (*self.layers, *self.rounds))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything about the noise that is not as claimed."""
        return tuple(self._findings())

    def _findings(self) -> Iterator[Finding]:
        least, most = self.least, self.most
        if least.high < 1:
            name = self.names[self.layers.index(least)]
            yield Finding("noise", "little", True, f"layer {name} has {least.value:.3g} of the claimed noise")
        if self.some_low and self.lowest < 0.9 * min(1.0, least.value):
            text = f"some coordinates have {self.lowest:.2g} of the claimed noise"
            yield Finding("noise", "coordinates", True, text)
        few = min(self.rounds, key=lambda one: one.value)
        if few.high < 1 and few.value < 0.97 * min(1.0, least.value):
            text = f"round {self.rounds.index(few)} has {few.value:.3g} of the claimed noise"
            yield Finding("noise", "rounds", True, text)
        if self.repeated:
            text = f"different releases share their noise (correlation {self.correlation:.2g})"
            yield Finding("noise", "repeated", True, text)
        if self.tiled is not None:
            text = f"coordinates of a release that are {self.tiled} apart share their noise"
            yield Finding("noise", "tiled", True, text)
        if most.low > 1:
            name = self.names[self.layers.index(most)]
            yield Finding("noise", "much", False, f"layer {name} has {most.value:.3g} times the claimed noise")


def attack_noise(config: FederationConfig, clip_norm: float, seed: int) -> Noise:
    """Measure the noise over the rounds of as many runs as give enough samples.

    Args:
        config: the federation as it is to run.
        clip_norm: C.
        seed: of the runs.
    """
    federation = StagedFederation(config, audit_seeds(seed, 1))
    size = federation.model.size
    runs = max(1, min(-(-SAMPLES // config.rounds), MOST_FLOATS // (config.clients * size)))
    if runs > 1:
        federation = StagedFederation(config, audit_seeds(seed, runs))
    federation.shown[:] = False
    federation.moves = random_moves(federation, clip_norm, seed)
    gathered = _Gathered(federation)
    for index in range(min(config.rounds, SAMPLES)):
        report, _, cohorts, released = federation.play(federation.varied_plan(clip_norm, index))
        if report.refused.any():
            break
        if released.uploads is not None and config.noise_model().in_full:
            spread = claimed_upload_std(federation, cohorts)
            there = cohorts.present.unsqueeze(-1).expand_as(released.uploads)
            if cohorts.uploaded is not None:
                there = there & (cohorts.uploaded > 0)
            gathered.add((released.uploads / spread).flatten(0, 1), there.flatten(0, 1))
        else:
            gathered.add(released.total / claimed_std(federation, cohorts), received(federation, cohorts))
    return gathered.result()


def random_moves(federation: StagedFederation, clip_norm: float, seed: int) -> Moves:
    """Make moves of every client in a direction of its own, far longer than C."""
    size = federation.model.size

    def moves(run: Tensor, client: Tensor) -> Tensor:
        rows = []
        for one, other in zip(run.tolist(), client.tolist(), strict=True):
            stream = torch_generator(seed, "audit", 2 + one * federation.config.clients + other, federation.device)
            rows.append(torch.randn(size, generator=stream, device=federation.device))
        return 1000 * clip_norm * saturated(federation, torch.stack(rows))

    return moves


class _Gathered:
    """Squares of standardised noise by coordinate, and a selection of coordinates to compare between releases."""

    def __init__(self, federation: StagedFederation):
        self._model = federation.model
        size = self._model.size
        self._squares = torch.zeros(size, dtype=torch.float64, device=federation.device)
        self._counts = torch.zeros(size, dtype=torch.float64, device=federation.device)
        self._compared = torch.linspace(0, size - 1, min(COMPARED, size), device=federation.device).long()
        self._kept: list[Tensor] = []
        self._rounds: list[Measurement] = []
        self._error = ERROR / 5 / max(1, min(federation.config.rounds, SAMPLES))
        self._echo = torch.zeros(2, size // 2, dtype=torch.float64, device=federation.device)
        self._samples = 0

    def add(self, noise: Tensor, there: Tensor) -> None:
        """Add a round's releases `[n, size]`, and where something was received `[n, size]`."""
        some = there.any(-1)
        noise, there = torch.where(there, noise, 0.0)[some].to(torch.float64), there[some]
        squares, counts = noise.square().sum(0), there.sum(0)
        self._squares += squares
        self._counts += counts
        if bool(some.any()):
            self._rounds.append(spread_interval(float(squares.sum()), float(counts.sum()), self._error))
        room = max(0, MOST_COMPARED - sum(len(one) for one in self._kept))
        self._kept.append(noise[:room, self._compared])
        for row in noise[:room]:
            self._echo += torch.stack([_autocorrelation(row), _autocorrelation(row.square())])
        self._samples += len(noise)

    def result(self) -> Noise:
        """Compute the ratios to the claim, and test them."""
        squares, counts = self._squares.cpu().numpy(), self._counts.cpu().numpy()
        layers = [span for span in self._model.layers if counts[span.slice].sum() > 0]
        error = ERROR / 5 / len(layers)
        estimates = [spread_interval(squares[one.slice].sum(), counts[one.slice].sum(), error) for one in layers]
        seen = counts >= max(1.0, counts.max() / 4)
        ratios = np.sqrt(squares[seen] / counts[seen])
        error = ERROR / 10 / int(seen.sum())
        low = stats.chi2.cdf(squares[seen], counts[seen]).min() < error
        high = stats.chi2.sf(squares[seen], counts[seen]).min() < error
        correlation, repeated = _repeats(torch.cat(self._kept).to(torch.float64).cpu().numpy())
        return Noise(
            layers=tuple(estimates),
            names=tuple(span.name for span in layers),
            lowest=float(ratios.min()),
            highest=float(ratios.max()),
            some_low=bool(low),
            some_high=bool(high),
            repeated=repeated,
            correlation=correlation,
            rounds=tuple(self._rounds),
            tiled=None if repeated else self._tiled(),  # few different releases are no sample
            samples=self._samples,
        )

    def _tiled(self) -> int | None:
        """Find the distance at which coordinates of the same release share noise; None where chance explains all."""
        products, squares = self._echo.cpu().numpy()[:, 1:]
        deviates = np.abs(products) / np.sqrt(np.maximum(squares, 1.0))
        if not len(deviates) or deviates.max() < stats.norm.isf(ERROR / 10 / len(deviates)):
            return None
        return int(deviates.argmax()) + 1


def _autocorrelation(row: Tensor) -> Tensor:
    """Sum the products of coordinates `[size]` at every distance up to half of them `[size // 2]`."""
    spectrum = torch.fft.rfft(row, 2 * len(row))
    products: Tensor = torch.fft.irfft(spectrum.abs().square(), 2 * len(row))
    return products[: len(row) // 2]


def _repeats(noise: FloatArray) -> tuple[float, bool]:
    """Find the largest correlation between two rows; True if chance does not explain it."""
    if len(noise) < 2:
        return 0.0, False
    products, scale = noise @ noise.T, np.sqrt((noise**2) @ (noise**2).T)
    norms = np.linalg.norm(noise, axis=1)
    pairs = np.triu_indices(len(noise), 1)
    deviates = np.abs(products[pairs]) / np.maximum(scale[pairs], 1e-300)
    correlations = np.abs(products[pairs]) / np.maximum(np.outer(norms, norms)[pairs], 1e-300)
    limit = float(stats.norm.isf(ERROR / 10 / len(pairs[0])))
    return float(correlations.max()), bool(deviates.max() > limit)
