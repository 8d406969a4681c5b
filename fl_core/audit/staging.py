"""A federation whose rounds are the real ones, but whose clients upload what an attack wants them to.

Four hooks, and nothing of the mechanism is written again: training is replaced by moves, the cohort may be chosen,
where uploads are handed over those of clients that are to count as absent are replaced by zero, and the noised sum may
be replaced by one that was recorded. What is clipped, noised, summed and averaged, and by what code, is what every run
does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_core.base.streams import numpy_generator
from fl_core.privacy.mechanism import Clipped
from fl_core.run.cohort import Cohort
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import BoolArray, RoundPlan, RoundReport
from fl_core.run.release import Cohorts, Draw, Releaser, RoundRelease
from fl_core.training.executors import Executor
from fl_core.training.images import Images
from fl_core.training.work import LocalWork

Moves = Callable[[Tensor, Tensor], Tensor]
"""Function from run and client index `[rows]` to the updates that replace local training `[rows, size]`."""
CLIPS = (1.0, 3.0, 1 / 3)
PACES = (1.0, 0.7, 1.3)


class StagedFederation(Federation):
    """A federation under attack.

    Attributes:
        moves: what replaces local training; None moves nobody.
        shown: clients whose uploads count `[runs, clients]` (bool); those of others are zero where they arrive.
        members: clients of the next rounds in every run, or None to draw them as configured.
        replayed: release whose sums the next rounds give out whatever was uploaded, or None for their own.
        met: the cohort of the last round.
        handed_over: what the last round's clients had to upload, before `shown`.
        released: what came out of it.
        release_count: sums released since the last `play` began.
        paid: charges in the first run's ledger when the last training began; None before any.
    """

    def __init__(self, config: FederationConfig, seeds: Sequence[int]):
        """Start one run per seed.

        Raises:
            InputError: as `Federation`.
        """
        super().__init__(config, runs=len(seeds))
        self.start(range(len(seeds)), [RunSettings(seed=seed) for seed in seeds])
        self.executor = _StagedTraining(self)
        self.releaser = _StagedReleaser(self)
        self.moves: Moves | None = None
        self.members: Sequence[int] | None = None
        self.replayed: RoundRelease | None = None
        self.shown = torch.ones(self.runs, config.clients, dtype=torch.bool, device=self.device)
        self.met: Cohort | None = None
        self.handed_over: Cohorts | None = None
        self.released: RoundRelease | None = None
        self.release_count = 0
        self.paid: int | None = None

    @override
    def draw_cohort(self, rounds: NDArray[np.int64], ran: BoolArray, out: BoolArray | None = None) -> Cohort:
        self.met = super().draw_cohort(rounds, ran, out) if self.members is None else self._chosen(self.members, ran)
        return self.met

    def _chosen(self, members: Sequence[int], ran: BoolArray) -> Cohort:
        return Cohort.of([np.array(members if one else [], dtype=np.int64) for one in ran], self.device)

    def drawn(self, rounds: int) -> NDArray[np.bool_]:
        """Draw the cohorts of so many rounds of every run, without playing them `[runs, rounds, clients]`."""
        everybody = np.ones(self.runs, dtype=bool)
        found = np.zeros((self.runs, rounds, self.config.clients), dtype=bool)
        for index in range(rounds):
            cohort = self.draw_cohort(np.full(self.runs, index, dtype=np.int64), everybody)
            found[cohort.run.cpu().numpy(), index, cohort.client.cpu().numpy()] = True
        return found

    def play(self, plan: RoundPlan) -> tuple[RoundReport, Cohort, Cohorts, RoundRelease]:
        """A real round, and what could be seen from inside."""
        self.release_count = 0
        report = self.run_round(plan)
        assert self.met is not None
        assert self.handed_over is not None
        assert self.released is not None
        return report, self.met, self.handed_over, self.released

    def varied_plan(self, clip_norm: float, index: int) -> RoundPlan:
        """Plan a round with a clip norm, and where nothing has fixed it a budget, other than the last one's."""
        values = {"clip_norm": np.full(self.runs, clip_norm * CLIPS[index % len(CLIPS)])}
        open_budget = self.recipe.mechanism.budget == "uniform" and self.config.guarantee == "sound"
        open_budget = open_budget and self.config.noise_schedule != "fixed"
        if open_budget and self.recipe.private and np.isfinite(self.config.epsilon):
            values["budget_pace"] = np.full(self.runs, PACES[index % len(PACES)])
        return RoundPlan.from_values(self.runs, values)


class _StagedTraining(Executor):
    """Moves in the place of local training."""

    def __init__(self, federation: StagedFederation):
        super().__init__(federation.model, "vectorized")
        self._federation = federation

    @override
    def train(self, work: LocalWork, images: Images) -> tuple[Tensor, Tensor]:
        federation, trained = self._federation, work.parameters.clone()
        federation.paid = len(federation.charging.budgets[0].charges)
        assert federation.met is not None
        if federation.moves is not None and len(trained):
            trained[:, : federation.model.size] += federation.moves(federation.met.run, federation.met.client)
        return trained, trained.new_zeros(len(trained))


class _StagedReleaser(Releaser):
    """The real release, of those uploads that count, with its input and output kept."""

    def __init__(self, federation: StagedFederation):
        super().__init__(federation.config, federation.recipe, federation.model)
        self._federation = federation

    @override
    def __call__(self, cohorts: Cohorts, draw: Draw) -> RoundRelease:
        federation = self._federation
        assert federation.met is not None
        met = federation.met
        shown = met.scatter(federation.shown[met.run, met.client]).unsqueeze(-1)
        federation.handed_over = cohorts
        federation.release_count += 1
        federation.released = super().__call__(replace(cohorts, updates=torch.where(shown, cohorts.updates, 0.0)), draw)
        return federation.released

    @override
    def noised(
        self, updates: Tensor, clipped: Clipped, exact: Tensor, cohorts: Cohorts, draw: Draw
    ) -> tuple[Tensor, Tensor | None]:
        recorded = self._federation.replayed
        if recorded is None:
            return super().noised(updates, clipped, exact, cohorts, draw)
        return recorded.total, recorded.uploads


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
