"""Configuration of a federation: settings that all runs of a batch share, and settings of a single run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

from fl_core.base.arguments import take_numbers
from fl_core.base.bounds import check_numbers
from fl_core.base.devices import DEVICE_NAMES, check_device, find_device
from fl_core.base.errors import require, require_name
from fl_core.base.libraries import torch
from fl_core.base.values import read_list, read_value
from fl_core.data.augmentation import parse_augmentation
from fl_core.data.datasets import data_root
from fl_core.data.normalization import parse_normalization
from fl_core.data.partition import parse_partition
from fl_core.privacy.adjacency import ADJACENCIES, amplified_rate, default_adjacency, require_adjacency
from fl_core.privacy.curves import require_epsilon
from fl_core.privacy.noise_model import NoiseModel
from fl_core.privacy.telemetry import CLIP_BIT, parse_telemetry
from fl_core.recipes.catalog import find_method
from fl_core.recipes.recipe import Recipe, edit, without
from fl_core.run.budget import NOISE_MULTIPLIER, UnstatedEpsilon, both_given, delta_warning, planned_epsilon
from fl_core.run.choices import CHOICES, one_of
from fl_core.run.parts import check_parts
from fl_core.run.ranges import BOUNDS, SEED
from fl_core.training.optimizers import Optimizer


@dataclass(frozen=True)
class FederationConfig:
    """Settings that all runs of a batch share. Every field is checked when the object is made."""

    dataset: str = "digits"
    """Dataset by name (`dpilot list datasets`), or your own: data.npz, a folder, or FILE.py:NAME."""
    model: str = "mlp"
    """Model by name (`dpilot list models`), or your own: FILE.py:NAME."""
    method: str = "dp-fedavg"
    """Method by name (`dpilot list methods`), or your own: FILE.py:NAME."""
    guarantee: Annotated[str, one_of(CHOICES["guarantee"])] = "sound"
    """Meaning of epsilon (`dpilot list choices`): sound counts every release, as-published follows the paper."""
    set: str = ""
    """Changes to the method's parts, comma-separated, such as sparsification=random,personalization.threshold=0.2
    (options in `dpilot list methods`)."""
    without: str = ""
    """Components to leave out of the method, comma-separated: adaptive-constraint, or a part or loss term."""
    clients: int = 50
    """Number of clients N."""
    partition: str = "shards(3)"
    """Partition of the samples over the clients, such as shards(3) or iid (`dpilot list partitions`)."""
    population: Annotated[str, one_of(CHOICES["population"])] = "all"
    """Data that the clients hold (`dpilot list choices`): the whole dataset or one of two disjoint halves, of which
    one is for training and tuning controllers."""
    test_fraction: float = 0.2
    """Share of each client's samples held out to test its personal model, in (0, 0.5]."""
    sampling: Annotated[str, one_of(CHOICES["sampling"])] = "poisson"
    """Sampling of a round's cohort (`dpilot list choices`)."""
    sampling_rate: float = 1.0
    """Expected share q of the clients in a round, in (0, 1]."""
    rounds: int = 40
    """Number of communication rounds T."""
    local_steps: int = 4
    """Minibatches a client trains on per round (used unless local_epochs is above 0)."""
    local_epochs: float = 0.0
    """Passes over its samples a client trains for per round; 0 leaves the length to local_steps."""
    batch_size: int = 16
    """Samples per minibatch."""
    augmentation: str = ""
    """Random changes of training images, comma-separated, such as flip,crop(4) (`dpilot list augmentations`)."""
    input_normalization: str = "none"
    """Constants that images are normalised with: none, published (`dpilot list datasets`), or public ones: 0.5/0.5."""
    optimizer: Annotated[str, one_of(CHOICES["optimizer"])] = "sgd"
    """Local optimizer (`dpilot list choices`)."""
    learning_rate: float = 0.4
    """Local learning rate."""
    momentum: float = 0.0
    """Momentum of the local SGD, in [0, 1)."""
    weight_decay: float = 0.0
    """Weight decay of the local optimizer."""
    update_scale: float = 1.0
    """Unit in which clip norms are set and norms are told, as a factor on the model's own: a network whose weights are
    kept in other units learns the same, but its updates, and its best clip norm, are so many times as long."""
    epsilon: float = UnstatedEpsilon(7.5)
    """Privacy budget epsilon (client level); inf trains without noise."""
    noise_multiplier: float | None = None
    """Noise multiplier of a round, noise std over the clip norm, in place of epsilon: the budget is then that of all
    rounds at this noise."""
    delta: float = 1e-5
    """Privacy parameter delta, in (0, 1); below 1/clients to mean anything."""
    adjacency: Annotated[str, one_of(("auto", *ADJACENCIES))] = "auto"
    """Adjacency, the neighbours that epsilon is about (`dpilot list adjacencies`); auto takes add-remove for
    Poisson cohorts, and zero-out for fixed ones and where the server sees who takes part."""
    noise_schedule: Annotated[str, one_of(CHOICES["noise_schedule"])] = "auto"
    """Choice of the noise multipliers, before the run or from what is released (`dpilot list choices`)."""
    placement: Annotated[str, one_of(CHOICES["placement"])] = "central"
    """Party that adds the noise, and so the observers it holds against (`dpilot list choices`)."""
    noise: Annotated[str, one_of(CHOICES["noise"])] = "seeded"
    """Source of the noise (`dpilot list choices`): a function of the seed, for experiments, or of a secret key of the
    operating system."""
    client_epsilon: str = ""
    """Public budgets of the clients' own, comma-separated and dealt out in turn, the largest equal to epsilon: 2,4,8;
    a client is out when its filter trips. Empty gives every client all of epsilon."""
    telemetry_share: float = 0.0
    """Share of each round's privacy spent on telemetry, in [0, 1)."""
    telemetry: str = "clip-bit"
    """Telemetry that the share pays for (`dpilot list choices`), comma-separated, if need be with parts that sum to 1,
    such as accuracy=0.7,loss=0.3."""
    bit_noise: float = 0.0
    """Std of the clip bit's noise, in clients, in place of its part of the share (a twentieth of the cohort is usual);
    above half of the round's noise multiplier. 0 leaves it to the share."""
    evaluation: Annotated[str, one_of(CHOICES["evaluation"])] = "holdout"
    """Samples that the clients' models are tested on (`dpilot list choices`)."""
    evaluation_samples: int = 0
    """Images of the pooled test set that accuracy is measured on (a fixed subset); 0 takes all."""
    evaluation_clients: int = 1000
    """Most clients whose models are tested, drawn once per run; 0 tests all."""
    executor: Annotated[str, one_of(CHOICES["executor"])] = "auto"
    """Execution of the local training, of many clients at once or one by one (`dpilot list choices`)."""
    memory_limit_mib: int = 0
    """Memory for stacked clients in MiB; 0 takes 192 on a CPU, and half of what is free on a GPU."""
    client_memory_mib: int = 0
    """Memory for what clients keep between rounds in MiB, past which it lies in a temporary file; 0 sets no limit."""
    image_memory_mib: int = 0
    """Memory for images on the device in MiB, past which they stay on the host and are copied minibatch by minibatch;
    0 takes half of what is free on a GPU."""
    device: Annotated[str, one_of(DEVICE_NAMES)] = "auto"
    """Device that everything runs on (`dpilot list choices`)."""
    data_root: str = ""
    """Folder of the datasets; empty takes the environment variable DPILOT_DATA or ~/.cache/dpilot."""

    def __post_init__(self) -> None:
        take_numbers(self)
        self._check_names()
        for field, allowed in BOUNDS.items():
            allowed.check(field, getattr(self, field))
        self.local_optimizer()
        self._check_guarantee()
        self._check_adjacency()
        if self.noise_multiplier is not None:
            object.__setattr__(self, "epsilon", self._planned_epsilon(self.noise_multiplier))
        self.check_epsilon(self.epsilon)
        self._check_telemetry()
        self._check_client_budgets()
        if math.isfinite(self.epsilon):
            self.warn_of_delta()

    def _check_names(self) -> None:
        """Raise `InputError` for names that are in no catalogue, and for values that should be text and are not."""
        check_parts(self)
        for field, allowed in _NAMES.items():
            require_name(field, getattr(self, field), allowed)
        for field in (
            "set",
            "without",
            "client_epsilon",
            "telemetry",
            "data_root",
            "augmentation",
            "input_normalization",
        ):
            require(isinstance(getattr(self, field), str), f"{field} is {getattr(self, field)!r}, but it must be text.")
        check_device(self.device)
        parse_partition(self.partition)
        parse_augmentation(self.augmentation)
        parse_normalization(self.input_normalization)
        data_root(self.data_root)
        self.recipe()

    def _check_guarantee(self) -> None:
        """Raise `InputError` for a sound run of a method whose edits make it release something without noise."""
        recipe = self.recipe()
        if self.guarantee == "sound" and recipe.private:
            require(
                not self.uncovered,
                f"guarantee is 'sound', but the method as edited would give away {'; '.join(self.uncovered)}; take the "
                "edit back or set guarantee to as-published.",
            )

    def _planned_epsilon(self, noise_multiplier: float) -> UnstatedEpsilon:
        """Compute the ε of all rounds at this noise; raise `InputError` where ε is stated too, or has no meaning."""
        NOISE_MULTIPLIER.check("noise_multiplier", noise_multiplier)
        if not isinstance(self.epsilon, UnstatedEpsilon):
            raise both_given(self.epsilon, noise_multiplier)
        require(
            self.recipe().private,
            f"noise_multiplier is {noise_multiplier}, but method '{self.method}' adds no noise; leave it out.",
        )
        size = (self.delta, self.accounting_rate, self.rounds)
        claim = self.guarantee == "as-published"
        return UnstatedEpsilon(planned_epsilon(noise_multiplier, *size, self.neighbours, claim))

    def recipe(self) -> Recipe:
        """Return the method's recipe in the mode of `guarantee`, with the edits of `without` and `set`.

        Raises:
            InputError: an edit does not fit the method, or leaves parts that do not fit together.
        """
        return _recipe(find_method(self.method), self.guarantee, self.without, self.set, bool(self.client_epsilon))

    def require_seeded_noise(self, what: str) -> None:
        """Raise `InputError` if the noise is secret; `what`, as "a comparison", names what needs seeded noise."""
        require(
            self.noise == "seeded",
            f"noise is '{self.noise}', but {what} simulates runs that their seeds repeat; set it to seeded.",
        )

    def noise_model(self) -> NoiseModel:
        """Return the model of the noise that the method adds to the sums it releases."""
        return self.recipe().noise(self.placement, self.guarantee == "as-published")

    def _check_telemetry(self) -> None:
        """Raise `InputError` for telemetry of a method that does not clip, or noise of an unreleased clip bit."""
        shares, private = parse_telemetry(self.telemetry), self.recipe().private
        for field in ("telemetry_share", "bit_noise"):
            value = getattr(self, field)
            require(
                not value or private,
                f"{field} is {value}, but method '{self.method}' clips nothing that could be reported; set it to 0.",
            )
        require(
            not self.bit_noise or CLIP_BIT in shares,
            f"bit_noise is {self.bit_noise}, but telemetry is '{self.telemetry}', without the clip-bit.",
        )

    @property
    def client_budgets(self) -> tuple[float, ...]:
        """Budgets ε of single clients: client i has entry i modulo their number; () if all clients have the run's ε.

        Raises:
            InputError: the text of `client_epsilon` holds something else.
        """
        entries = read_list("client_epsilon", self.client_epsilon)
        return tuple(read_value("An entry of client_epsilon", entry, float) for entry in entries)

    def _check_client_budgets(self) -> None:
        """Raise `InputError` for client budgets that exceed the run's, or that the method has no part to enforce."""
        recipe, budgets = self.recipe(), self.client_budgets
        part, text = recipe.mechanism.client_budget, f"client_epsilon is '{self.client_epsilon}'"
        require(part != "own" or bool(budgets), "mechanism.client_budget is own, but client_epsilon names no budgets.")
        if not budgets:
            return
        require(recipe.private, f"{text}, but method '{self.method}' releases nothing with noise.")
        require(self.guarantee == "sound", f"{text}, which needs guarantee sound, but it is {self.guarantee}.")
        require(part == "own", f"{text}, but the method shares budgets by {part}; add --set client_budget=own.")
        require(len(budgets) <= self.clients, f"{text}: {len(budgets)} budgets for {self.clients} clients.")
        require(
            all(0 < one < math.inf for one in budgets) and max(budgets) == self.epsilon,
            f"{text}, but its entries must be above 0 and the largest equal to epsilon {self.epsilon:g}.",
        )

    def _check_adjacency(self) -> None:
        """Raise `InputError` for an adjacency that the sampling excludes, or noise that cannot be fixed in advance."""
        require_adjacency(self.adjacency, self.sampling, self.sampling_rate, self.placement)
        require(
            self.noise_schedule != "fixed" or self.can_plan_noise,
            "noise_schedule is fixed, but noise is planned only where guarantee is sound, the rounds share the budget "
            "equally and clients have no budgets of their own; set it to adaptive.",
        )

    @property
    def neighbours(self) -> str:
        """The adjacency of ε, one of `ADJACENCIES`."""
        return default_adjacency(self.sampling, self.placement) if self.adjacency == "auto" else self.adjacency

    @property
    def can_plan_noise(self) -> bool:
        """True if the noise of all rounds can be fixed before the run, as long as no controller sets it."""
        uniform = self.recipe().mechanism.budget == "uniform"
        return self.guarantee == "sound" and uniform and not self.client_epsilon

    def noise_schedule_as_run(self, controlled: bool) -> str:
        """Decide a noise schedule of auto: fixed where the noise can be, adaptive if a controller sets it."""
        if self.noise_schedule != "auto":
            return self.noise_schedule
        return "adaptive" if controlled or not self.can_plan_noise else "fixed"

    def check_epsilon(self, epsilon: float) -> None:
        """Raise `InputError` for an ε that is not above 0, or a finite one for a method that adds no noise."""
        require_epsilon(epsilon)
        recipe = self.recipe()
        require(
            epsilon == math.inf or not recipe.exchanges or recipe.private,
            f"epsilon is {epsilon}, but method '{self.method}' adds no noise and certifies none; set epsilon to inf.",
        )

    def warn_of_delta(self) -> None:
        """Warn of δ at or above 1/N."""
        warning = delta_warning(self.delta, self.clients)
        if warning:
            warnings.warn(warning, stacklevel=4)

    def local_optimizer(self) -> Optimizer:
        """Return the settings of the local optimizer."""
        return Optimizer(self.optimizer, self.momentum, self.weight_decay)

    def resolve_device(self) -> torch.device:
        """Return the torch device; `auto` is CUDA if there is one, else the CPU."""
        return find_device(self.device)

    @property
    def tested_clients(self) -> int:
        """Clients whose models are tested."""
        return min(self.clients, self.evaluation_clients or self.clients)

    @property
    def cohort(self) -> float:
        """Expected number of clients per round: qN for Poisson cohorts, and qN rounded, at least 1, for fixed ones."""
        expected = self.sampling_rate * self.clients
        return expected if self.sampling == "poisson" else float(max(1, round(expected)))

    @property
    def accounting_rate(self) -> float:
        """Poisson rate q that the ledger counts privacy amplification by subsampling for; 1 for none."""
        return amplified_rate(self.sampling, self.sampling_rate, self.placement, self.neighbours)

    @property
    def cohort_varies(self) -> bool:
        """True if the number of participants is random, and so private."""
        return self.sampling == "poisson" and self.sampling_rate < 1

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Disclosures of the method that no noise covers, as phrases."""
        return self.recipe().uncovered(self.placement, self.cohort_varies)


@lru_cache(maxsize=1024)
def _recipe(method: Recipe, guarantee: str, left_out: str, changes: str, own_budgets: bool) -> Recipe:
    """Build and check a method's recipe in a mode, with edits; cached, so that equal arguments give one object."""
    recipe = edit(without(method.in_mode(guarantee), read_list("without", left_out)), read_list("set", changes))
    if own_budgets and recipe.mechanism.client_budget == "uniform":
        recipe = replace(recipe, mechanism=replace(recipe.mechanism, client_budget="own"))
    recipe.check()
    return recipe


@dataclass(frozen=True)
class RunSettings:
    """Settings of a single run of a batch; None takes the value of the `FederationConfig`."""

    seed: int
    epsilon: float | None = None
    partition: str | None = None
    learning_rate: float | None = None
    update_scale: float | None = None

    def __post_init__(self) -> None:
        take_numbers(self)
        SEED.check("seed", self.seed)
        check_numbers(self, BOUNDS)
        if self.epsilon is not None:
            require_epsilon(self.epsilon)
        if self.partition is not None:
            parse_partition(self.partition)


_NAMES: Mapping[str, Iterable[str]] = {
    "adjacency": ("auto", *ADJACENCIES),
    **{field: names for field, names in CHOICES.items() if field != "device"},
}
"""Names allowed, by field."""
