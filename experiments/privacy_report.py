"""What a run's epsilon is worth: spent or claimed, certified, seen in single uploads, and what no noise covers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from envs import EnvCore
from fl_core.config import FederationConfig
from fl_core.files import spelled_out

SMALL_DELTA = 1e-5


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy of one run.

    Attributes:
        guarantee: `sound` or `as-published`.
        target: ε asked for.
        delta: δ.
        spent: ε of the rounds done, by the ledger where sound, by the paper's accounting where as published.
        accountant: how `spent` was counted.
        certified: ε that holds for everything the run gave away; None where something is uncovered.
        updates_only: ε that the noise on the updates certifies, whatever else is uncovered.
        uploads_view: for `distributed` noise, ε against a server that sees single uploads; None elsewhere.
        at_small_delta: `updates_only` at δ = 1e-5, where the run's δ is above that and promises little; else None.
        uncovered: what the run gives away without noise.
    """

    guarantee: str
    target: float
    delta: float
    spent: float
    accountant: str
    certified: float | None
    updates_only: float
    uploads_view: float | None
    at_small_delta: float | None
    uncovered: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """JSON-able values; what is not finite is spelled out."""
        values: dict[str, Any] = spelled_out(asdict(self))
        return values

    def lines(self) -> list[str]:
        """What `dpilot run` prints."""
        if self.guarantee == "sound":
            lines = [
                f"epsilon            {self.spent:.4g} spent of {self.target:g} at delta {self.delta:g} "
                f"({self.accountant})"
            ]
        else:
            certified = "none" if self.certified is None else f"{self.certified:.4g}"
            lines = [
                f"claimed epsilon    {self.spent:.4g} of {self.target:g} at delta {self.delta:g} ({self.accountant})",
                f"certified epsilon  {certified} (the noise on the updates alone: {self.updates_only:.4g})",
                f"uncovered          {'; '.join(self.uncovered) or 'nothing'}",
            ]
        if self.at_small_delta is not None:
            lines.append(f"at delta {SMALL_DELTA:g}     {self.at_small_delta:.4g} by the noise on the updates")
        if self.uploads_view is not None:
            lines.append(f"single uploads     {self.uploads_view:.4g} against a server that sees them one by one")
        return lines


def uncovered_releases(config: FederationConfig) -> tuple[str, ...]:
    """What a configuration's method gives away without noise."""
    cohort_varies = config.sampling == "poisson" and config.sampling_rate < 1
    return config.recipe().uncovered(config.placement, cohort_varies)


def privacy_report(core: EnvCore, row: int) -> PrivacyReport:
    """The privacy of a run as it stands."""
    federation = core.federation
    config, charging = federation.config, federation.charging
    budget, published = charging.budgets[row], config.guarantee == "as-published"
    charged = bool(charging.ledgers[row].charges)
    spent = budget.epsilon_spent() if charged or not federation.recipe.exchanges else 0.0
    if federation.recipe.exchanges and not federation.recipe.private:
        spent = math.inf if federation.rounds[row] else 0.0
    uncovered = uncovered_releases(config)
    raw = tuple(feature.name for feature in core.features if feature.signal_class == "raw")
    if raw:
        uncovered = (*uncovered, f"exact figures that the controller saw: {', '.join(raw)}")
    updates = charging.certified(row) if published and federation.recipe.private else spent
    # As published each client adds its share of the noise, whatever the placement is called.
    shared_noise = federation.recipe.private and (config.placement == "distributed" or published)
    uploads = None
    if shared_noise and config.placement != "local" and charged and math.isfinite(updates):
        uploads = charging.certified(row, uploads=1 / math.sqrt(max(1.0, config.cohort)))
    small = None
    if charged and config.delta > SMALL_DELTA and math.isfinite(updates):
        small = charging.certified(row, delta=SMALL_DELTA)
    return PrivacyReport(
        guarantee=config.guarantee,
        target=budget.epsilon,
        delta=config.delta,
        spent=spent,
        accountant=budget.accountant,
        certified=None if uncovered else updates,
        updates_only=updates,
        uploads_view=uploads,
        at_small_delta=small,
        uncovered=uncovered,
    )
