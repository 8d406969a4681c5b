"""Report of an audit: lines for the terminal, values for JSON, and a page of Markdown."""

from __future__ import annotations

from typing import Any

from experiments.records.privacy import PrivacyReport
from experiments.reports.tables import Table
from experiments.reports.words import delta_text
from fl_core.audit.audit import Audit
from fl_core.audit.bounds import Measurement
from fl_core.audit.canaries import CanaryScores
from fl_core.audit.charges import Charges
from fl_core.audit.cohorts import CohortDraws
from fl_core.audit.public import PublicState
from fl_core.audit.published import StatedClaim
from fl_core.base.files import spelled_out


def facts(audit: Audit, privacy: PrivacyReport) -> list[tuple[str, str]]:
    """List the results of an audit as (name, value) in words."""
    noise = audit.noise
    claimed = f"{audit.claimed_epsilon:.4g} at δ {delta_text(privacy.delta)}, after {audit.canaries.rounds} rounds"
    lines = [("claimed ε", claimed), ("certified ε", _certified(privacy)), ("ε holds for", privacy.basis)]
    lines += [("paper's own claim", _paper_claim(one)) for one in audit.paper_claims]
    lines += privacy.views()
    if privacy.uncovered:
        lines.append(("uncovered", "; ".join(privacy.uncovered)))
    lines += [
        ("sensitivity", _sensitivity(audit)),
        (
            "noise",
            f"{noise.least.value:.3f} to {noise.most.value:.3f} of the claim by layer, {noise.lowest:.2f} to "
            f"{noise.highest:.2f} by coordinate ({noise.samples} releases); "
            + ("REPEATED between releases" if noise.repeated else "another in every release")
            + ("" if noise.tiled is None else f", SHARED by coordinates {noise.tiled} apart"),
        ),
        ("telemetry", _telemetry(audit)),
        ("cohorts", _cohorts(audit)),
        ("public figures", _public(audit)),
        ("charges", _charges(audit)),
        *_canaries(audit),
    ]
    return lines


def _paper_claim(one: StatedClaim) -> str:
    claim = one.claim
    return (
        f"{one.stated:.4g} for {claim.unit}: {claim.name} ({claim.source}); that noise certifies {one.certified:.4g} "
        "for a client"
    )


def _canaries(audit: Audit) -> list[tuple[str, str]]:
    canaries = audit.canaries
    included = int(canaries.included.sum())
    where = f"over {canaries.runs} run{'s' * (canaries.runs > 1)}, looked for in {canaries.what}"
    return [
        ("canaries", f"{included} in, {len(canaries.included) - included} out, {where}"),
        ("measured μ", f"{_interval(canaries.measured)}, {_agreement(canaries.signal)} the claimed {canaries.mu:.3g}"),
        ("spread of out", f"{_interval(canaries.spread)} times the claimed noise, {_agreement(canaries.spread)} 1"),
        ("one-run bound", _bounds(audit)),
    ]


def _telemetry(audit: Audit) -> str:
    measured = audit.telemetry
    if measured is None:
        return "not attacked: none is bought"
    parts = [
        f"{name}: one client moves its sum by {one.moved:.3f}, "
        + ("NOT CHARGED" if one.noise is None else f"noise {_interval(one.noise)} of the charged")
        for name, one in measured.figures.items()
    ]
    shared = f"; noise SHARED by {', '.join(measured.repeated)}" if measured.repeated else ""
    return f"{'; '.join(parts)} ({measured.samples} releases){shared}"


def _cohorts(audit: Audit) -> str:
    drawn = audit.cohorts
    if drawn is None:
        return "not attacked: all clients take part in every round"
    told = f"rate {drawn.told:g} counted" if drawn.told < 1 else "no amplification counted"
    return (
        f"{drawn.rounds} drawn: clients in {drawn.least:.3g} to {drawn.most:.3g} of them ({told}), sizes vary "
        f"{drawn.spread:.3g} times as Poisson ones"
    )


def _public(audit: Audit) -> str:
    public = audit.public
    count = len(public.compared)
    answer = f"{len(public.differing)} of {count} DIFFER" if public.differing else f"all {count} the same"
    return f"{answer} for other updates with the same released sums ({public.rounds} rounds)"


def _charges(audit: Audit) -> str:
    charges = audit.charges
    answers = {True: "refused", False: "RELEASED"}
    parts = [f"a round beyond the budget: {answers[charges.refused]}"]
    if charges.kept is not None:
        parts.append(f"one of other noise than was fixed in advance: {answers[charges.kept]}")
    if charges.noise:
        parts.insert(0, f"noise at least {_interval(charges.least)} of the charge by round ({charges.rounds} rounds)")
        parts.insert(1, f"{charges.certified:.3g} times the noise that the ledger certifies is there")
    return "; ".join(parts)


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
    if audit.first is not None:
        first = audit.first
        found.append(
            f"First canaries (μ {_interval(first.measured)}, spread {_interval(first.spread)}) raised an alarm, as one "
            "audit in twenty does where all is as claimed; shown are as many new ones, and only what they raise again "
            "counts."
        )
    return found


def as_json(audit: Audit, privacy: PrivacyReport) -> dict[str, Any]:
    """Collect all results as JSON values."""
    values = {
        "verdict": audit.verdict,
        "leaks": audit.leaks,
        "findings": [{"attack": one.attack, "leak": one.leak, "text": one.text} for one in audit.findings],
        "claimed_epsilon": audit.claimed_epsilon,
        "paper_claims": [
            {
                "name": one.claim.name,
                "unit": one.claim.unit,
                "source": one.claim.source,
                "stated_epsilon": one.stated,
                "certified_epsilon": one.certified,
            }
            for one in audit.paper_claims
        ],
        "privacy": privacy.as_json(),
        "sensitivity": vars(audit.sensitivity),
        "noise": {
            "layers": {name: vars(layer) for name, layer in zip(audit.noise.names, audit.noise.layers, strict=True)},
            "lowest_coordinate": audit.noise.lowest,
            "highest_coordinate": audit.noise.highest,
            "repeated": audit.noise.repeated,
            "largest_correlation": audit.noise.correlation,
            "releases": audit.noise.samples,
            "rounds": [vars(one) for one in audit.noise.rounds],
            "distance_of_shared_noise": audit.noise.tiled,
        },
        "telemetry": _telemetry_json(audit),
        "cohorts": None if audit.cohorts is None else _plain(audit.cohorts),
        "public": _plain(audit.public),
        "charges": _plain(audit.charges) | {"noise": [vars(one) for one in audit.charges.noise]},
        "canaries": _canaries_json(audit.canaries),
        "first_canaries": None if audit.first is None else _canaries_json(audit.first),
        "not_attacked": list(audit.not_attacked),
        "notes": notes(audit),
    }
    spelled: dict[str, Any] = spelled_out(values)
    return spelled


def _telemetry_json(audit: Audit) -> dict[str, Any] | None:
    measured = audit.telemetry
    if measured is None:
        return None
    figures = {
        name: {"moved": one.moved, "noise": None if one.noise is None else vars(one.noise)}
        for name, one in measured.figures.items()
    }
    return {"figures": figures, "repeated": list(measured.repeated), "releases": measured.samples}


def _plain(measured: CohortDraws | PublicState | Charges) -> dict[str, Any]:
    """Collect the values of an attack that JSON knows, without its findings, which are told once for all."""
    return {name: value for name, value in vars(measured).items() if name != "findings"}


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


_OWN_CLAIMS = (
    "The paper's own claims are what it states of the noise by its own reckoning; beside each stands what our ledger's",
    "accounting gives for the noise that the claim is about, were it added, per client and against whoever sees the",
    "sums alone. Where the claim is about other noise than this run's, no ledger was charged with it.",
    "",
)


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
        *(_OWN_CLAIMS if audit.paper_claims else ()),
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


def _bounds(audit: Audit) -> str:
    """Compare the lower bounds on ε with the claim."""
    canaries, claimed = audit.canaries, audit.claimed_epsilon
    bounds = [("the coins alone (95 %, Steinke et al. 2023)", canaries.one_run)]
    if canaries.gaussian is not None:
        bounds.append(("normal scores (95 %)", canaries.gaussian))
    within = f"below the claimed {claimed:.4g}, as it must be"
    parts = [
        f"ε ≥ {bound:.3g} by {how}, {within if bound <= claimed else f'ABOVE the claimed {claimed:.4g}'}"
        for how, bound in bounds
    ]
    return "; ".join(parts)


def _agreement(measured: Measurement) -> str:
    """Say how an interval of measured over claimed values stands to the claim."""
    if measured.contains(1):
        return "which agrees with"
    return "ABOVE" if measured.low > 1 else "BELOW"


def _interval(estimate: Measurement) -> str:
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
