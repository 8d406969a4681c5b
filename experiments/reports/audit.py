"""Report of an audit: lines for the terminal, values for JSON, and a page of Markdown."""

from __future__ import annotations

from typing import Any

from experiments.records.privacy import PrivacyReport
from experiments.reports.tables import Table
from experiments.reports.words import delta_text
from fl_core.audit.audit import Audit
from fl_core.audit.bounds import Measurement
from fl_core.audit.canaries import CanaryScores
from fl_core.base.files import spelled_out


def facts(audit: Audit, privacy: PrivacyReport) -> list[tuple[str, str]]:
    """List the results of an audit as (name, value) in words."""
    canaries, noise = audit.canaries, audit.noise
    claimed = f"{audit.claimed_epsilon:.4g} at δ {delta_text(privacy.delta)}, after {canaries.rounds} rounds"
    lines = [("claimed ε", claimed), ("certified ε", _certified(privacy)), *privacy.views()]
    if privacy.uncovered:
        lines.append(("uncovered", "; ".join(privacy.uncovered)))
    lines += [
        ("sensitivity", _sensitivity(audit)),
        (
            "noise",
            f"{noise.least.value:.3f} to {noise.most.value:.3f} of the claim by layer, {noise.lowest:.2f} to "
            f"{noise.highest:.2f} by coordinate ({noise.samples} releases); "
            + ("REPEATED between releases" if noise.repeated else "another in every release"),
        ),
        (
            "canaries",
            f"{int(canaries.included.sum())} in, {int((~canaries.included).sum())} out, over {canaries.runs} "
            f"run{'s' * (canaries.runs > 1)}, looked for in {canaries.what}",
        ),
        ("measured μ", f"{_interval(canaries.measured)}, claimed {canaries.mu:.3g}"),
        ("spread of out", f"{_interval(canaries.spread)} times the claimed noise"),
        ("one-run bound", _bounds(audit.canaries)),
    ]
    if audit.again is not None:
        again = audit.again
        text = f"μ {_interval(again.measured)}, spread {_interval(again.spread)}, {_bounds(again)}"
        lines.append(("new canaries", text))
    return lines


def notes(audit: Audit) -> list[str]:
    """List the remarks on the measurement that a reader needs to interpret it."""
    config = audit.federation.config
    found = []
    if config.accounting_rate < 1:
        found.append(
            "Cohorts are secret samples: μ is measured over the rounds a canary was drawn for, where the claim is "
            "√Σ1/σ², and shown as if it took part in every round (q = 1); what sampling adds to the protection is in ε "
            "alone, and only the one-run bound, which does not know the cohorts, is comparable with ε."
        )
    if config.placement == "local" and audit.canaries.what == "the released sum":
        found.append(
            "Noise is local: uploads are not made one by one, so canaries are looked for in the sum, where the claim "
            "is √Σ1/(mσ²)."
        )
    if audit.again is not None:
        found.append("The first canaries raised an alarm; only what as many new ones raised again counts.")
    return found


def as_json(audit: Audit, privacy: PrivacyReport) -> dict[str, Any]:
    """Collect all results as JSON values."""
    values = {
        "verdict": audit.verdict,
        "leaks": audit.leaks,
        "findings": [{"attack": one.attack, "leak": one.leak, "text": one.text} for one in audit.findings],
        "claimed_epsilon": audit.claimed_epsilon,
        "privacy": privacy.as_json(),
        "sensitivity": vars(audit.sensitivity),
        "noise": {
            "layers": {name: vars(layer) for name, layer in zip(audit.noise.names, audit.noise.layers, strict=True)},
            "lowest_coordinate": audit.noise.lowest,
            "highest_coordinate": audit.noise.highest,
            "repeated": audit.noise.repeated,
            "largest_correlation": audit.noise.correlation,
            "releases": audit.noise.samples,
        },
        "canaries": _canaries_json(audit.canaries),
        "new_canaries": None if audit.again is None else _canaries_json(audit.again),
        "notes": notes(audit),
    }
    spelled: dict[str, Any] = spelled_out(values)
    return spelled


def _canaries_json(canaries: CanaryScores) -> dict[str, Any]:
    return {
        "mu_claimed": canaries.mu,
        "mu_measured": vars(canaries.measured),
        "spread_excluded": vars(canaries.spread),
        "spread_of_included_over_excluded": canaries.differs,
        "one_run_epsilon": canaries.one_run,
        "gaussian_epsilon": canaries.gaussian,
        "seen_in": canaries.what,
        "rounds": canaries.rounds,
        "runs": canaries.runs,
        "scores": canaries.scores.tolist(),
        "lengths": canaries.lengths.tolist(),
        "included": canaries.included.tolist(),
    }


def page(audit: Audit, privacy: PrivacyReport, title: str, setting: list[str], figure: str, command: str) -> str:
    """Write a page of Markdown about the audit of one method."""
    table = Table(("", " "), tuple(facts(audit, privacy)), words=(" ",))
    lines = [
        f"# {title}",
        "",
        f"**{audit.verdict}**",
        "",
        table.markdown(),
        "",
        f"![Scores of canaries that are out and in]({figure})",
        "",
        *[f"{note}\n" for note in notes(audit)],
        "The claim is the paper's: no client moves the sum by more than C, and the noise has std Cσ in every",
        "coordinate. Certified is what our ledger counts for the noise that is really there; it is none where",
        "something is released without noise. The audit replaces local training by attacks: data and accuracy play no",
        "part in it.",
        "",
        "Setting: " + "; ".join(setting) + ".",
        "",
        "```",
        command,
        "```",
        "",
    ]
    return "\n".join(lines)


def _certified(privacy: PrivacyReport) -> str:
    alone = f"the noise on the updates alone: {privacy.updates_only:.4g}"
    if privacy.certified is None:
        return f"none ({alone})"
    return f"{privacy.certified:.4g}" + (f" ({alone})" if privacy.guarantee != "sound" else "")


def _sensitivity(audit: Audit) -> str:
    measured = audit.sensitivity
    parts = [f"one client moves the sum by {measured.total:.3f} C"]
    if measured.mean is not None:
        parts.append(f"the mean by {measured.mean:.3f} C over the expected cohort")
    if measured.uploads is not None:
        parts.append(f"single uploads are {measured.uploads:.3f} C long")
    return f"{', '.join(parts)} at worst ({measured.pairs} pairs)"


def _bounds(canaries: CanaryScores) -> str:
    text = f"ε ≥ {canaries.one_run:.3g} by the coins alone (95 %, Steinke et al. 2023)"
    if canaries.gaussian is not None:
        text += f", {canaries.gaussian:.3g} for normal scores"
    return text


def _interval(estimate: Measurement) -> str:
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
