"""Simulation of a batch's clients: their data, models and local training, without privacy budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.base.counters import mixed, uniform
from fl_core.base.errors import InputError, require
from fl_core.base.transfers import to_device
from fl_core.data.augmentation import check_augmentation
from fl_core.data.clients import ClientIndex, client_index
from fl_core.data.datasets import DATASETS, Dataset, dataset_entry, load_dataset
from fl_core.data.normalization import find_normalization
from fl_core.models.build import build_model
from fl_core.privacy.noise_model import Contributors
from fl_core.recipes.objective import Phase
from fl_core.run.cohort import Cohort, draw_cohort, draw_tested, of_runs
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.evaluation import Evaluation, placed_rows
from fl_core.run.footprint import place_images, require_memory
from fl_core.run.local_data import (
    ClientTables,
    Pair,
    client_words,
    draw_batches,
    evenly_spaced,
    phase_steps,
    sample_words,
)
from fl_core.run.parts import warn_of_clients
from fl_core.run.ranges import RUNS
from fl_core.run.release import Releaser
from fl_core.run.state import RunState
from fl_core.training.compiled import require_compiler
from fl_core.training.executors import Executor
from fl_core.training.information import fisher_information
from fl_core.training.memory import keep_freed_memory
from fl_core.training.work import LocalWork


class Simulation:
    """Data, models and local training of a batch of runs, whatever state their rounds start from.

    Attributes:
        config: settings that the runs share.
        settings: settings that each run has to itself.
        recipe: the method, in its mode and as edited.
        noise: the noise of the released sums.
        secrets: keys of the runs' noise, empty where it is seeded. They are in no record, state or text: who continues
            a run whose noise is secret puts its key here first.
        evaluation: tests of models.
        layer_sizes: coordinates of each block of the update that is clipped by itself.
        executor: local training.
        tables: the clients' index tables.
        images: the training images.
        releaser: clip, noise and aggregation.
    """

    def __init__(self, config: FederationConfig, runs: int, dataset: Dataset | None = None):
        """Build the model, and load the data unless a dataset is given in its place; run r has seed r.

        Raises:
            InputError: the dataset is missing, or a setting does not fit it.
        """
        RUNS.check("runs", runs)
        self.config = config
        self.recipe = config.recipe()
        self.device = config.resolve_device()
        if config.executor == "compiled":
            require_compiler(self.device)
        keep_freed_memory()
        if dataset is None:
            dataset = load_dataset(config.dataset, config.data_root or None, population=config.population)
        self._dataset = dataset
        if self._dataset.train_groups is not None and not DATASETS.origin(config.dataset).built_in:
            warn_of_clients(config.dataset, config.partition)
        self.model = build_model(config.model, self._dataset.shape, self._dataset.classes)
        self.executor = Executor(self.model, config.executor, config.memory_limit_mib * 2**20)
        self._augmentation = check_augmentation(config.augmentation, self._dataset.shape)
        published, channels = dataset_entry(config.dataset).normalization, self._dataset.shape[0]
        normalization = find_normalization(config.input_normalization, config.dataset, published, channels)
        there, aside = place_images(dataset, self.device, config.image_memory_mib)
        tested = (config.evaluation_samples, config.evaluation, normalization, aside)
        self.evaluation = Evaluation(self.executor, there, *tested)
        self.images = self.evaluation.train_images
        self.noise = config.noise_model()
        self.layer_sizes = [block.stop - block.start for block in self.recipe.mechanism.clipping.blocks(self.model)]
        self.releaser = Releaser(config, self.recipe, self.model)
        self.recipe.sparsification.check(self.model)
        self.recipe.personalization.check(self.model)
        self._check_layers()
        self.runs = runs
        self.settings = [RunSettings(seed=row) for row in range(runs)]
        self.secrets = [b""] * runs
        self._indices = [self._client_index(one) for one in self.settings]
        self.tables = ClientTables(self._indices, self.device)
        require_memory(config, self.recipe, self.model, runs, max(self.tables.widths))

    def _check_layers(self) -> None:
        """Refuse a network of a single layer for a method that trains the others apart from it."""
        apart = any(update.trains == "body" for phase in self.recipe.objective.phases for update in phase.updates)
        require(
            not apart or self.model.body.stop > 0,
            f"model '{self.config.model}' has one layer only, but method '{self.config.method}' trains the last apart "
            "from others.",
        )

    def _client_index(self, settings: RunSettings) -> ClientIndex:
        """Spread the samples of a run over its clients."""
        config = self.config
        partition = config.partition if settings.partition is None else settings.partition
        labels, groups = self._dataset.train_labels, self._dataset.train_groups
        try:
            return client_index(labels, config.clients, partition, settings.seed, groups, config.test_fraction)
        except InputError as error:
            if config.population == "all":
                raise
            sentence = str(error).rstrip(".")
            raise InputError(f"{sentence} (population {config.population} is half of the dataset).") from error

    def _hold(self, rows: Sequence[int], settings: Sequence[RunSettings], indices: Sequence[ClientIndex]) -> None:
        """Give rows of the batch other settings and their clients other data."""
        for row, one, index in zip(rows, settings, indices, strict=True):
            self.settings[row], self._indices[row] = one, index
        self.tables = ClientTables(self._indices, self.device)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return [one.seed for one in self.settings]

    @property
    def update_scales(self) -> FloatArray:
        """Norms as controllers set and see them, over the model's own `[runs]`."""
        usual = self.config.update_scale
        return np.array([usual if one.update_scale is None else one.update_scale for one in self.settings])

    # ---------------------------------------------------------------- cohorts and masks

    def draw_cohort(self, rounds: NDArray[np.int64], ran: BoolArray, out: BoolArray | None = None) -> Cohort:
        """Draw the clients of a round.

        Args:
            rounds: rounds done by each run `[runs]`.
            ran: runs that take part `[runs]`.
            out: clients that stay away where they are drawn `[runs, clients]`.
        """
        return draw_cohort(self.config, self.seeds, rounds, ran, self.device, out)

    def contributors(self, state: RunState, row: int, same_layers: bool) -> Contributors:
        """Gather what is known of the clients of a run's next round before they train, in units of C and σ.

        Args:
            state: what the round starts from.
            row: the run.
            same_layers: True if the plan gives all clients the same layer weights.
        """
        ran = np.zeros(self.runs, dtype=bool)
        ran[row] = True
        cohort = self.draw_cohort(state.rounds, ran)
        own = state.clients.rows(cohort.run, cohort.client)
        uploaded = self.recipe.personalization.shared(own)
        weights = None if same_layers else self.recipe.mechanism.clipping.client_weights(own)
        # All but what clients keep is known on the host: then a GPU need not be waited for.
        device = torch.device("cpu") if uploaded is None and weights is None else self.device
        counts = self._indices[row].train.count[torch.from_numpy(cohort.members[row])]
        samples = to_device(counts.to(torch.float32), device).unsqueeze(0)
        present = torch.ones_like(samples, dtype=torch.bool)
        one = torch.ones(1, device=device)
        return Contributors(
            clip=one,
            noise_multiplier=one,
            present=present,
            participants=one * len(cohort.run),
            weights=self.recipe.aggregation.factors(samples, present),
            uploaded=None if uploaded is None else uploaded.unsqueeze(0),
            layer_sizes=self.layer_sizes,
            layer_weights=None if weights is None else weights.unsqueeze(0),
            noise_ratio=None,
        )

    def public_mask(self, state: RunState, sparsity: Tensor, server: Tensor | None = None) -> Tensor | None:
        """Make the mask that everybody knows in this round `[runs, size]`; None if the method has none.

        Args:
            state: what the round starts from.
            sparsity: share of the coordinates that is kept `[runs]`.
            server: models that the mask follows from `[runs, size]`; None takes the server's present ones.
        """
        part, model = self.recipe.sparsification, self.model
        if not part.is_public:
            return None
        draws = None
        if part.draws_mask:
            every = torch.arange(self.runs, device=self.device)
            draws = self._mask_draws(state, "of a run", every, torch.zeros_like(every))
        return part.public_mask(model, state.server if server is None else server, sparsity, draws)

    def client_draws(self, state: RunState, run: Tensor, client: Tensor) -> Tensor:
        """Draw uniform numbers `[rows, size]` of the clients at (run, client), whoever else takes part."""
        return self._mask_draws(state, "of a client", run, client)

    def _mask_draws(self, state: RunState, purpose: str, run: Tensor, client: Tensor) -> Tensor:
        """Draw uniform numbers `[rows, size]` for random masks."""
        words = client_words(self.seeds, "mask", purpose, state.rounds, run, client)
        return uniform(mixed(words.unsqueeze(-1), torch.arange(self.model.size, device=self.device)))

    def common_mask(self, state: RunState, knobs: Mapping[str, Tensor]) -> Tensor:
        """Make the mask of the coordinates that a run's clients upload, whoever takes part `[runs, size]`."""
        mask = torch.ones(self.runs, self.model.size, device=self.device)
        masks = [
            self.recipe.personalization.shared(state.runs),
            self.recipe.personalization.static_mask(self.model, self.device),
            self.public_mask(state, knobs["sparsity"]) if self.recipe.sparsification.is_public else None,
        ]
        for one in masks:
            mask = mask if one is None else mask * one
        return mask

    # ---------------------------------------------------------------- clients at work

    def fisher(
        self, models: Tensor, run: Tensor, client: Tensor, samples: int = 0, on_host: Pair | None = None
    ) -> Tensor:
        """Measure the Fisher information of models `[rows, size]` on training samples of the clients at (run, client).

        Args:
            models: one per client.
            run: rows of the batch whose samples are taken.
            client: clients in those rows.
            samples: how many at most, evenly spaced in the client's list, which is sorted by class; 0 takes all.
            on_host: run and client on the host, for images that are there; None reads them back.
        """
        limit = self.executor.memory_limit(self.device)
        if not len(run):
            return torch.zeros_like(models)
        tables, *rows = self.tables.picking(self.images.aside, run, client, on_host)
        index, counts = tables.train.padded(*rows)
        if 0 < samples < index.shape[1]:
            index, counts = evenly_spaced(index, counts, samples)
        return fisher_information(self.model, models, index, to_device(counts, self.device), self.images, limit)

    def local_work(
        self,
        phases: tuple[Phase, ...],
        stream: str,
        rounds: NDArray[np.int64],
        run: Tensor,
        client: Tensor,
        vector: Tensor,
        context: dict[str, Tensor],
        on_host: Pair | None = None,
    ) -> LocalWork:
        """Describe the local training of the clients at (run, client), from their vectors.

        `on_host` has the same rows on the host, where the positions of images are drawn if the images are there.
        """
        config, tables = self.config, self.tables
        lengths, active = phase_steps(config, phases, tables.widths, tables.train.count[run, client])
        picking, *rows = self.tables.picking(self.images.aside, run, client, on_host)
        own = draw_batches(picking, self.seeds, stream, rounds, lengths, config.batch_size, *rows)
        rates = [config.learning_rate if one.learning_rate is None else one.learning_rate for one in self.settings]
        drops = bool(self.model.dropouts) and self.recipe.objective.dropout
        keys = sample_words(self.seeds, stream, rounds, run, client, own) if self._augmentation or drops else ()
        return LocalWork(
            parameters=vector,
            phases=phases,
            batches=own,
            active=tuple(active),
            context=context,
            learning_rate=self._tensor(rates)[run],
            optimizer=config.local_optimizer(),
            rows_vary=config.cohort_varies,
            view=self.recipe.view,
            keys=keys,
            augmentation=self._augmentation,
            drops=drops,
        )

    def holdout_scores(
        self, models: Tensor, run: Tensor, client: Tensor, on_host: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        """Measure accuracy, and loss over chance level, of models `[rows, size]` on their clients' hold-outs."""
        tables, *rows = self.tables.picking(self.images.aside, run, client, on_host)
        accuracy, loss = self.evaluation.holdout(models, *tables.test.padded(*rows))
        return accuracy, loss / math.log(self.model.classes)

    # ---------------------------------------------------------------- tests

    def test(self, state: RunState, mode: str = "") -> dict[str, Tensor]:
        """Measure accuracy and loss by figure name `[runs]`; `mode` as in `Federation.evaluate`."""
        part = self.recipe.personalization
        server = self.viewed(state, state.average, torch.arange(self.runs, device=self.device), state.average)
        models, tested = server, draw_tested(self.config, self.seeds, self.device)
        tables, picked = self.tables, tested
        if self.images.aside:
            tables, picked = self.tables.on_host, draw_tested(self.config, self.seeds, torch.device("cpu"))
        if part.keeps_parameters or part.adaptation_phases:
            models = self._client_models(state, tested, placed_rows(picked)).view(*tested.shape, -1)
        return self.evaluation.pooled(server) | self.evaluation.personal(models, tables, picked, mode)

    def _client_models(self, state: RunState, tested: Tensor, picked: Pair) -> Tensor:
        """Compose the models that the clients `[runs, tested]` are tested with `[runs * tested, size]`."""
        part, (run, client) = self.recipe.personalization, placed_rows(tested)
        vectors = part.tested(self.model, of_runs(state.average, run), state.clients.rows(run, client))
        if part.adaptation_phases:
            context = self._test_context(state, run, state.average)
            phases = part.adaptation_phases
            work = self.local_work(phases, "evaluation", state.rounds, run, client, vectors, context, picked)
            adapted, _ = self.executor.train(work, self.images)
            finite = torch.isfinite(adapted).all(-1, keepdim=True)  # a copy that diverged is tested as it was
            vectors = torch.where(finite, adapted, vectors)
        return self.viewed(state, vectors, run, state.average)

    def _test_context(self, state: RunState, run: Tensor, server: Tensor | None) -> dict[str, Tensor]:
        """Make the mask that forward passes run under, if the method has a public one, from these server models."""
        if "sparsity" not in state.runs:
            return {}
        support = self.public_mask(state, state.runs["sparsity"], server)
        return {} if support is None else {"support": of_runs(support, run)}

    def viewed(self, state: RunState, vectors: Tensor, run: Tensor, server: Tensor | None = None) -> Tensor:
        """Map vectors to model parameters `[rows, size]`, under the mask of their runs or of these server models."""
        if self.recipe.sparsification.masks_forward:
            context = self._test_context(state, run, server)
            masked: Tensor = vmap(lambda one, own: self.recipe.view(self.model, one, own)[0])(vectors, context)
            return masked
        return self.recipe.personalization.parameters(self.model, vectors)

    def _tensor(self, values: Any) -> Tensor:
        return to_device(np.asarray(values, dtype=np.float32), self.device)
