"""Neighbouring cohorts with the noise off: the same round with and without one client, from the same state.

Clients of very different sizes send updates a million times too long in every layer; a cohort and a half of it each
meet themselves without one client, which pulls alone, or otherwise than all the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fl_core.audit.staging import StagedFederation, audit_seeds, saturated
from fl_core.base.streams import torch_generator
from fl_core.base.values import read_list
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan, RoundReport

WITNESSES = 16
"""Clients of the larger cohort, at most."""
LEAVERS = 4
"""Clients that leave it one at a time, those with most and with least data among them."""
LENGTH = 1e6
"""Length of the updates over C."""
EARLIER_CLIP = 3.0
"""Clip norm of the round before over C: what was clipped to that one is too long."""
WAYS = {
    "own": "every client pulls in a direction of its own",
    "against": "all clients pull the same way, the one that leaves the other way",
    "still": "the one that leaves does not move, all others do",
    "alone": "the one that leaves moves, the others do not",
}


@dataclass(frozen=True)
class Played:
    """A round of one cohort.

    Attributes:
        total: released sum `[size]`.
        moved: change of the server's model `[size]`.
        longest: norm of the longest upload, where uploads are released one by one; else 0.
        report: of the round.
    """

    total: Tensor
    moved: Tensor
    longest: float
    report: RoundReport


def without_noise(config: FederationConfig) -> FederationConfig:
    """Turn off noise and telemetry; clients with budgets of their own use all of C."""
    edits = config.set
    if config.client_epsilon:
        edits = ",".join([*read_list("set", edits), "mechanism.client_budget=uniform"])
    quiet = replace(config, telemetry_share=0.0, bit_noise=0.0, client_epsilon="", set=edits)
    return replace(quiet, epsilon=math.inf, noise_multiplier=None)


class Neighbours:
    """Neighbours of one federation, from one saved state.

    Attributes:
        federation: without noise.
    """

    def __init__(self, quiet: FederationConfig, clip_norm: float, seed: int):
        """Play a first round with everybody, so that masks, weights and risks are no longer what they start as.

        Args:
            quiet: configuration without noise.
            clip_norm: C.
            seed: of the partition and the updates.
        """
        quiet = replace(quiet, rounds=max(quiet.rounds, 3))
        self.federation, self._clip = StagedFederation(quiet, audit_seeds(seed, 1)), clip_norm
        federation = self.federation
        generator = torch_generator(seed, "audit", 1, federation.device)
        draws = torch.randn(
            quiet.clients if quiet.clients <= WITNESSES else WITNESSES,
            federation.model.size,
            generator=generator,
            device=federation.device,
        )
        shared = federation.recipe.personalization.static_mask(federation.model, federation.device)
        self._directions = saturated(federation, draws if shared is None else draws * shared)
        self._everyone = self._witnesses()
        self._play(self._everyone, None, "own", clip=EARLIER_CLIP * clip_norm)
        self._state = federation.state_dict()

    def pairs(self, ways: Sequence[str], silent: bool) -> Iterator[tuple[Played, Played]]:
        """Play every cohort with and without each of those that leave it.

        Args:
            ways: kinds of updates, of `WAYS`.
            silent: True if the client stays but uploads nothing; else it takes no part.
        """
        cohorts = [self._everyone, self._everyone[::2]] if len(self._everyone) > 1 else [self._everyone]
        for cohort in cohorts:
            for gone in self._leavers(cohort):
                for way in ways:
                    whole = self._back(cohort, gone, way)
                    others = list(cohort) if silent else [one for one in cohort if one != gone]
                    yield whole, self._back(others, gone, way, silent)

    def _ranked(self, clients: Sequence[int]) -> list[int]:
        """Clients by their number of samples."""
        sizes = self.federation.tables.train.count[0].to("cpu")
        return sorted(clients, key=lambda one: int(sizes[one]))

    def _witnesses(self) -> list[int]:
        """Clients evenly over the ranking by size, in order."""
        ranked = self._ranked(range(self.federation.config.clients))
        return sorted(ranked[place] for place in _spread(len(ranked), WITNESSES))

    def _leavers(self, cohort: Sequence[int]) -> list[int]:
        """Those with most and with least data, and some between."""
        ranked = self._ranked(cohort)
        return [ranked[place] for place in _spread(len(ranked), LEAVERS)]

    def _back(self, cohort: Sequence[int], gone: int, way: str, silent: bool = False) -> Played:
        self.federation.load_state_dict(self._state)
        return self._play(cohort, gone, way, silent)

    def _play(
        self, cohort: Sequence[int], gone: int | None, way: str, silent: bool = False, clip: float | None = None
    ) -> Played:
        """Play a round of this cohort."""
        federation = self.federation
        federation.members = list(cohort)
        federation.moves = lambda run, client: self._moves(client, gone, way)
        federation.shown[:] = True
        if silent and gone is not None:
            federation.shown[:, gone] = False
        before = federation.server[0].to(torch.float64)
        report, _, _, released = federation.play(RoundPlan.constant(1, clip or self._clip))
        longest = 0.0
        if released.uploads is not None:
            longest = float(torch.linalg.vector_norm(released.uploads[0].to(torch.float64), dim=-1).max())
        moved = federation.server[0].to(torch.float64) - before
        return Played(federation.last_release[0].to(torch.float64), moved, longest, report)

    def _moves(self, client: Tensor, gone: int | None, way: str) -> Tensor:
        """Moves `[rows, size]` of the clients of a cohort."""
        ranks = {one: rank for rank, one in enumerate(self._everyone)}
        rows = [ranks[one] for one in client.tolist()]
        leaves = torch.tensor([one == gone for one in client.tolist()], device=client.device).unsqueeze(-1)
        lengths = torch.tensor([LENGTH * 10.0 ** -(rank % 4) for rank in rows], device=client.device)
        pulls = self._directions[rows]
        if way == "against":
            pulls = torch.where(leaves, -1.0, 1.0) * self._directions[:1]
        elif way in ("still", "alone"):
            pulls = torch.where(leaves == (way == "alone"), pulls, 0.0)
        return self._clip * lengths.unsqueeze(-1) * pulls


def _spread(count: int, most: int) -> list[int]:
    """Places spread evenly over so many, both ends among them."""
    places: list[int] = torch.linspace(0, count - 1, min(most, count)).round().to(torch.int64).tolist()
    return places
