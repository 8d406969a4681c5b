"""What the noise model tells about a round, measured: the noise of its sums by Monte Carlo, and the bytes sent.

A second round of a real federation is handed over to its release again and again, with other noise each time, so that
differences from the exact sum are noise and nothing else.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

from fl_core.base.errors import InputError
from fl_core.base.streams import numpy_generator
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.release import Cohorts, Draw, Releaser, RoundRelease
from fl_core.training.work import LocalWork
from tests.fl_core.plain import config, plan

torch.set_num_threads(1)
CLIENTS = 5
AT_ONCE = 40
"""Releases drawn together, as runs of a batch."""
WATCHED = 48
"""Coordinates whose covariance is looked at."""
ERROR = 1e-9
"""Probability that one combination fails by chance, per test."""

PERSONALIZATIONS = (
    "",
    "personalization=growing-mask",
    "personalization=growing-mask,personalization.mask_from=uploads",
)
SPARSIFICATIONS = (
    "",
    "sparsification=top-k",
    "sparsification=random",
    "sparsification=random,sparsification.drawn_by=client",
    "sparsification=reparameterized,sparsification.sparsity=0.3,sparsification.mask_from=step",
)
MECHANISMS = (
    "",
    "mechanism.upload_noise=true",
    "mechanism=layers",
    "mechanism=layers,trend_from=exact",
    "mechanism=layers,trend_from=exact,mechanism.upload_noise=true",
    "mechanism=coordinates",
    "client_budget=risk",
    "client_budget=risk,exact_risk=true,mechanism.upload_noise=true",
)
WEIGHTS = ("", "aggregation.weights=data")


def combinations(everything: bool) -> list[tuple[str, str, str]]:
    """Edits, placement and guarantee; all of them, or every pair of edits of two parts."""
    every = list(itertools.product(PERSONALIZATIONS, SPARSIFICATIONS, MECHANISMS, WEIGHTS))
    if not everything:
        every = [one for one in every if sum(map(bool, one)) <= 1] + [
            *itertools.product(PERSONALIZATIONS[1:], SPARSIFICATIONS[1:], [""], [""]),
            *((own, "", edit, "") for own in PERSONALIZATIONS[2:] for edit in MECHANISMS[1:5]),
            *(("", sparse, "mechanism.upload_noise=true", "") for sparse in SPARSIFICATIONS[1:]),
            *(("", "", edit, WEIGHTS[1]) for edit in MECHANISMS[1:5]),
        ]
    edits = [",".join(filter(None, one)) for one in every]
    return list(itertools.product(edits, ("central", "distributed", "local"), ("sound", "as-published")))


@dataclass(frozen=True)
class Measured:
    """A round that was handed over, and what came out of it.

    Attributes:
        federation: whose round it is.
        cohorts: what its clients uploaded.
        exact: the sum without noise `[size]`.
        noise: that of many releases `[draws, size]`.
        uploads: of one release `[clients, size]`, where each has its own noise.
        bytes: told by the round.
        factor: of the claimed noise multiplier, by the ledger; None under `sound`.
    """

    federation: Federation
    cohorts: Cohorts
    exact: Tensor
    noise: Tensor
    uploads: Tensor | None
    bytes: float
    factor: float | None


def copies(cohorts: Cohorts, count: int) -> Cohorts:
    """The cohort of a run as those of so many runs."""
    values = {one.name: getattr(cohorts, one.name) for one in fields(cohorts)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return replace(cohorts, **{name: value.expand(count, *value.shape[1:]) for name, value in tensors.items()})


def measured(made: FederationConfig, draws: int) -> Measured:
    federation, handed = Federation(made), []
    releaser, moves = federation.releaser, torch.Generator().manual_seed(1)

    def train(work: LocalWork, images: object) -> tuple[Tensor, Tensor]:
        moved = torch.randn(work.parameters.shape, generator=moves)  # no coordinate stands still by chance
        return work.parameters + moved, torch.ones(len(moved))

    federation.executor.train = train

    def spy(cohorts: Cohorts, draw: Draw) -> RoundRelease:
        handed.append(cohorts)
        return releaser(cohorts, draw)

    federation.releaser = spy
    spy.effective_factor = releaser.effective_factor
    federation.run_round(plan())
    figures = federation.run_round(plan()).figures
    cohorts, size = handed[-1], federation.model.size
    many, random = copies(cohorts, AT_ONCE), numpy_generator(0, "audit")

    def draw(uploads: bool) -> Tensor:
        shape = (AT_ONCE, cohorts.present.shape[1], size) if uploads else (AT_ONCE, size)
        return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))

    released = [releaser(many, draw) for _ in range(draws // AT_ONCE)]
    (claim,), (ledger,) = federation.charging.claims, federation.ledgers
    factor = None
    if claim is not None:
        sigma, real = (one.charges[-1].releases[0].noise_multiplier for one in (claim, ledger))
        factor = real / sigma
    return Measured(
        federation=federation,
        cohorts=cohorts,
        exact=released[0].exact[0],
        noise=torch.cat([one.total - one.exact for one in released]).to(torch.float64),
        uploads=None if released[0].uploads is None else released[0].uploads[0],
        bytes=float(figures["uplink_bytes"][0]),
        factor=factor,
    )


def check_amount(found: Measured) -> None:
    """Mean squares follow χ² of the told variance in every coordinate; coordinates do not vary together."""
    told = found.federation.noise.std(found.cohorts, found.noise.shape[1])[0].to(torch.float64)
    silent = told == 0
    rounding = float(found.exact.abs().max()) * 1e-6
    assert float(found.noise[:, silent].abs().max() if silent.any() else 0.0) <= rounding
    normal = (found.noise[:, ~silent] / told[~silent]).numpy()
    draws, size = normal.shape
    squares = (normal**2).sum(0)
    tails = np.minimum(stats.chi2.cdf(squares, draws), stats.chi2.sf(squares, draws))
    assert tails.min() > ERROR / size
    some = np.random.default_rng(0).permutation(size)[:WATCHED]
    correlation = np.corrcoef(normal[:, some].T) - np.eye(len(some))
    assert np.abs(correlation).max() < stats.norm.isf(ERROR / WATCHED**2) / math.sqrt(draws)


def check_certificate(found: Measured) -> None:
    """No client stands out of the measured noise by more than the ledger has counted.

    It counts little more than that: the heaviest client as if it carried the coordinate with the least noise, also
    where that is outside of a random mask.
    """
    cohorts, config = found.cohorts, found.federation.config
    noise = found.federation.noise
    if found.factor is None or noise.in_full or found.federation.recipe.mechanism.clip == "coordinates":
        return
    scale = float((cohorts.clip * cohorts.noise_multiplier)[0])
    variance = (found.noise / scale).square().mean(0)
    sizes = cohorts.layer_sizes
    distances, heaviest, least_of = [], 0.0, dict[int, float]()
    for client in range(int(cohorts.participants[0])):
        weight = 1.0 if cohorts.weights is None else float(cohorts.weights[0, client])
        distance, start = 0.0, 0
        for block, size in enumerate(sizes):
            carried = torch.ones(size, dtype=torch.bool)
            if cohorts.uploaded is not None:
                carried = cohorts.uploaded[0].expand(len(cohorts.present[0]), -1)[client, start : start + size] > 0
            layers = cohorts.layer_weights
            share = (
                1 / len(sizes)
                if layers is None
                else float(layers[0].expand(len(cohorts.present[0]), -1)[client, block])
            )
            if carried.any():
                # of equal noises the least is measured too small: they are told apart by their means
                told = noise.std(cohorts, len(variance))[0][start : start + size][carried]
                least = variance[start : start + size][carried][told <= told.min() * (1 + 1e-6)].mean()
                distance += weight**2 * share / float(least)
                least_of[block] = min(least_of.get(block, math.inf), float(least))
            start += size
        distances.append(distance)
        heaviest = max(heaviest, weight**2)
    draws = len(found.noise)
    slack = 1 + 7 * math.sqrt(2 / draws)
    assert max(distances) <= slack / found.factor**2
    exact = not noise.hidden_support and cohorts.noise_ratio is None
    if noise.by_upload:
        exact &= not found.federation.recipe.sparsification.draws_mask
    if exact and cohorts.layer_weights is None and config.clients == len(distances):
        counted = heaviest * sum(1 / least for least in least_of.values()) / len(sizes)
        assert counted * slack >= 1 / found.factor**2


def check_bytes(found: Measured) -> None:
    """Four bytes for each number that a client sends, and what tells the server where it belongs."""
    federation, cohorts = found.federation, found.cohorts
    noise, size = federation.noise, found.noise.shape[1]
    values = cohorts.updates[0] != 0
    sent = values
    if noise.by_clients and found.uploads is not None:
        sent = found.uploads != 0
    elif noise.by_clients:
        sent = values | (found.noise[0] != 0)
    expected = 4.0 * sent.sum(-1).double()
    part = federation.recipe.sparsification
    if federation.recipe.personalization.masks_uploads:
        expected += size / 8
    hidden = sent.sum(-1) < size if noise.by_clients else torch.ones(len(sent), dtype=torch.bool)
    if part.kind != "none" and not part.is_public and bool(hidden.all()) and not noise.fills_choices:
        expected += (4.0 * sent.sum(-1)).clamp_max(size / 8)
    assert found.bytes == pytest.approx(float(expected.mean()), rel=1e-6)


def check(edits: str, placement: str, guarantee: str, draws: int) -> bool:
    """Measure a combination; whether it exists."""
    changes = {"clients": CLIENTS, "local_steps": 2, "epsilon": 50.0, "partition": "dirichlet(1)"}
    try:
        made = config(set=edits, placement=placement, guarantee=guarantee, **changes)
    except InputError as refused:
        if "would give away" not in str(refused):
            raise
        return False
    found = measured(made, draws)
    check_amount(found)
    check_certificate(found)
    check_bytes(found)
    return True


@pytest.mark.parametrize(("edits", "placement", "guarantee"), combinations(False))
def test_noise_and_bytes_are_what_the_noise_model_tells(edits, placement, guarantee):
    assert check(edits, placement, guarantee, draws=120) or guarantee == "sound"


@pytest.mark.long
@pytest.mark.parametrize(("edits", "placement", "guarantee"), combinations(True))
def test_noise_and_bytes_are_what_the_noise_model_tells_in_every_combination(edits, placement, guarantee):
    check(edits, placement, guarantee, draws=4000)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Invert the privacy curve of the Gaussian mechanism (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        less = math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - less - delta)

    return float(optimize.brentq(excess, 0, 100, xtol=1e-12))


def claimed_mu(epsilon: float, delta: float) -> float:
    """Invert the papers' accounting: ε of Gaussian DP by Rényi DP at Opacus' default orders."""
    orders = np.array([1 + tenth / 10 for tenth in range(1, 100)] + list(range(12, 64)))
    slack = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(optimize.brentq(lambda mu: np.min(orders * mu**2 / 2 + slack) - epsilon, 1e-3, 100, xtol=1e-12))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedglp-adp", "without": "adaptive-clipping"},
        {"method": "dp-fedavg", "set": "personalization=growing-mask,mask_from=uploads"},
    ],
)
def test_masked_noise_of_one_clip_certifies_what_the_rarest_coordinate_has(changes):
    """Where k of m clients noise a coordinate, of variance 1/m each, a round costs m/k times 1/σ².

    Ten clients, twenty rounds, ε 2 at δ 0.05: the noise would be worth ε 1.534 if all clients noised everything.
    """
    told = []
    for edit in ("", "mechanism.upload_noise=true"):
        edits = ",".join(filter(None, (changes.get("set", ""), edit)))
        size = {"clients": 10, "rounds": 20, "epsilon": 2.0, "delta": 0.05}
        made = FederationConfig(**changes | {"set": edits}, guarantee="as-published", executor="vectorized", **size)
        federation, counts = Federation(made), []
        releaser = federation.releaser

        class Spy(Releaser):
            def __call__(self, cohorts: Cohorts, draw: Draw, releaser=releaser, counts=counts) -> RoundRelease:
                assert cohorts.uploaded is not None
                here = cohorts.uploaded[0].sum(0)
                counts.append(float(here[here > 0].min()))
                return releaser(cohorts, draw)

        federation.releaser = Spy(made, federation.recipe, federation.model)
        while not federation.done.any():
            federation.run_round(plan())
        precision = claimed_mu(2.0, 0.05) ** 2 / 20
        assert gaussian_epsilon(math.sqrt(20 * precision), 0.05) == pytest.approx(1.534, abs=5e-4)
        expected = gaussian_epsilon(math.sqrt(sum(10 / count for count in counts) * precision), 0.05)
        assert min(counts) < 3
        assert federation.ledgers[0].epsilon_of_noise() == pytest.approx(expected, rel=1e-4)
        told.append(federation.ledgers[0].epsilon_of_noise())
    assert told[0] == told[1]
