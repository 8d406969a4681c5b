"""Noise model of a method: who draws the noise of its released sums, which uploads and coordinates carry it, its std.

Release, charging, uplink, audit and reports all read this one object, so that none counts noise that is not added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fl_core.base.libraries import Tensor, torch
from fl_core.privacy.mechanism import noise_std

DRAWERS = {
    "nobody": "nothing is released, or nothing that is released is noised",
    "server": "the server, on the sum",
    "clients": "the clients, each on its own upload",
}
COORDINATES = {
    "public": "those that everybody knows to be exchanged in this round",
    "own": "of each upload those that it carries, by a mask of its own",
}
LEAST_RATIO = 0.1
"""Least `Contributors.noise_ratio` applied: a client's own noise multiplier is at most ten times the round's."""


@dataclass(frozen=True, kw_only=True)
class Contributors:
    """Cohorts of a round, with their clip norms and noise multipliers: all that the noise of its sums depends on.

    Attributes:
        clip: clip norm C `[runs]`.
        noise_multiplier: noise multiplier σ `[runs]`.
        present: places of the cohort that hold a client `[runs, width]` (bool).
        participants: size of each cohort `[runs]`.
        weights: factor of each upload in the sum `[runs, width]`; None for 1.
        uploaded: mask of the coordinates that may carry noise, by upload `[runs, width, size]` or by run
            `[runs, 1, size]`; None for all coordinates.
        layer_sizes: coordinates of each block that is clipped by itself.
        layer_weights: squared share of C of each block `[runs, width or 1, blocks]`; None for equal ones, whose noise
            is that of one clip.
        noise_ratio: σ over each client's own noise multiplier, in (0, 1] `[runs, width]`; None for 1.
    """

    clip: Tensor
    noise_multiplier: Tensor
    present: Tensor
    participants: Tensor
    weights: Tensor | None
    uploaded: Tensor | None
    layer_sizes: Sequence[int]
    layer_weights: Tensor | None
    noise_ratio: Tensor | None


@dataclass(frozen=True)
class Amount:
    """Standard deviations of independent Gaussian noise by coordinate, as the product of three factors.

    Attributes:
        scale: std of a sum `[rows]` or of each upload `[rows, width]`.
        spread: factor by coordinate `[rows, (width,) size]`; None for 1.
        support: mask of coordinates with noise `[rows, (width,) size]`; None for all of them.
    """

    scale: Tensor
    spread: Tensor | None
    support: Tensor | None

    def of(self, draws: Tensor) -> Tensor:
        """Scale standard normal draws `[rows, (width,) size]` to the noise."""
        noise = self.scale.unsqueeze(-1) * draws
        noise = noise if self.spread is None else noise * self.spread
        return noise if self.support is None else noise * self.support


@dataclass(frozen=True)
class NoiseModel:
    """The Gaussian noise of a method's released sums.

    Attributes:
        placement: one of `PLACEMENTS`.
        drawn_by: one of `DRAWERS`.
        by_upload: True if every upload carries noise of its own that differs from the others'; otherwise the noise of
            the sum is one draw, also where clients draw it: their shares are alike, and add up to the same.
        coordinates: one of `COORDINATES`, where the noise lies.
        hidden_support: True if clients choose during training where their uploads, and the noise in them, lie, so that
            nobody can say before how many of them noise a coordinate.
    """

    placement: str
    drawn_by: str
    by_upload: bool
    coordinates: str
    hidden_support: bool = False

    @property
    def private(self) -> bool:
        """True if there is noise."""
        return self.drawn_by != "nobody"

    @property
    def by_clients(self) -> bool:
        """True if clients draw the noise, so that it travels with their uploads."""
        return self.drawn_by == "clients"

    @property
    def in_full(self) -> bool:
        """True if each upload carries std Cσ by itself; otherwise all of a cohort's together do."""
        return self.placement == "local"

    @property
    def fills_choices(self) -> bool:
        """True if clients send noise also where they have chosen, by their data, to send nothing."""
        return self.by_clients and not self.hidden_support

    # ---------------------------------------------------------------- how much there is

    def of_sum(self, who: Contributors) -> Amount:
        """Compute the std of the sums' noise as one draw `[runs, size]`; an empty cohort has that of one client."""
        std = noise_std(self.placement, who.clip, who.noise_multiplier, who.participants)
        if who.weights is not None:
            mean_square = who.weights.square().sum(-1) / who.participants.clamp_min(1)
            std = torch.where(who.participants > 0, std * mean_square.sqrt(), std)
        return Amount(std, self._spread_of_sum(who), self._public_support(who))

    def of_uploads(self, who: Contributors) -> Amount:
        """Compute the std of every upload's noise `[runs, width, size]`, before the upload is weighted."""
        multiplier = who.noise_multiplier.unsqueeze(-1).expand(who.present.shape)
        if who.noise_ratio is not None:
            multiplier = multiplier / who.noise_ratio.clamp(LEAST_RATIO, 1.0)
        std = who.clip.unsqueeze(-1) * multiplier * who.present
        if not self.in_full:
            std = std / who.participants.clamp_min(1).sqrt().unsqueeze(-1)
        return Amount(std, _spread(who), who.uploaded)

    def std(self, who: Contributors, size: int) -> Tensor:
        """Compute the standard deviation of the noise in every coordinate of the released sums `[runs, size]`."""
        ones = torch.ones(len(who.clip), size, device=who.clip.device)
        if not self.private:
            return torch.zeros_like(ones)
        whole = self.of_sum(who).of(ones)
        if not self.by_upload:
            return whole
        each = self.of_uploads(who).of(ones.unsqueeze(1))
        each = each if who.weights is None else each * who.weights.unsqueeze(-1)
        return torch.where((who.participants > 0).unsqueeze(-1), each.square().sum(1).sqrt(), whole)

    def expected_norm(self, who: Contributors, size: int, cohort: float) -> Tensor:
        """Compute the expected norm of the sums' noise `[runs]`, from public values alone: not from who took part.

        Args:
            who: the round's clients, of which only public values are read.
            size: number of coordinates.
            cohort: expected number of clients.
        """
        std = noise_std(self.placement, who.clip, who.noise_multiplier, torch.full_like(who.participants, cohort))
        squares = torch.ones(1, size, device=std.device)
        if who.layer_weights is not None and who.layer_weights.shape[1] == 1:
            squares = _by_coordinate(who.layer_weights, who.layer_sizes).squeeze(1).square()
        support = self._public_support(who)
        squares = squares if support is None else squares * support
        return std * squares.sum(-1).sqrt()

    # ---------------------------------------------------------------- what it hides

    def effective_factor(self, who: Contributors) -> Tensor:
        """Compute the factor on σ that the noise of one run's sum certifies for its least protected client, float64.

        Removing a client of weight w moves block l of the sum by at most w·C√w_l, w_l being the block's squared share
        of C. If all m clients noise every coordinate, the factor is √(Σw²)/(√m·max w); if only k of them noise some
        coordinate, √(k/m), the heaviest client counted as one of them. Noise beyond σ, from a `noise_ratio` below 1,
        is not credited.

        Args:
            who: the clients of one run, with C = σ = 1, and a place for each.
        """
        if self.in_full or not self.private or not who.present.shape[1]:
            return torch.ones((), dtype=torch.float64, device=who.clip.device)  # each upload has noise enough
        return 1 / self._precisions(who).max().to(torch.float64).sqrt()

    def _precisions(self, who: Contributors) -> Tensor:
        """Compute 1/factor² of each client `[clients]`: squared shift of the sum over the noise variance, at σ = 1."""
        clients, blocks = who.present.shape[1], len(who.layer_sizes)
        weights = who.present.to(torch.float32) if who.weights is None else who.weights
        squares = weights[0].square()
        if self.by_upload and self.hidden_support:
            return torch.full_like(squares, clients)  # some coordinate may be noised by a single client
        shares = torch.full((clients, blocks), 1 / blocks, device=squares.device)
        if who.layer_weights is not None:
            shares = who.layer_weights[0].expand(clients, -1)
        precisions, start = torch.zeros_like(squares), 0
        for index, size in enumerate(who.layer_sizes):
            noise = squares * blocks * shares[:, index] / clients  # what each client adds to the variance
            variances = noise.sum().unsqueeze(0)
            if who.uploaded is not None and self.by_upload:
                block = who.uploaded[0, :, start : start + size].expand(clients, -1)
                variances = torch.where(block.sum(0) > 0, noise @ block, torch.inf)
            precisions += squares * shares[:, index] / variances.min()
            start += size
        return precisions

    # ---------------------------------------------------------------- factors

    def _public_support(self, who: Contributors) -> Tensor | None:
        """Return the public mask of coordinates that carry noise `[runs, size]`; None for all coordinates."""
        if who.uploaded is None or self.coordinates != "public":
            return None
        return who.uploaded.squeeze(1)

    def _spread_of_sum(self, who: Contributors) -> Tensor | None:
        """Compute √(L·w_l) by coordinate `[runs, size]`, L blocks of squared share w_l, averaged over clients."""
        spread = _spread(who)
        if spread is None or spread.shape[1] == 1:
            return None if spread is None else spread.squeeze(1)
        squares = spread.square() * who.present.unsqueeze(-1)
        counts = who.participants
        if who.weights is not None:
            squares, counts = squares * who.weights.square().unsqueeze(-1), who.weights.square().sum(-1)
        mean = squares.sum(1) / torch.where(counts > 0, counts, 1.0).unsqueeze(-1)
        return torch.where((counts > 0).unsqueeze(-1), mean, 1.0).sqrt()  # noise also where nobody is


def _spread(who: Contributors) -> Tensor | None:
    """Compute the factor on Cσ by coordinate `[runs, width or 1, size]`, √(L·w_l) of its block; None for 1."""
    return None if who.layer_weights is None else _by_coordinate(who.layer_weights, who.layer_sizes)


def _by_coordinate(weights: Tensor, sizes: Sequence[int]) -> Tensor:
    factors = (len(sizes) * weights).sqrt()
    pieces = [factors[..., index, None].expand(*factors.shape[:-1], size) for index, size in enumerate(sizes)]
    return torch.cat(pieces, dim=-1)
