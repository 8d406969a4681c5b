"""Audit of public values: they must be functions of the releases and of nothing else.

Two federations of one seed play the same rounds. The clients of the second upload other updates, one of them none at
all, and where cohorts are secret one client stays away; yet its noised sums are replaced by those of the first. Every
figure that is declared public, every tensor of a run that the next round reads, and the masks and clip weights that
everybody knows must then be equal bit for bit. A tensor may differ where it is an accounted figure, whose noise the
attack on telemetry measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_core.audit.findings import Finding
from fl_core.audit.staging import Moves, StagedFederation, audit_seeds, saturated
from fl_core.base.streams import torch_generator
from fl_core.run.cohort import Cohort
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundReport
from fl_core.run.release import Cohorts

ROUNDS = 4
"""Rounds played, at most."""
LENGTHS = (1e3, 1e-3, 1.0, 1e-6)
"""Lengths of updates over C, so that some are clipped and some are not."""


@dataclass(frozen=True)
class PublicState:
    """Results of the attack on public figures and state.

    Attributes:
        rounds: rounds played twice.
        compared: figures, tensors and masks that were compared, by name.
        differing: those of them that knew more than was released.
        cohort_varied: True if one client more took part in one of the two.
    """

    rounds: int
    compared: tuple[str, ...]
    differing: tuple[str, ...]
    cohort_varied: bool

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A leak, where something follows from more than was released."""
        if not self.differing:
            return ()
        names = ", ".join(self.differing)
        text = f"what is called public follows from the clients' exact updates, not from the released sums: {names}"
        return (Finding("public", "replay", True, text),)


def attack_public(config: FederationConfig, clip_norm: float, seed: int) -> PublicState:
    """Play rounds twice with the same sums from other updates, and compare what is public.

    Args:
        config: the federation as it is to run.
        clip_norm: C.
        seed: of the run and the updates.
    """
    first, second = (StagedFederation(config, audit_seeds(seed, 1)) for _ in range(2))
    varies = config.accounting_rate < 1 and first.recipe.aggregation.divide_by == "expected"
    first.moves, second.moves = (_moves(one, clip_norm, seed, world) for world, one in enumerate((first, second)))
    compared: dict[str, bool] = {}
    rounds = min(config.rounds, ROUNDS)
    for index in range(rounds):
        plan = first.varied_plan(clip_norm, index)
        report, cohort, handed, released = first.play(plan)
        if report.refused.any():
            rounds = index
            break
        second.replayed, second.members = released, _members(cohort, varies)
        other, _, handed_other, _ = second.play(plan)
        _compare(compared, _seen(first, report, handed), _seen(second, other, handed_other))
    differing = tuple(name for name, equal in compared.items() if not equal)
    return PublicState(rounds, tuple(compared), differing, varies)


def _members(cohort: Cohort, varies: bool) -> list[int]:
    """The same clients, without the last where their number is secret."""
    members: list[int] = cohort.client.tolist()
    return members[:-1] if varies else members


def _moves(federation: StagedFederation, clip_norm: float, seed: int, world: int) -> Moves:
    """Moves of very different lengths; in the second world others, and the first client's are no numbers."""
    generator = torch_generator(seed, "audit", 3 + world, federation.device)
    draws = torch.randn(len(LENGTHS), federation.model.size, generator=generator, device=federation.device)
    directions = saturated(federation, draws)

    def moves(run: Tensor, client: Tensor) -> Tensor:
        kind = (client + 2 * world + federation.rounds[0]) % len(LENGTHS)
        lengths = torch.tensor(LENGTHS, device=run.device)[kind]
        moved = clip_norm * lengths.unsqueeze(-1) * directions[kind]
        if world:
            moved[0] = torch.nan
        return moved

    return moves


def _seen(federation: StagedFederation, report: RoundReport, handed: Cohorts) -> dict[str, tuple[str, Tensor]]:
    """Everything public of a round by name, with its kind, and the accounted figures."""
    found = {}
    for name, value in report.figures.items():
        kind = report.signal_class(name)
        if kind != "raw":
            found[name] = (kind, torch.from_numpy(np.asarray(value)))
    tensors: Mapping[str, Tensor] = federation.state_dict()["tensors"]
    for name, tensor in tensors.items():
        if not name.startswith("clients."):
            found[name] = ("state", tensor)
    known = {"clip": handed.clip, "noise multiplier": handed.noise_multiplier}
    if handed.uploaded is not None and federation.noise.coordinates == "public":
        known["mask of the noise"] = handed.uploaded
    if handed.layer_weights is not None and handed.layer_weights.shape[1] == 1:
        known["clip weights of the layers"] = handed.layer_weights
    return found | {name: ("state", value) for name, value in known.items()}


def _compare(
    compared: dict[str, bool], one: Mapping[str, tuple[str, Tensor]], other: Mapping[str, tuple[str, Tensor]]
) -> None:
    """Note for every name whether it has been equal in all rounds so far."""
    accounted = [[value for kind, value in seen.values() if kind == "accounted"] for seen in (one, other)]
    for name, (kind, value) in one.items():
        if kind == "accounted":
            continue
        rival = other[name][1]
        equal = value.shape == rival.shape and torch.equal(torch.nan_to_num(value), torch.nan_to_num(rival))
        if not equal and kind == "state":  # what was noised and charged may be kept
            equal = _is_among(value, accounted[0]) and _is_among(rival, accounted[1])
        compared[name] = compared.get(name, True) and equal


def _is_among(value: Tensor, accounted: list[Tensor]) -> bool:
    """True if a tensor of a run is one of its accounted figures."""
    return any(
        value.shape == figure.shape and torch.equal(value.cpu().to(torch.float64), figure) for figure in accounted
    )
