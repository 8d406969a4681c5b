"""Sensitivity attack: change of what is released by one client, with the noise off.

Clients of very different sizes send updates a million times too long in every layer; a cohort, and half of it, are
each compared with themselves without one client, which pulls alone, or against all the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fl_core.audit.staging import StagedFederation, audit_seeds, saturated
from fl_core.base.streams import torch_generator
from fl_core.base.values import read_list
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan

WITNESSES = 16
"""Clients of the larger cohort, at most."""
LEAVERS = 4
"""Clients that leave it one at a time, those with most and with least data among them."""
LENGTH = 1e6
"""Length of the updates over C."""
TOLERANCE = 1e-3
"""Part of C by which float32 sums of cohorts may be off."""


@dataclass(frozen=True)
class Sensitivity:
    """Worst case over all pairs of neighbours.

    Attributes:
        total: change of the sum over C.
        mean: change of the mean that moves the server over C / expected cohort; None where its divisor is public, so
            that the mean reveals no more than the sum.
        uploads: norm of single uploads over C, where they are noised one by one; else None.
        pairs: number of pairs compared.
    """

    total: float
    mean: float | None
    uploads: float | None
    pairs: int

    @property
    def holds(self) -> bool:
        """True if no client passes C."""
        return max(self.total, self.mean or 0.0, self.uploads or 0.0) <= 1 + TOLERANCE


def attack_sensitivity(config: FederationConfig, clip_norm: float, seed: int) -> Sensitivity:
    """Compare released sums and server models of neighbouring cohorts.

    Args:
        config: the federation as it is to run.
        clip_norm: C.
        seed: of the partition and the updates.
    """
    quiet = replace(without_noise(config), rounds=max(config.rounds, 3))
    attack = _Attack(StagedFederation(quiet, audit_seeds(seed, 1)), clip_norm, seed)
    worst = {"total": 0.0, "mean": 0.0, "uploads": 0.0}
    pairs = 0
    for cohort in attack.cohorts:
        for gone in attack.leavers(cohort):
            for opposed in (False, True):
                pairs += 1
                for name, value in attack.compare(cohort, gone, opposed).items():
                    worst[name] = max(worst[name], value)
    mean = None if attack.divisor_is_public else worst["mean"]
    return Sensitivity(worst["total"], mean, worst["uploads"] if attack.by_upload else None, pairs)


def without_noise(config: FederationConfig) -> FederationConfig:
    """Switch noise and telemetry off; clients with budgets of their own use all of C."""
    edits = config.set
    if config.client_epsilon:
        edits = ",".join([*read_list("set", edits), "mechanism.client_budget=uniform"])
    return replace(config, epsilon=math.inf, telemetry_share=0.0, bit_noise=0.0, client_epsilon="", set=edits)


class _Attack:
    """Neighbouring cohorts of one federation, played from one saved state."""

    def __init__(self, federation: StagedFederation, clip_norm: float, seed: int):
        self._federation, self._clip = federation, clip_norm
        config, recipe = federation.config, federation.recipe
        self.by_upload = config.noise().by_upload
        varies = config.sampling == "poisson" and config.sampling_rate < 1
        self.divisor_is_public = recipe.aggregation.divide_by != "expected" and not varies
        generator = torch_generator(seed, "audit", 1, federation.device)
        draws = torch.randn(
            config.clients if config.clients <= WITNESSES else WITNESSES,
            federation.model.size,
            generator=generator,
            device=federation.device,
        )
        shared = recipe.personalization.static_mask(federation.model, federation.device)
        self._directions = saturated(federation, draws if shared is None else draws * shared)
        everyone = self._witnesses()
        self._everyone = everyone
        self.cohorts = [everyone, everyone[::2]] if len(everyone) > 1 else [everyone]
        self._play(everyone, None, False)  # masks, weights and risks are then no longer what they start as
        self._state = federation.state_dict()

    def _witnesses(self) -> list[int]:
        """Choose clients evenly over the ranking by size, in order."""
        sizes = self._federation.tables.train_count[0].to("cpu")
        ranked = torch.argsort(sizes, stable=True).tolist()
        count = min(WITNESSES, len(ranked))
        places = torch.linspace(0, len(ranked) - 1, count).round().to(torch.int64).tolist()
        return sorted(ranked[place] for place in places)

    def leavers(self, cohort: Sequence[int]) -> list[int]:
        """Choose the clients with most and with least data, and some between."""
        sizes = self._federation.tables.train_count[0].to("cpu")
        ranked = sorted(cohort, key=lambda one: int(sizes[one]))
        places = torch.linspace(0, len(ranked) - 1, min(LEAVERS, len(ranked))).round().to(torch.int64).tolist()
        return [ranked[place] for place in places]

    def compare(self, cohort: Sequence[int], gone: int, opposed: bool) -> dict[str, float]:
        """Compare a cohort with the same without one client: changes over what is claimed.

        Where the divisor is public, so is the number of clients, and the client stays but uploads nothing.
        """
        whole = self._back(cohort, gone, opposed)
        if self.divisor_is_public:
            less = self._back(cohort, gone, opposed, silent=True)
        else:
            less = self._back([one for one in cohort if one != gone], gone, opposed)
        expected = self._federation.config.cohort
        return {
            "total": _norm(whole[0] - less[0]) / self._clip,
            "mean": _norm(whole[1] - less[1]) * expected / self._clip,
            "uploads": whole[2] / self._clip,
        }

    def _back(
        self, cohort: Sequence[int], gone: int, opposed: bool, silent: bool = False
    ) -> tuple[Tensor, Tensor, float]:
        self._federation.load_state_dict(self._state)
        return self._play(cohort, gone, opposed, silent)

    def _play(
        self, cohort: Sequence[int], gone: int | None, opposed: bool, silent: bool = False
    ) -> tuple[Tensor, Tensor, float]:
        """Play a round of this cohort: sum and mean `[size]`, and the longest upload."""
        federation = self._federation
        ranks = {client: rank for rank, client in enumerate(self._everyone)}

        def moves(run: Tensor, client: Tensor) -> Tensor:
            rows = [ranks[one] for one in client.tolist()]
            if not opposed or gone is None:
                pulls = self._directions[rows]
            else:  # all the others the same way, the one that leaves the other way
                signs = torch.tensor([-1.0 if one == gone else 1.0 for one in client.tolist()], device=run.device)
                pulls = signs.unsqueeze(-1) * self._directions[:1]
            lengths = torch.tensor([LENGTH * 10.0 ** -(rank % 4) for rank in rows], device=run.device)
            return self._clip * lengths.unsqueeze(-1) * pulls

        federation.members, federation.moves = list(cohort), moves
        federation.shown[:] = True
        if silent and gone is not None:
            federation.shown[:, gone] = False
        before = federation.server[0].to(torch.float64)
        _, _, _, released = federation.play(RoundPlan.constant(1, self._clip))
        moved = federation.server[0].to(torch.float64) - before
        longest = 0.0
        if released.uploads is not None:
            longest = float(torch.linalg.vector_norm(released.uploads[0].to(torch.float64), dim=-1).max())
        return federation.last_release[0].to(torch.float64), moved, longest


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
