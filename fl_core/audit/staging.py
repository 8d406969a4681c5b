"""A federation whose rounds are the real ones, but whose clients upload what an attack wants them to.

Three hooks, and nothing of the mechanism is written again: training is replaced by moves, the cohort may be chosen,
and where uploads are handed over, those of clients that are to count as absent are replaced by zero. What is clipped,
noised, summed and averaged, and by what code, is what every run does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fl_core.base.streams import numpy_generator
from fl_core.run.cohort import Cohort
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import BoolArray, RoundPlan, RoundReport
from fl_core.run.release import Cohorts, Draw, Released, Releasing
from fl_core.training.executors import Executor, Images, LocalWork

Moves = Callable[[Tensor, Tensor], Tensor]
"""How far the clients at (run, client) move their models `[rows, size]`."""


class StagedFederation(Federation):
    """A federation under attack.

    Attributes:
        moves: what replaces local training; None moves nobody.
        shown: clients whose uploads count `[runs, clients]` (bool); those of others are zero where they arrive.
        members: clients of the next rounds in every run, or None to draw them as configured.
        met: the cohort of the last round.
        handed_over: what the last round's clients had to upload, before `shown`.
        released: what came out of it.
    """

    def __init__(self, config: FederationConfig, seeds: Sequence[int]):
        """Start one run per seed.

        Raises:
            InputError: as `Federation`.
        """
        super().__init__(config, runs=len(seeds))
        self.start(range(len(seeds)), [RunSettings(seed=seed) for seed in seeds])
        self.executor = _StagedTraining(self)
        self.releasing = _StagedReleasing(self)
        self.moves: Moves | None = None
        self.members: Sequence[int] | None = None
        self.shown = torch.ones(self.runs, config.clients, dtype=torch.bool, device=self.device)
        self.met: Cohort | None = None
        self.handed_over: Cohorts | None = None
        self.released: Released | None = None

    def draw_cohort(self, ran: BoolArray, out: BoolArray | None = None) -> Cohort:
        """The drawn clients, or those that the attack has chosen."""
        self.met = super().draw_cohort(ran, out) if self.members is None else self._chosen(self.members, ran)
        return self.met

    def _chosen(self, members: Sequence[int], ran: BoolArray) -> Cohort:
        rows = np.flatnonzero(ran)
        client = torch.tensor(list(members), dtype=torch.int64, device=self.device)
        run = torch.from_numpy(rows).to(self.device).repeat_interleave(len(client))
        place = torch.arange(len(client), device=self.device)
        return Cohort(run, client.repeat(len(rows)), place.repeat(len(rows)), len(client) * ran.astype(np.int64))

    def play(self, plan: RoundPlan) -> tuple[RoundReport, Cohort, Cohorts, Released]:
        """A real round, and what could be seen from inside."""
        report = self.run_round(plan)
        assert self.met is not None
        assert self.handed_over is not None
        assert self.released is not None
        return report, self.met, self.handed_over, self.released


class _StagedTraining(Executor):
    """Moves in the place of local training."""

    def __init__(self, federation: StagedFederation):
        super().__init__(federation.model, "vectorized")
        self._federation = federation

    def train(self, work: LocalWork, images: Images) -> tuple[Tensor, Tensor]:
        """See the base class."""
        federation, trained = self._federation, work.parameters.clone()
        assert federation.met is not None
        if federation.moves is not None and len(trained):
            trained[:, : federation.model.size] += federation.moves(federation.met.run, federation.met.client)
        return trained, trained.new_zeros(len(trained))


class _StagedReleasing(Releasing):
    """The real release, of those uploads that count, with its input and output kept."""

    def __init__(self, federation: StagedFederation):
        super().__init__(federation.config, federation.recipe, federation.model)
        self._federation = federation

    def __call__(self, cohorts: Cohorts, draw: Draw) -> Released:
        """See the base class."""
        federation = self._federation
        assert federation.met is not None
        met = federation.met
        shown = met.scatter(federation.shown[met.run, met.client]).unsqueeze(-1)
        federation.handed_over = cohorts
        federation.released = super().__call__(replace(cohorts, updates=torch.where(shown, cohorts.updates, 0.0)), draw)
        return federation.released


def audit_seeds(seed: int, runs: int) -> list[int]:
    """Seeds of an audit's runs, such that audits of neighbouring seeds share none."""
    return [int(one) for one in numpy_generator(seed, "audit").integers(2**62, size=runs)]


def saturated(federation: Federation, vectors: Tensor) -> Tensor:
    """Vectors `[..., size]` scaled to unit norm over all, each layer to the same norm."""
    layers = federation.model.layers
    pieces = [vectors[..., span.slice] for span in layers]
    norms = [torch.linalg.vector_norm(piece, dim=-1, keepdim=True).clamp_min(1e-30) for piece in pieces]
    scaled = torch.cat([piece / norm for piece, norm in zip(pieces, norms, strict=True)], dim=-1)
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).clamp_min(1e-30)
    return unit
