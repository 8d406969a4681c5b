"""Free calibration: the length of a client's first update, simulated on random images and labels.

Model, method, learning rate, local work, batch size and partition are the run's own; the data are not, so that the
length is a function of public settings and costs no privacy. On `digits` it is 1.2, where the clients' updates are 1.4.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from fl_core.base.arguments import checked
from fl_core.base.errors import InputError, require
from fl_core.base.streams import torch_generator
from fl_core.data.datasets import Dataset, outline_of
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import CLIP_RANGE, FloatArray, RoundPlan

CLIENTS = 32
"""Clients that are simulated, where the run has as many."""
LEAST_SAMPLES = 2
_SEED = 0
_SHORT_STEP = 0.01


@dataclass(frozen=True)
class Calibration:
    """What a round on random data tells of a setting.

    Attributes:
        norm: mean norm of the clients' updates, in the units of the configuration.
        size: parameters of the model.
        noised: coordinates d in which the released sum has noise, so that its noise of std Cσ has the norm Cσ√d; where
            stds differ, as those of layers with weights do, their squares over (Cσ)² added up. 0 without noise.
    """

    norm: float
    size: int
    noised: float


@checked
def calibrate(config: FederationConfig) -> Calibration:
    """Simulate a round on random data, once per setting in a process.

    Raises:
        InputError: as `calibrated_norm`.
    """
    return _calibrated(_stripped(config))


@checked
def calibrated_norm(config: FederationConfig, settings: RunSettings | None = None, size: int | None = None) -> float:
    """Simulate the mean norm of the clients' first updates on random data, in the units of the configuration.

    Of the dataset it takes the shape of the images, the number of classes and the number of samples per client. It is
    computed once per setting in a process. A partition that random data do not allow is replaced by an even one.

    Args:
        config: settings of the federation.
        settings: of a run, whose own learning rate and partition count; its `update_scale` does not, as that stands for
            what makes real updates longer or shorter than simulated ones.
        size: parameters that the model must have; None for any.

    Raises:
        InputError: nothing is uploaded, the model has another size, or the simulated updates are not finite.
    """
    if settings is not None:
        rate = config.learning_rate if settings.learning_rate is None else settings.learning_rate
        partition = config.partition if settings.partition is None else settings.partition
        config = replace(config, learning_rate=rate, partition=partition)
    found = calibrate(config)
    require(
        size in (None, found.size),
        f"The network of dataset '{config.dataset}' and model '{config.model}', on which updates are simulated, has "
        f"{found.size:,} parameters, but that of the run has {size or 0:,}; set dataset and model to the run's own.",
    )
    return found.norm


def calibrated_gradient(config: FederationConfig, settings: RunSettings | None = None) -> float:
    """Simulate the mean norm of a minibatch's gradient on random data: a first update of one short step, over its rate.

    Over it, `calibrated_norm` tells how far the local work of a round goes, whatever the units of the model.

    Raises:
        InputError: as `calibrated_norm`.
    """
    rate = _SHORT_STEP
    one = replace(config, local_steps=1, local_epochs=0.0)
    partition = None if settings is None else settings.partition
    return calibrated_norm(one, RunSettings(seed=0, learning_rate=rate, partition=partition)) / rate


def _stripped(config: FederationConfig) -> FederationConfig:
    """Return the configuration without all that a client's update does not depend on."""
    private = config.recipe().private
    epsilon = max(config.client_budgets, default=1.0) if private else math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of δ, for fewer clients
        return replace(
            config,
            epsilon=epsilon,
            noise_multiplier=None,
            noise="seeded",
            noise_schedule="auto",
            sampling="poisson",
            sampling_rate=1.0,
            adjacency="auto",
            rounds=1,
            telemetry_share=0.0,
            bit_noise=0.0,
            evaluation_samples=0,
            executor="sequential" if config.executor == "sequential" else "vectorized",
        )


@lru_cache(maxsize=1024)
def _calibrated(config: FederationConfig) -> Calibration:
    require(
        config.recipe().exchanges, f"method '{config.method}' uploads nothing, so that there is no update to calibrate."
    )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        federation = _federation(config)
        report = federation.run_round(RoundPlan.constant(1, clip_norm=CLIP_RANGE[1]))
    norm = float(report.figures["update_norm"][0])
    require(
        np.isfinite(norm) and norm > 0,
        f"learning_rate is {config.learning_rate:g}, at which updates on random data have the norm {norm:g}; lower it.",
    )
    return Calibration(norm, federation.model.size, _noised(federation, report.figures))


def _noised(federation: Federation, figures: Mapping[str, FloatArray]) -> float:
    """Compute the coordinates with noise from the norm that it is expected to have."""
    if not federation.recipe.private:
        return 0.0
    config = federation.config
    std = figures["clip_norm"][0] * figures["noise_multiplier"][0]
    if config.placement == "local":
        std *= math.sqrt(config.cohort)
    return float((figures["release_noise"][0] * config.cohort / std) ** 2)


def _federation(config: FederationConfig) -> Federation:
    """Make the simulated federation; on an even partition where the run's own is impossible with random data."""
    outline, samples = outline_of(config.dataset, config.data_root or None)
    per_client = max(LEAST_SAMPLES, round(samples / config.clients))
    clients = min(config.clients, max(CLIENTS, len(config.client_budgets)))
    data = random_dataset(outline, clients * per_client)
    config = replace(config, clients=clients, population="all")
    if config.partition in ("natural", "largest"):
        config = replace(config, partition="iid")
    try:
        return Federation(config, dataset=data)
    except InputError:
        return Federation(replace(config, partition="iid"), dataset=data)


def random_dataset(like: Dataset, samples: int) -> Dataset:
    """Draw uniform pixels, or standard normal features, with uniform labels, in the shape of another dataset."""
    draw = torch_generator(_SEED, "population")
    size = (samples, *like.shape)
    if like.train_images.dtype == torch.uint8:
        images = torch.randint(0, round(like.scale) + 1, size, generator=draw).to(torch.uint8)
    else:
        images = torch.randn(size, generator=draw).to(like.train_images.dtype)
    labels = torch.randint(0, like.classes, (samples,), generator=draw)
    return replace(
        like,
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
        train_groups=None,
        test_groups=None,
    )
