"""Expected signal to noise of a private run, from its settings."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np

from fl_core.data.datasets import outline_of
from fl_core.run.calibration import Calibration, calibrate, calibrated_gradient
from fl_core.run.charging import UPDATE, Charging
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan


@dataclass(frozen=True)
class Signal:
    """What a run's updates can be told from its noise, whatever the clip norm C.

    With n clients per round whose clipped updates have the length C and add up to a·n·C (a is 1 for equal directions,
    1/√n for random ones), and noise of std Cσ in d coordinates, so of length Cσ√d, a round has the signal to noise
    a·n/(σ√d), and T rounds √T times as much, as noise adds up in squares and signal does not.

    Attributes:
        noise_multiplier: σ of a round's update.
        cohort: expected clients per round n.
        rounds: T.
        noised: coordinates with noise d.
        by_upload: True where every upload carries noise of std Cσ (placement local), so that the sum has √n times that.
        agreement: a.
    """

    noise_multiplier: float
    cohort: float
    rounds: int
    noised: float
    by_upload: bool = False
    agreement: float = 1.0

    @property
    def of_run(self) -> float:
        """Expected signal to noise of the whole run, a·Q."""
        return self.agreement * self.strength

    @property
    def expected_of_round(self) -> float:
        """Expected signal to noise of a round."""
        return self.agreement * self.of_round

    @property
    def strength(self) -> float:
        """Q = n √T/(σ √d): signal to noise of the whole run if all clients agreed."""
        return self.of_round * math.sqrt(self.rounds)

    @property
    def of_round(self) -> float:
        """n/(σ √d): signal to noise of a round if all clients agreed."""
        clients = math.sqrt(self.cohort) if self.by_upload else self.cohort
        return clients / (self.noise_multiplier * math.sqrt(self.noised))


@dataclass(frozen=True)
class Updates:
    """Length of the clients' updates on random data.

    Attributes:
        norm: of one, in the units of the configuration; the unit x of clip norms.
        step: over that of one gradient: how far the local work of a round goes.
        gradient: norm of a gradient, in the model's own units.
        noised: coordinates with noise d.
        size: parameters of the model.
        classes: of the dataset.
    """

    norm: float
    step: float
    gradient: float
    noised: float
    size: int
    classes: int

    @classmethod
    def of(cls, config: FederationConfig) -> Updates:
        """Simulate them for a configuration; `InputError` as `calibrate`."""
        found: Calibration = calibrate(config)
        classes = outline_of(config.dataset, config.data_root or None)[0].classes
        gradient = calibrated_gradient(config)
        own = gradient / config.update_scale
        return cls(found.norm, found.norm / gradient, own, found.noised, found.size, classes)


def noise_multiplier_of(config: FederationConfig) -> float:
    """Compute σ of the update in a round of a run whose noise nobody sets, as the ledger hands it out.

    At sampling rate 1 it follows from Gaussian DP, below by the privacy loss distribution of all rounds. What is paid
    for telemetry is taken off. Rounds of methods that share the budget unequally have the σ of equal 1/σ² in the mean.

    Raises:
        InputError: the budget is too small to be certified.
    """
    recipe, config = config.recipe(), _as_run(config)
    charging = Charging(config, recipe, [Charging.prepare(config, recipe, config.epsilon)])
    plan, one = RoundPlan.constant(1), np.array([True])
    rounds = 1 if recipe.mechanism.budget == "uniform" else config.rounds
    precision = 0.0
    for done in range(rounds):
        noise, _ = charging.charge(plan, one, np.array([done]), lambda row: 1.0)
        precision += float(noise[UPDATE][0]) ** -2
    return 1 / math.sqrt(precision / rounds)


def _as_run(config: FederationConfig) -> FederationConfig:
    return changed(config, noise_schedule=config.noise_schedule_as_run(controlled=False))


def changed(config: FederationConfig, **changes: object) -> FederationConfig:
    """Return the configuration with other values, its δ not warned of once more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replace(config, **changes)  # type: ignore[arg-type]


def signal_of(config: FederationConfig, noised: float, agreement: float = 1.0) -> Signal:
    """Compute the signal to noise that a configuration's uniform schedule has.

    Args:
        config: the configuration.
        noised: coordinates with noise d.
        agreement: norm of the mean clipped update over C.
    """
    noise = noise_multiplier_of(config)
    return Signal(noise, config.cohort, config.rounds, noised, config.placement == "local", agreement)
