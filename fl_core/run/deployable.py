"""Methods and settings that can be had outside a simulation, and the reasons why others cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fl_core.base.errors import InputError
from fl_core.recipes.recipe import Recipe
from fl_core.run.config import FederationConfig

Check = tuple[bool, str]
"""True where there is no obstacle, and the sentence, without its end, where there is one."""


def require_steerable(config: FederationConfig, recipe: Recipe) -> None:
    """Refuse what a controller and a ledger cannot steer, whoever trains.

    Raises:
        InputError: names the part of the method or the setting, and why.
    """
    for allowed, sentence in _steering(config, recipe):
        if not allowed:
            raise InputError(f"{sentence}: outside a simulation that cannot be.")


def require_deployable(config: FederationConfig, recipe: Recipe) -> None:
    """Refuse what a server that knows only uploads cannot do.

    Raises:
        InputError: names the part of the method or the setting, and why.
    """
    reason = why_not_deployed(config, recipe)
    if reason:
        raise InputError(f"{reason}: this cannot be deployed.")
    if math.isinf(config.epsilon):
        raise InputError("epsilon is inf, with which rounds would release without noise; it must be finite.")
    if config.cohort < 1:
        raise InputError(
            f"sampling_rate is {config.sampling_rate:g} of {config.clients} clients, an expected cohort of "
            f"{config.cohort:g}: most rounds would have nobody; it must be at least 1."
        )


def why_not_deployed(config: FederationConfig, recipe: Recipe) -> str:
    """Return the first reason why a method cannot be deployed under a setting; "" if it can."""
    checks = (*_steering(config, recipe), *_serving(config, recipe))
    return next((sentence for allowed, sentence in checks if not allowed), "")


def _steering(config: FederationConfig, recipe: Recipe) -> Iterator[Check]:
    yield (
        recipe.exchanges and recipe.private,
        f"method is '{config.method}', which releases nothing with noise that a ledger could be charged for",
    )
    yield (
        config.guarantee == "sound",
        f"guarantee is '{config.guarantee}', whose noise depends on what single clients do; set it to sound",
    )
    yield not config.client_epsilon, f"client_epsilon is '{config.client_epsilon}', but all clients have the run's"


def _serving(config: FederationConfig, recipe: Recipe) -> Iterator[Check]:
    method, noise = f"method is '{config.method}', which", config.noise_model()
    yield (
        config.placement != "distributed",
        "placement is 'distributed', in which a client that fails takes its share of the noise with it, and whose "
        "cohorts the server must not know, which Flower's secure aggregation does not give; set it to central",
    )
    yield (
        config.placement == "central",
        f"placement is '{config.placement}', whose noise clients would draw; set it to central",
    )
    yield (
        config.sampling == "poisson",
        f"sampling is '{config.sampling}', which a client that fails would leave short; set it to poisson",
    )
    yield (
        recipe.sparsification.kind == "none",
        f"{method} sparsifies its uploads ({recipe.sparsification.kind}), as only the simulation does",
    )
    yield not recipe.mechanism.budgeting.measures_risk, f"{method} compares its clients' risks"
    yield recipe.aggregation.divide_by != "count", f"{method} divides by the clients that share a coordinate"
    yield not noise.by_clients, f"{method} has noise that its clients draw"
    yield (
        not recipe.personalization.masks_uploads or noise.coordinates == "public",
        f"{method} uploads what masks of its clients, which are private, leave",
    )
