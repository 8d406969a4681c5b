"""Audit of a configuration: three attacks on its real rounds, and their findings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fl_core.audit.canaries import CanaryScores, attack_canaries
from fl_core.audit.noise import Noise, attack_noise
from fl_core.audit.sensitivity import TOLERANCE, Sensitivity, attack_sensitivity
from fl_core.audit.staging import StagedFederation
from fl_core.base.errors import require, require_count, require_positive
from fl_core.run.config import FederationConfig

AGAIN = 2**31
"""Offset of the seed of new canaries."""


@dataclass(frozen=True)
class Finding:
    """A property of the mechanism that is not as claimed.

    Attributes:
        attack: `sensitivity`, `noise` or `canaries`.
        topic: property that is off; an alarm of canaries counts where new ones raise it again.
        leak: True if clients are protected less than claimed; otherwise there is more noise than claimed.
        text: the finding in words.
    """

    attack: str
    topic: str
    leak: bool
    text: str


@dataclass(frozen=True)
class Audit:
    """Results of the three attacks.

    Attributes:
        sensitivity, noise, canaries: of each attack.
        again: scores of as many new canaries, where the first raised an alarm; else None.
        claimed_epsilon: ε that the rounds of the canary attack claim to have spent.
        federation: federation of the canary attack, with its books.
    """

    sensitivity: Sensitivity
    noise: Noise
    canaries: CanaryScores
    again: CanaryScores | None
    claimed_epsilon: float
    federation: StagedFederation = field(repr=False)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is not as claimed, leaks first."""
        found = [*_of_sensitivity(self.sensitivity), *_of_noise(self.noise), *self._of_canaries()]
        if self.noise.repeated:  # what looks like more noise then is the same one over and over
            found = [one for one in found if one.leak or one.topic == "wide"]
        return tuple(sorted(found, key=lambda one: not one.leak))

    def _of_canaries(self) -> list[Finding]:
        """Collect the findings of the canaries that new canaries repeat."""
        found = list(_of_canaries(self.canaries, self.claimed_epsilon))
        if self.again is None:
            return found
        topics = {one.topic for one in _of_canaries(self.again, self.claimed_epsilon)}
        return [one for one in found if one.topic in topics]

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Disclosures of the method that no noise covers; they need no attack."""
        config = self.federation.config
        varies = config.sampling == "poisson" and config.sampling_rate < 1
        return self.federation.recipe.uncovered(config.placement, varies)

    @property
    def leaks(self) -> bool:
        """True if clients are protected less than claimed."""
        return any(one.leak for one in self.findings)

    @property
    def verdict(self) -> str:
        """The result in one plain sentence."""
        leaks = [one.text for one in self.findings if one.leak]
        others = [one.text for one in self.findings if not one.leak]
        if leaks:
            return f"Not as claimed: {'; '.join(leaks)}."
        if others:
            return f"No leak found, but the mechanism is not what it says: {'; '.join(others)}."
        if self.uncovered:
            return f"No leak found in the noised updates; released without noise: {'; '.join(self.uncovered)}."
        return "No leak found: what the rounds release is what they claim."


def audit(config: FederationConfig, clip_norm: float, canaries: int = 200, seed: int = 0) -> Audit:
    """Attack the rounds of a configuration.

    Args:
        config: the federation as it is to run, with all its rounds.
        clip_norm: C.
        canaries: number of clients with secret directions, spread over as many runs of the federation as it takes.
        seed: of everything random.

    Raises:
        InputError: the method releases nothing, or claims nothing, or a value is out of range.
    """
    require_count("seed", seed, least=0)
    require_count("canaries", canaries)
    require_positive("clip_norm", clip_norm)
    require_claim(config)
    config = replace(config, update_scale=1.0)  # what is measured is measured in the model's own units
    measured, federation = attack_canaries(config, clip_norm, canaries, seed)
    claimed = federation.charging.budgets[0].epsilon_spent()
    again = None
    if any(_of_canaries(measured, claimed)):  # one audit in twenty would raise a false alarm
        again, _ = attack_canaries(config, clip_norm, canaries, seed + AGAIN)
    return Audit(
        sensitivity=attack_sensitivity(config, clip_norm, seed),
        noise=attack_noise(config, clip_norm, seed),
        canaries=measured,
        again=again,
        claimed_epsilon=claimed,
        federation=federation,
    )


def require_claim(config: FederationConfig) -> None:
    """Refuse a configuration without a claim that an audit could test."""
    recipe = config.recipe()
    require(
        recipe.exchanges, f"method is '{config.method}', which releases nothing, so that there is nothing to audit."
    )
    require(
        recipe.private,
        f"method is '{config.method}', which neither clips nor adds noise: it claims no epsilon that could be audited.",
    )
    require(
        math.isfinite(config.epsilon), "epsilon is inf, so that there is no claim to audit; set it to a finite number."
    )


def _of_sensitivity(measured: Sensitivity) -> Iterator[Finding]:
    limit = 1 + TOLERANCE
    if measured.total > limit:
        text = f"one client moves the released sum by {measured.total:.3g} times C"
        yield Finding("sensitivity", "sum", True, text)
    if measured.mean is not None and measured.mean > max(limit, measured.total * limit):
        text = f"one client moves the server's mean by {measured.mean:.3g} times C over the expected cohort"
        yield Finding("sensitivity", "mean", True, text)
    if measured.uploads is not None and measured.uploads > limit:
        yield Finding("sensitivity", "uploads", True, f"uploads are up to {measured.uploads:.3g} times C long")


def _of_noise(measured: Noise) -> Iterator[Finding]:
    least, most = measured.least, measured.most
    if least.high < 1:
        name = measured.names[measured.layers.index(least)]
        yield Finding("noise", "little", True, f"layer {name} has {least.value:.3g} of the claimed noise")
    if measured.some_low and measured.lowest < 0.9 * min(1.0, least.value):
        text = f"some coordinates have {measured.lowest:.2g} of the claimed noise"
        yield Finding("noise", "coordinates", True, text)
    if measured.repeated:
        text = f"different releases share their noise (correlation {measured.correlation:.2g})"
        yield Finding("noise", "repeated", True, text)
    if most.low > 1:
        name = measured.names[measured.layers.index(most)]
        yield Finding("noise", "much", False, f"layer {name} has {most.value:.3g} times the claimed noise")


def _of_canaries(canaries: CanaryScores, claimed_epsilon: float) -> Iterator[Finding]:
    mu, spread = canaries.measured, canaries.spread
    interval = f"canaries measure μ {mu.value:.3g} ({mu.low:.3g} to {mu.high:.3g}) where {canaries.mu:.3g} is claimed"
    if canaries.signal.low > 1:
        text = f"{interval}, so the noise covers a client {canaries.signal.value:.3g} times less"
        yield Finding("canaries", "strong", True, text)
    if canaries.signal.high < 1:
        yield Finding("canaries", "weak", False, f"{interval}, so there is more noise than that")
    width = f"scores of excluded canaries spread {spread.value:.3g} times as wide as the claimed noise"
    if spread.high < 1:
        yield Finding("canaries", "narrow", True, width)
    if spread.low > 1:
        yield Finding("canaries", "wide", False, f"{width}: there is more of it, or rounds share theirs")
    if canaries.differs is not None:
        text = f"some clients count for more than others: included scores spread {canaries.differs:.3g} times as wide"
        yield Finding("canaries", "unequal", True, text)
    for bound, how in ((canaries.one_run, "coins alone"), (canaries.gaussian, "normal scores")):
        if bound is not None and bound > claimed_epsilon:
            text = f"ε is at least {bound:.3g} by {how}, above the claimed {claimed_epsilon:.3g}"
            yield Finding("canaries", how, True, text)
