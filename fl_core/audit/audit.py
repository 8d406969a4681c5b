"""Audit of a configuration: attacks on its real rounds, and their findings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fl_core.audit.canaries import CanaryScores, attack_canaries, canary_findings
from fl_core.audit.charges import Charges, attack_charges
from fl_core.audit.cohorts import CohortDraws, attack_cohorts
from fl_core.audit.findings import Finding
from fl_core.audit.noise import Noise, attack_noise
from fl_core.audit.public import PublicState, attack_public
from fl_core.audit.published import StatedClaim, stated_claims
from fl_core.audit.ranges import CANARIES
from fl_core.audit.sensitivity import Sensitivity, attack_sensitivity
from fl_core.audit.staging import StagedFederation
from fl_core.audit.telemetry import TelemetryNoise, attack_telemetry
from fl_core.base.errors import require
from fl_core.run.config import FederationConfig
from fl_core.run.plan import CLIP_NORM
from fl_core.run.ranges import SEED

ATTACKS = {
    "sensitivity": "one client with and without, the noise off",
    "noise": "rounds in which nobody uploads anything",
    "canaries": "clients with secret directions, looked for in what is released",
    "telemetry": "accounted figures beside the updates: sensitivity, noise, charges",
    "cohorts": "cohorts of many rounds against Poisson samples",
    "public": "other updates behind the same released sums",
    "charges": "the books against the noise that was drawn",
}
UNTRIED = (
    "the accountant's arithmetic but for lower bounds on ε",
    "the secrecy of seeds and cohorts",
    "floating-point and timing side channels",
    "what clients keep or show elsewhere, such as exact metrics in reports",
)
"""Parts of every claim that none of the attacks tries."""
AGAIN = 2**31
"""Offset of the seed of new canaries."""


@dataclass(frozen=True)
class Audit:
    """Results of the attacks.

    Attributes:
        sensitivity, noise, canaries, public, charges: of each attack.
        telemetry: of the attack on accounted figures; None where the rounds release none.
        cohorts: of the attack on cohorts; None where all clients take part in every round.
        first: scores of the canaries that raised an alarm, where as many new ones, `canaries`, were tried; else None.
        claimed_epsilon: ε that the rounds of the canary attack claim to have spent.
        federation: federation of the canary attack, with its books.
    """

    sensitivity: Sensitivity
    noise: Noise
    canaries: CanaryScores
    public: PublicState
    charges: Charges
    telemetry: TelemetryNoise | None
    cohorts: CohortDraws | None
    first: CanaryScores | None
    claimed_epsilon: float
    federation: StagedFederation = field(repr=False)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is not as claimed, leaks first."""
        others = (self.noise, self.telemetry, self.cohorts, self.public, self.charges)
        found = [*self.sensitivity.findings, *self._of_canaries()]
        found += [finding for one in others if one is not None for finding in one.findings]
        if self.noise.repeated:  # what looks like more noise then is the same one over and over
            found = [one for one in found if one.leak or one.topic == "wide"]
        return tuple(sorted(found, key=lambda one: (not one.leak, list(ATTACKS).index(one.attack))))

    def _of_canaries(self) -> list[Finding]:
        """Collect the findings of the canaries that new canaries repeat."""
        found = list(canary_findings(self.canaries, self.claimed_epsilon))
        if self.first is None:
            return found
        topics = {one.topic for one in canary_findings(self.first, self.claimed_epsilon)}
        return [one for one in found if one.topic in topics]

    @property
    def paper_claims(self) -> tuple[StatedClaim, ...]:
        """What the method's paper states of the noise of the canaries' rounds, by its own reckoning."""
        return stated_claims(self.federation)

    @property
    def not_attacked(self) -> tuple[str, ...]:
        """Parts of the claim that no attack tried on this configuration, as phrases."""
        config, noise, found = self.federation.config, self.federation.noise, list[str]()
        if self.telemetry is None:
            found.append("telemetry (none is bought)")
        if self.cohorts is None:
            found.append("sampling (all clients take part in every round)")
        elif self.cohorts.told == 1:
            found.append("which clients are drawn (no amplification is counted)")
        if noise.in_full and not noise.by_upload:
            found.append("single uploads (their noise is drawn for the sum at once)")
        elif noise.by_clients and not noise.in_full:
            found.append("single uploads (their ε is computed from the shares of the noise)")
        if config.client_budgets:
            found.append("the books of the clients' own budgets")
        if not self.charges.noise:
            found.append("the amount that is charged (nothing is noised)")
        if self.charges.rounds < self.canaries.rounds:
            found.append(f"the books after round {self.charges.rounds}")
        return (*found, *UNTRIED)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Disclosures of the method that no noise covers; they need no attack."""
        return self.federation.config.uncovered

    @property
    def leaks(self) -> bool:
        """True if clients are protected less than claimed."""
        return any(one.leak for one in self.findings)

    @property
    def verdict(self) -> str:
        """The result in words: what was found, and what was not attacked."""
        return f"{self._result()} Not attacked: {'; '.join(self.not_attacked)}."

    def _result(self) -> str:
        leaks = [one.text for one in self.findings if one.leak]
        others = [one.text for one in self.findings if not one.leak]
        if leaks:
            return f"Not as claimed: {'; '.join(leaks)}."
        if others:
            return f"No leak found, but the mechanism is not what it says: {'; '.join(others)}."
        if self.uncovered:
            return f"No leak found in what is noised; released without noise: {'; '.join(self.uncovered)}."
        return "No leak found: what the rounds release is what they claim and what the books were told."


def audit(config: FederationConfig, clip_norm: float, canaries: int = 200, seed: int = 0) -> Audit:
    """Attack the rounds of a configuration.

    Args:
        config: the federation as it is to run, with all its rounds; a noise schedule of auto is the one of a run whose
            noise no controller sets.
        clip_norm: C.
        canaries: number of clients with secret directions, spread over as many runs of the federation as it takes.
        seed: of everything random.

    Raises:
        InputError: the method releases nothing, or claims nothing, or a value is out of range.
    """
    SEED.check("seed", seed)
    CANARIES.check("canaries", canaries)
    CLIP_NORM.check("clip_norm", clip_norm)
    require_claim(config)
    config = replace(  # as a run whose noise no controller sets; measured in the model's own units
        config, noise_schedule=config.noise_schedule_as_run(controlled=False), update_scale=1.0
    )
    measured, federation = attack_canaries(config, clip_norm, canaries, seed)
    claimed = federation.charging.budgets[0].epsilon_spent()
    first = None
    if any(canary_findings(measured, claimed)):  # one audit in twenty would raise a false alarm
        first, (measured, _) = measured, attack_canaries(config, clip_norm, canaries, seed + AGAIN)
    return Audit(
        sensitivity=attack_sensitivity(config, clip_norm, seed),
        noise=attack_noise(config, clip_norm, seed),
        canaries=measured,
        public=attack_public(config, clip_norm, seed),
        charges=attack_charges(config, clip_norm, seed),
        telemetry=attack_telemetry(config, clip_norm, seed),
        cohorts=attack_cohorts(config, seed),
        first=first,
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
