"""Options of a federation that take one of a few names, and what each name stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tyro

from fl_core.base.devices import DEVICES
from fl_core.data.populations import POPULATIONS
from fl_core.privacy.mechanism import PLACEMENTS
from fl_core.recipes.recipe import GUARANTEES
from fl_core.training.measured import EXECUTORS
from fl_core.training.optimizers import OPTIMIZERS

SAMPLINGS = {
    "poisson": "each client takes part independently with the sampling rate",
    "fixed": "equally many clients every round, without replacement; counted without amplification by sampling",
}
NOISE_SCHEDULES = {
    "auto": "fixed where it can be and no controller sets the noise, otherwise adaptive",
    "fixed": "the noise of all rounds is fixed before the run, which takes less of it below sampling rate 1",
    "adaptive": "noise may depend on what was released",
}
NOISES = {
    "seeded": "whoever knows the seed can subtract it",
    "secret": "from a key of the operating system, which is kept nowhere once the run has ended",
}
EVALUATIONS = {
    "holdout": "each client's own hold-out",
    "classes": "the test images of the client's classes",
    "whole": "the whole test set",
}
CHOICES: dict[str, Mapping[str, str]] = {
    "guarantee": GUARANTEES,
    "population": POPULATIONS,
    "sampling": SAMPLINGS,
    "optimizer": OPTIMIZERS,
    "noise_schedule": NOISE_SCHEDULES,
    "placement": PLACEMENTS,
    "noise": NOISES,
    "evaluation": EVALUATIONS,
    "executor": EXECUTORS,
    "device": DEVICES,
}
"""By field of `FederationConfig`; shown by `dpilot list choices`."""


def one_of(names: Iterable[str]) -> Any:
    """Show the names that an option takes in the help of the command line, as {poisson,fixed}."""
    return tyro.conf.arg(metavar="{" + ",".join(names) + "}")
