"""Canaries: clients with secret random directions, each in or out by a fair coin, searched for in what is released.

A canary i uploads a vector far longer than C, so that after the clip its claimed contribution is v_i. Its score is the
matched filter Σ_t <v_i, y_t − known>/s_t², s the claimed std of the noise, scaled so that by the claim an excluded
canary has N(0, 1) and an included one N(μ_i, 1), where μ_i² = Σ_t |v_i/s_t|²: for the Gaussian mechanism Σ_t 1/σ_t²
over the rounds that it took part in. Known are the contributions of all other canaries, up to a factor common to all
that is fitted: the privacy claim is about an attacker who knows everybody but one. (Andrew et al., "One-shot
empirical privacy estimation for federated learning", 2024, use such canaries; Steinke et al. 2023 the coins.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from fl_core.audit.bounds import (
    CONFIDENCE,
    Measurement,
    gaussian_epsilon,
    one_run_epsilon,
    signal_estimate,
    spread_estimate,
)
from fl_core.audit.claims import claimed_contributions, claimed_std, claimed_upload_std
from fl_core.audit.findings import Finding
from fl_core.audit.ranges import CANARIES
from fl_core.audit.staging import StagedFederation, audit_seeds, saturated
from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.base.errors import require
from fl_core.base.streams import numpy_generator, torch_generator
from fl_core.run.cohort import Cohort
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan
from fl_core.run.release import Cohorts, RoundRelease

LENGTH = 1000.0
"""Length of a canary's update over C."""
_TESTS = 3  # signal, noise and differences between clients share the error


@dataclass(frozen=True)
class CanaryScores:
    """Scores of the canaries and what they measure.

    Attributes:
        scores: of every canary that took part, by the claim N(0, 1) or N(length, 1).
        lengths: μ_i, the mean that the claim gives an included canary.
        included: the coins.
        blind: scores computed without coins and cohorts, for the one-run bound.
        mu: claimed μ of a canary that takes part in every round.
        signal: measured over claimed μ, by the measured spread; the intervals hold jointly.
        spread: std of the excluded scores, claimed 1.
        differs: factor by which included scores spread wider, where chance does not explain it; else None.
        one_run: lower bound on ε from the coins alone (Steinke et al. 2023).
        gaussian: lower bound on ε for normal scores; None where cohorts are secret.
        rounds: number of rounds.
        runs: independent runs that the canaries were spread over.
        what: source of the scores in words.
    """

    scores: FloatArray
    lengths: FloatArray
    included: BoolArray
    blind: FloatArray
    mu: float
    signal: Measurement
    spread: Measurement
    differs: float | None
    one_run: float
    gaussian: float | None
    rounds: int
    runs: int
    what: str

    @property
    def measured(self) -> Measurement:
        """Measured μ with its interval."""
        return Measurement(*(self.mu * value for value in (self.signal.value, self.signal.low, self.signal.high)))


def attack_canaries(
    config: FederationConfig, clip_norm: float, canaries: int, seed: int
) -> tuple[CanaryScores, StagedFederation]:
    """Run the federation with canaries for clients, in as many runs as have room for all.

    Returns:
        Their scores, and the federation with its books.

    Raises:
        InputError: there are too few canaries.
    """
    CANARIES.check("canaries", canaries)
    runs = -(-canaries // config.clients)
    federation = StagedFederation(config, audit_seeds(seed, runs))
    attack = _Attack(federation, clip_norm, canaries, seed)
    plan, rounds = RoundPlan.constant(runs, clip_norm), 0
    while not federation.done.any():
        report, cohort, cohorts, released = federation.play(plan)
        if report.refused.any():
            break
        attack.score(cohort, cohorts, released)
        rounds += 1
    return attack.result(rounds), federation


class _Attack:
    """Canaries of a federation, and the sums that their scores are computed from."""

    def __init__(self, federation: StagedFederation, clip_norm: float, canaries: int, seed: int):
        self._federation = federation
        config = federation.config
        self._delta, self._secret = config.delta, config.accounting_rate < 1
        device, places = federation.device, federation.runs * config.clients
        ids = torch.full((places,), -1, dtype=torch.int64)
        ids[:canaries] = torch.arange(canaries)
        self._ids = ids.view(federation.runs, config.clients).to(device)
        random = numpy_generator(seed, "audit", 1)
        self._coins = torch.from_numpy(random.random(canaries) < 0.5).to(device)
        self._directions = _directions(federation, canaries, seed)
        federation.shown = (self._ids >= 0) & self._coins[self._ids.clamp_min(0)]
        federation.moves = lambda run, client: self._moves(clip_norm, run, client)
        self._sums = {name: torch.zeros(canaries, dtype=torch.float64, device=device) for name in _SUMS}
        self._precision = torch.zeros(federation.runs, dtype=torch.float64, device=device)
        self._by_upload = False

    def _moves(self, clip_norm: float, run: Tensor, client: Tensor) -> Tensor:
        ids = self._ids[run, client]
        return LENGTH * clip_norm * torch.where((ids >= 0).unsqueeze(-1), self._directions[ids.clamp_min(0)], 0.0)

    def score(self, cohort: Cohort, cohorts: Cohorts, released: RoundRelease) -> None:
        """Add a round to every canary's score."""
        federation = self._federation
        self._by_upload = released.uploads is not None and federation.noise.in_full
        precision = cohorts.noise_multiplier.to(torch.float64) ** -2
        if federation.noise.in_full and not self._by_upload:
            precision = precision / cohorts.participants.clamp_min(1)
        self._precision += precision
        std, claimed = claimed_std(federation, cohorts), claimed_contributions(federation, cohorts)
        if self._by_upload:
            self._score_uploads(cohort, cohorts, released, claimed)
            return
        for run in range(federation.runs):
            ids = self._ids[run, cohort.client[cohort.run == run]]
            places = cohort.place[cohort.run == run][ids >= 0]
            ids = ids[ids >= 0]
            heard = (released.total[run] / std[run]).to(torch.float64)
            filters = (claimed[run, places] / std[run]).to(torch.float64)
            gram = filters @ filters.T
            lengths = gram.diagonal()
            # What the other included canaries add to each filter: known to the attacker, up to a common factor.
            others = (gram - torch.diag(lengths)) @ self._coins[ids].to(torch.float64)
            self._add(ids, filters @ heard, lengths, others)
            if self._secret:
                self._score_blind(run, cohorts, heard, std[run])

    def _score_uploads(self, cohort: Cohort, cohorts: Cohorts, released: RoundRelease, claimed: Tensor) -> None:
        """Add a round for a server that sees every upload by itself."""
        assert released.uploads is not None
        std = claimed_upload_std(self._federation, cohorts).expand_as(released.uploads)
        ids = self._ids[cohort.run, cohort.client]
        rows = (cohort.run[ids >= 0], cohort.place[ids >= 0])
        filters = (claimed[rows] / std[rows]).to(torch.float64)
        heard = (released.uploads[rows] / std[rows]).to(torch.float64)
        self._add(ids[ids >= 0], (filters * heard).sum(-1), filters.square().sum(-1), torch.zeros(len(filters)))

    def _add(self, ids: Tensor, products: Tensor, lengths: Tensor, others: Tensor) -> None:
        self._sums["raw"].index_add_(0, ids, products)
        self._sums["others"].index_add_(0, ids, others)
        self._sums["length"].index_add_(0, ids, lengths)

    def _score_blind(self, run: int, cohorts: Cohorts, heard: Tensor, std: Tensor) -> None:
        """Add a round to the score of all canaries of a run, drawn for it or not."""
        ids = self._ids[run][self._ids[run] >= 0]
        filters = (self._directions[ids] / std).to(torch.float64)
        self._sums["blind"].index_add_(0, ids, filters @ heard * float(cohorts.clip[run]))

    def result(self, rounds: int) -> CanaryScores:
        """Compute scores and estimates from the sums."""
        sums = {name: value.cpu().numpy() for name, value in self._sums.items()}
        took_part = sums["length"] > 0
        coins = self._coins.cpu().numpy()
        blind = sums["blind"] if self._secret else sums["raw"] / np.sqrt(np.maximum(sums["length"], 1e-300))
        included = coins[took_part]
        lengths = np.sqrt(sums["length"][took_part])
        raw, others = sums["raw"][took_part], sums["others"][took_part]
        require(
            bool(2 <= included.sum() <= len(included) - 2),
            f"canaries is {len(coins)}, but of those that took part {included.sum()} are included and "
            f"{len(included) - included.sum()} are not, which is too few; take more.",
        )
        gain = raw[included].sum() / (lengths**2 + others)[included].sum()  # least squares; of all contributions alike
        scores = (raw - gain * others) / lengths
        error = (1 - CONFIDENCE) / _TESTS
        mu = math.sqrt(float(self._precision.mean()))
        signal = signal_estimate(scores[included], lengths[included], scores[~included], error)
        return CanaryScores(
            scores=scores,
            lengths=lengths,
            included=included,
            blind=blind,
            mu=mu,
            signal=signal,
            spread=spread_estimate(scores[~included], error),
            differs=_difference(scores, lengths, included, error),
            one_run=one_run_epsilon(blind, coins, self._delta),
            gaussian=None if self._secret else self._gaussian(scores, lengths, included, mu),
            rounds=rounds,
            runs=self._federation.runs,
            what="single uploads" if self._by_upload else "the released sum",
        )

    def _gaussian(self, scores: FloatArray, lengths: FloatArray, included: BoolArray, mu: float) -> float:
        alone = signal_estimate(scores[included], lengths[included], scores[~included], 2 * (1 - CONFIDENCE))
        return gaussian_epsilon(alone.low * mu, self._delta)


_SUMS = ("raw", "others", "length", "blind")


def _difference(scores: FloatArray, lengths: FloatArray, included: BoolArray, error: float) -> float | None:
    """Compare the spread of included scores around their common gain with that of excluded ones, by an F test."""
    inside, expected = scores[included], lengths[included]
    gain = float(inside @ expected / (expected @ expected))
    ratio = float(np.sum((inside - gain * expected) ** 2) / (len(inside) - 1) / np.mean(scores[~included] ** 2))
    limit = float(stats.f.isf(error, len(inside) - 1, int((~included).sum())))
    return math.sqrt(ratio) if ratio > limit else None


def _directions(federation: StagedFederation, canaries: int, seed: int) -> Tensor:
    """Draw unit vectors `[canaries, size]` on what clients share, long in every layer, orthogonal within a run."""
    config, model = federation.config, federation.model
    generator = torch_generator(seed, "audit", 1, federation.device)
    shared = federation.recipe.personalization.static_mask(model, federation.device)
    pieces = []
    for run in range(federation.runs):
        count = min(config.clients, canaries - run * config.clients)
        draws = torch.randn(count, model.size, generator=generator, device=federation.device)
        vectors = saturated(federation, draws if shared is None else draws * shared)
        if count <= model.size // 2:
            # Orthogonal directions do not disturb each other; where there are more than fit, `others` corrects for it.
            frame, upper = torch.linalg.qr(vectors.T)
            vectors = (frame * upper.diagonal().sign()).T
        pieces.append(vectors)
    return torch.cat(pieces)


def canary_findings(canaries: CanaryScores, claimed_epsilon: float) -> Iterator[Finding]:
    """Find where scores and bounds contradict the claim, which one set of scores in twenty does where it is true."""
    mu, spread = canaries.measured, canaries.spread
    interval = f"canaries measure μ {mu.value:.3g} ({mu.low:.3g} to {mu.high:.3g}) where {canaries.mu:.3g} is claimed"
    if canaries.signal.low > 1:
        text = f"{interval}, so the noise covers a client {canaries.signal.value:.3g} times less"
        yield Finding("canaries", "strong", True, text)
    if canaries.signal.high < 1:
        yield Finding("canaries", "weak", False, f"{interval}, so there is more noise than that")
    width = f"scores of excluded canaries spread {spread.value:.3g} times as wide as the claimed noise"
    if spread.high < 1:
        yield Finding("canaries", "narrow", True, width)
    if spread.low > 1:
        yield Finding("canaries", "wide", False, f"{width}: there is more of it, or rounds share theirs")
    if canaries.differs is not None:
        text = f"some clients count for more than others: included scores spread {canaries.differs:.3g} times as wide"
        yield Finding("canaries", "unequal", True, text)
    for bound, how in ((canaries.one_run, "coins alone"), (canaries.gaussian, "normal scores")):
        if bound is not None and bound > claimed_epsilon:
            text = f"ε is at least {bound:.3g} by {how}, above the claimed {claimed_epsilon:.3g}"
            yield Finding("canaries", how, True, text)
