"""Estimate of the clients' median update norm, by Bayes' rule from what rounds release.

A round at clip norm C tells the share of clients within C, with Gaussian noise of known scale. Let clients' norms be
log-normal with median m and width s. Then that share has the mean Φ(ln(C/m)/s), and each noised share multiplies the
probability of every (m, s) on a grid by its likelihood. The prior of m is centred at the calibrated norm (length of an
update on random data), so that nothing private enters but what the ledger was charged for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fl_core.base.libraries import numpy as np
from fl_core.base.libraries import special
from fl_core.privacy.telemetry import CLIP_BIT, TELEMETRY, parse_telemetry
from fl_core.run.config import FederationConfig
from fl_core.run.plan import FloatArray, RoundPlan, RoundReport

REACH = 60.0
"""The grid goes from the calibrated norm over this factor to the calibrated norm times it."""
POINTS = 165
"""Medians on the grid, each 5 % above the one before."""
WIDTHS = (0.15, 0.3, 0.6)
"""Standard deviations s of the logarithm of the clients' norms, equally likely at first."""
PRIOR = 1.2
"""Standard deviation of the logarithm of the median around the calibrated norm, before anything is released."""
DRIFT = 0.02
"""Standard deviation by which the logarithm of the median moves from round to round."""
SHARE = TELEMETRY[CLIP_BIT].figure


class MedianNorm:
    """Posterior of the median update norm of every run of a batch.

    Attributes:
        calibrated: centre of the prior `[runs]`.
    """

    def __init__(self, config: FederationConfig, runs: int, uses_bit: bool):
        """Start at the prior around 1.

        Args:
            config: settings of the runs.
            runs: how many.
            uses_bit: whether the released share of unclipped clients may be used, where rounds pay for it.
        """
        self._config, self._uses_bit = config, uses_bit
        self._offsets = np.linspace(-math.log(REACH), math.log(REACH), POINTS)
        self.calibrated = np.ones(runs)
        self._cohorts = np.full(runs, float(config.cohort))
        self._log = np.zeros((runs, POINTS, len(WIDTHS)))
        self.reset(range(runs), self.calibrated, self._cohorts)

    def reset(self, rows: Sequence[int], calibrated: FloatArray, cohorts: FloatArray) -> None:
        """Start some runs anew, at the prior around their calibrated norms `[runs]`.

        Args:
            rows: their places.
            calibrated: lengths of an update on random data `[runs]`.
            cohorts: expected clients per round `[runs]`.
        """
        rows = list(rows)
        self.calibrated[rows], self._cohorts[rows] = calibrated[rows], cohorts[rows]
        self._log[rows] = -0.5 * (self._offsets[:, None] / PRIOR) ** 2

    @property
    def probabilities(self) -> FloatArray:
        """Posterior of the median on the grid `[runs, points]`, which sums to 1."""
        joint = np.exp(self._log - self._log.max(axis=(1, 2), keepdims=True))
        marginal = joint.sum(axis=2)
        return np.asarray(marginal / marginal.sum(axis=1, keepdims=True))

    @property
    def median(self) -> FloatArray:
        """Posterior geometric mean of the median norm `[runs]`."""
        return np.asarray(self.calibrated * np.exp(self.probabilities @ self._offsets))

    @property
    def spread(self) -> FloatArray:
        """Posterior standard deviation of its logarithm `[runs]`."""
        known = self.probabilities
        mean = known @ self._offsets
        return np.asarray(np.sqrt(np.maximum(known @ self._offsets**2 - mean**2, 0.0)))

    def observe(self, plan: RoundPlan, report: RoundReport) -> None:
        """Take in what a round released, if it paid for the share of unclipped clients."""
        share, noise = report.figures.get(SHARE), report.figures.get("noise_multiplier")
        if not self._uses_bit or share is None or noise is None:
            return
        std = self.share_std(plan, noise)
        known = report.ran & np.isfinite(share) & np.isfinite(std) & (noise > 0)
        if not known.any():
            return
        clip = np.where(known, report.figures["clip_norm"], 1.0)
        place = np.log(clip / self.calibrated)[:, None, None] - self._offsets[:, None]
        expected = special.ndtr(place / np.array(WIDTHS))
        variance = (
            np.where(known, std, 1.0)[:, None, None] ** 2 + expected * (1 - expected) / self._cohorts[:, None, None]
        )
        error = np.where(known, share, 0.0)[:, None, None] - expected
        moved = self._drifted() - 0.5 * error**2 / variance - 0.5 * np.log(variance)
        self._log = np.where(known[:, None, None], moved, self._log)

    def share_std(self, plan: RoundPlan, noise_multiplier: FloatArray) -> FloatArray:
        """Compute the standard deviation of the released share `[runs]` around that of all clients; infinite for none.

        Args:
            plan: of the round, which may set the part of its privacy that telemetry has.
            noise_multiplier: of the round's update `[runs]`.
        """
        config, cohorts = self._config, self._cohorts
        part = parse_telemetry(config.telemetry).get(CLIP_BIT, 0.0)
        telemetry = np.asarray(plan.settings.get("telemetry_share", config.telemetry_share), dtype=np.float64)
        bit = np.broadcast_to(telemetry * part, noise_multiplier.shape)
        with np.errstate(divide="ignore"):
            noise = noise_multiplier * np.sqrt((1 - telemetry) / bit)
        if config.bit_noise > 0:
            noise = np.full(noise_multiplier.shape, 2 * config.bit_noise)
        if config.placement == "local":
            noise = noise * np.sqrt(cohorts)
        missing = 1 - config.sampling_rate if config.cohort_varies else 0.0
        return np.asarray(0.5 * np.sqrt(noise**2 / cohorts**2 + missing / cohorts))

    def _drifted(self) -> FloatArray:
        """Spread the posterior by one round's drift of the median `[runs, points, widths]`, in logarithms."""
        step = self._offsets[1] - self._offsets[0]
        part = 0.5 * (DRIFT / step) ** 2
        before = np.exp(self._log - self._log.max(axis=(1, 2), keepdims=True))
        padded = np.pad(before, ((0, 0), (1, 1), (0, 0)), mode="edge")
        spread = (1 - 2 * part) * before + part * (padded[:, :-2] + padded[:, 2:])
        return np.asarray(np.log(np.maximum(spread, 1e-300)), dtype=np.float64)

    def state_dict(self) -> dict[str, FloatArray]:
        """Return its arrays by name, all `[runs, ...]`."""
        return {"calibrated": self.calibrated, "cohorts": self._cohorts, "log": self._log}

    def load_state_dict(self, state: Mapping[str, FloatArray]) -> None:
        """Continue where `state_dict` was taken."""
        self.calibrated, self._cohorts, self._log = (state[name].copy() for name in ("calibrated", "cohorts", "log"))
