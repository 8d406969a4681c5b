"""Rounds of every method of the papers against the plain loops of `plain_methods`, in both modes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fl_core.recipes.catalog import METHODS as CATALOGUE
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from tests.fl_core.plain import METHODS as PLAIN
from tests.fl_core.plain import plan
from tests.fl_core.plain_methods import (
    PLAIN_METHODS,
    AdaptiveFedSAM,
    AdpPfl,
    BlurLus,
    FedGLP,
    FisherPersonal,
    OwnRandomMask,
    PFedDSU,
    PlainMethod,
    fisher,
)

torch.set_num_threads(1)
NON_PRIVATE = ("pfedsd", "pfsd")


def test_the_plain_loops_cover_the_catalogue():
    assert set(PLAIN) | set(PLAIN_METHODS) == set(CATALOGUE)
    assert not set(PLAIN) & set(PLAIN_METHODS)


def settings(method: str, guarantee: str, **changes) -> FederationConfig:
    base = FederationConfig(
        method=method,
        guarantee=guarantee,
        epsilon=math.inf if method in NON_PRIVATE else 400.0,  # noise that leaves something of the updates
        clients=5,
        rounds=3,
        partition="dirichlet(0.5)",
        test_fraction=0.5,
        local_steps=3,
        batch_size=8,
        learning_rate=0.2,
        executor="vectorized",
    )
    return replace(base, **changes)


def matches(federation: Federation, reference: PlainMethod) -> None:
    """Server and client state agree to float tolerance; Adam divides rounding errors by small gradients."""
    tolerance = 3e-4 if federation.config.optimizer == "adam" else 2e-5
    np.testing.assert_allclose(federation.server[0].numpy(), reference.server.numpy(), atol=tolerance)
    for name, value in federation.clients.items():
        for client in range(federation.config.clients):
            expected = {
                "own": lambda one: reference.own[one],
                "local": lambda one: reference.local[one],
                "added": lambda one: reference.added[one],
                "seen": lambda one: float(reference.seen[one]),
                "risk": lambda one: reference.risk[one],
                "personal": lambda one: reference.masks[one],
                "grown": lambda one: reference.grown[one],
                "log_odds": lambda one: reference.odds[one],
                "layer_norms": lambda one: reference.norms[one],
            }[name](client)
            np.testing.assert_allclose(value[0, client].numpy(), expected, atol=tolerance, rtol=2e-4, err_msg=name)


def clear_threshold(reference: PlainMethod) -> float:
    """A threshold near 0.1 that no client's Fisher information comes close to: rounding cannot flip a mask."""
    values = [fisher(reference, client, reference.own[client]) for client in range(reference.config.clients)]
    near = np.sort(torch.cat(values).numpy())
    near = near[(near > 0.08) & (near < 0.12)]
    widest = int(np.argmax(np.diff(near)))
    return float(near[widest] + near[widest + 1]) / 2


def knobs_of(reference: PlainMethod) -> dict[str, float]:
    """Knobs of the round, in the plan and in the reference."""
    if isinstance(reference, FedGLP):
        return {"personal_limit": reference.limit, "personal_rate": reference.growth}
    if isinstance(reference, FisherPersonal):
        reference.threshold = clear_threshold(reference)
        return {"personal_threshold": reference.threshold}
    sparse = isinstance(reference, BlurLus | AdpPfl) or (isinstance(reference, PFedDSU) and not reference.published)
    return {"sparsity": reference.share} if sparse else {}


def follow(reference_class: type[PlainMethod], made: FederationConfig) -> None:
    """Three rounds of clips that bite and clips that do not, and the clients' models after each."""
    federation = Federation(made)
    reference = reference_class(made, 0, federation.server[0])
    for clip, rate in ((0.5, 1.0), (3.0, 0.7), (0.05, 1.0)):
        knobs = {name: np.array([value]) for name, value in knobs_of(reference).items()}
        report = federation.run_round(replace(plan(1, clip, rate), settings=knobs), evaluate=True)
        if isinstance(reference, AdpPfl) and not reference.published:
            charge = federation.ledgers[0].charges[-1]
            reference.risk_sigma = {one.name: one.noise_multiplier for one in charge.releases}["risk"]
        sigma = report.figures["noise_multiplier"][0] if "noise_multiplier" in report.figures else 0.0
        assert (sigma > 0) == math.isfinite(made.epsilon)
        reference.step(clip, rate, sigma)
        matches(federation, reference)
        assert report.figures["personal_loss"][0] == pytest.approx(reference.personal_loss(), rel=2e-4)


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
@pytest.mark.parametrize("method", PLAIN_METHODS)
def test_rounds_equal_a_plain_loop(method, guarantee):
    follow(PLAIN_METHODS[method], settings(method, guarantee))


POISSON = {"sampling_rate": 0.6, "executor": "sequential"}


@pytest.mark.parametrize(
    ("method", "guarantee", "changes"),
    [
        ("feddpa", "sound", {"optimizer": "adam", "learning_rate": 0.01, **POISSON}),
        ("fedglp-adp", "sound", {"optimizer": "adam", "learning_rate": 0.01, **POISSON}),
        ("fedglp-adp", "as-published", {"optimizer": "adam", "learning_rate": 0.01, **POISSON}),
        ("fedaddp", "sound", {"momentum": 0.5, **POISSON}),
        ("dp-fedsam", "as-published", {"momentum": 0.5, **POISSON}),
        ("dp-pfeddsu", "sound", {"momentum": 0.5, **POISSON}),
        ("dp-pfeddsu", "as-published", POISSON),
        ("adp-pfl", "sound", POISSON),
        ("adp-pfl", "as-published", {"momentum": 0.5, **POISSON}),
        ("acdp-pfsd", "as-published", POISSON),
        ("pmtl-ft", "sound", POISSON),
        ("fed-smp", "as-published", POISSON),
        ("ppsgd", "sound", {"momentum": 0.5, **POISSON}),
        ("blur-lus", "as-published", POISSON),
    ],
)
def test_rounds_with_other_optimizers_cohorts_and_executor_equal_a_plain_loop(method, guarantee, changes):
    follow(PLAIN_METHODS[method], settings(method, guarantee, **changes))


def test_adaptive_sharpness_equals_a_plain_loop():
    follow(AdaptiveFedSAM, settings("dp-fedsam", "sound", set="objective.adaptive_sharpness=true"))


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
def test_masks_that_clients_draw_themselves_equal_a_plain_loop_with_noise_on_every_coordinate(guarantee):
    edits = "sparsification=random,sparsification.drawn_by=client,sparsification.sparsity=0.3"
    follow(OwnRandomMask, settings("dp-fedavg", guarantee, set=edits, **POISSON))
