"""The federated run, one round at a time, for a batch of runs.

State leads with `[runs, ...]`, client tensors with `[runs, clients, ...]`; a single run is a batch of one. Runs may be
at different rounds: every draw is a function of (seed, stream, round), so a row of a batch equals the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fl_core.base.errors import InputError, require, require_count
from fl_core.base.streams import torch_generator
from fl_core.data.clients import ClientIndex, client_index
from fl_core.data.datasets import load_dataset
from fl_core.models.model import build_model
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.noise_model import Contributors
from fl_core.recipes.mechanism import layer_weights
from fl_core.recipes.objective import Phase
from fl_core.run import saved_state
from fl_core.run.charging import Books, Charging
from fl_core.run.cohort import Cohort, draw_cohort, of_clients, of_runs
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.evaluation import Evaluation
from fl_core.run.local_data import ClientTables, draw_batches, phase_steps
from fl_core.run.plan import BoolArray, FloatArray, RoundPlan, RoundReport, find_figure
from fl_core.run.release import Releasing
from fl_core.run.round import Round
from fl_core.training.executors import Executor, Images, LocalWork
from fl_core.training.information import fisher_information
from fl_core.training.memory import keep_freed_memory


class Federation:
    """A batch of differentially private federated runs of one method on one dataset.

    Examples:
        >>> federation = Federation(FederationConfig(clients=6, rounds=2, epsilon=4.0), runs=3)
        >>> report = federation.run_round(RoundPlan.constant(3, clip_norm=0.5), evaluate=True)
        >>> report.figures["epsilon_spent"].round(2).tolist()
        [2.69, 2.69, 2.69]
        >>> report.figures["personal_accuracy"].shape
        (3,)

    Attributes:
        config: the settings that the runs share.
        settings: those that each run has to itself.
        recipe: the method, in its mode and as edited.
        rounds: rounds done by each run `[runs]`.
        charging: the runs' privacy budgets.
        server: server models `[runs, size]`.
        run_state: persistent tensors of each run by name `[runs, ...]`.
        clients: persistent client tensors by name `[runs, clients, ...]`.
        last_release: the sums that were released last `[runs, size]`.
        tables: the clients' index tables.
        images: the training images.
        noise: which noise there is.
        layer_sizes: coordinates of each block of the update that is clipped by itself.
        releasing: clip, noise and aggregation.
    """

    def __init__(self, config: FederationConfig, runs: int = 1):
        """Load the data, build the model, and start run r with seed r.

        Raises:
            InputError: the dataset is missing, or a setting does not fit it.
        """
        require_count("runs", runs)
        self.config = config
        self.recipe = config.recipe()
        self.device = config.resolve_device()
        keep_freed_memory()
        self._dataset = load_dataset(config.dataset, config.data_root or None, self.device, config.population)
        self.model = build_model(config.model, self._dataset.shape, self._dataset.classes)
        self.executor = Executor(self.model, config.executor, config.memory_limit_mib * 2**20)
        self.images = Images(self._dataset.train_images, self._dataset.train_labels, self._dataset.scale)
        self._evaluation = Evaluation(self.executor, self._dataset, config.evaluation_samples, config.evaluation)
        self.noise = config.noise()
        self.layer_sizes = [block.stop - block.start for block in self.recipe.mechanism.blocks(self.model)]
        self.releasing = Releasing(config, self.recipe, self.model)
        self.recipe.sparsification.check(self.model)
        self.runs = runs
        self.settings = [RunSettings(seed=row) for row in range(runs)]
        self.rounds = np.zeros(runs, dtype=np.int64)
        self.server = torch.zeros(runs, self.model.size, device=self.device)
        self.last_release = torch.zeros_like(self.server)
        self.run_state = self._allocate(self._initial_run_state(self.server[0]), runs)
        self.clients = self._allocate(self._initial_client_state(self.server[0]), runs, config.clients)
        self._defaults = [dict[str, float]() for _ in range(runs)]
        prepared = [self._prepare(one) for one in self.settings]
        self._indices = [index for _, index in prepared]
        self.charging = Charging(config, self.recipe, [books for books, _ in prepared])
        for row in range(runs):
            self._reset_run(row)
        self.tables = ClientTables(self._indices, self.device)

    @property
    def ledgers(self) -> list[Ledger]:
        """Per run, what certifies its privacy."""
        return self.charging.ledgers

    # ---------------------------------------------------------------- starting runs

    def start(self, rows: Sequence[int], settings: Sequence[RunSettings]) -> None:
        """Put rows of the batch at the beginning of new runs.

        Raises:
            InputError: a row does not exist, a partition is impossible or a budget is invalid; no row has changed then.
        """
        self.begin(rows, settings, self.prepare(rows, settings))

    def prepare(self, rows: Sequence[int], settings: Sequence[RunSettings]) -> list[tuple[Books, ClientIndex]]:
        """The budgets and the data of new runs, for `begin`; nothing is started.

        Raises:
            InputError: as `start`.
        """
        for row in rows:
            require(0 <= row < self.runs, f"row is {row}, but this federation has rows 0 to {self.runs - 1}.")
        require(len(rows) == len(settings), f"There are {len(rows)} rows to start, but settings for {len(settings)}.")
        return [self._prepare(one) for one in settings]

    def begin(
        self, rows: Sequence[int], settings: Sequence[RunSettings], prepared: Sequence[tuple[Books, ClientIndex]]
    ) -> None:
        """Put rows of the batch at the beginning of new runs that `prepare` has made ready."""
        for row, one, (books, index) in zip(rows, settings, prepared, strict=True):
            self.settings[row], self._indices[row] = one, index
            self.charging.books[row] = books
            self.rounds[row] = 0
            self._reset_run(row)
        self.tables = ClientTables(self._indices, self.device)

    def _prepare(self, settings: RunSettings) -> tuple[Books, ClientIndex]:
        config = self.config
        epsilon = config.epsilon if settings.epsilon is None else settings.epsilon
        config.check_epsilon(epsilon)
        require(
            math.isfinite(epsilon) or not config.client_budgets,
            f"epsilon is {epsilon}, but clients have budgets of their own, client_epsilon '{config.client_epsilon}', "
            "and need a finite one.",
        )
        if math.isinf(config.epsilon) and math.isfinite(epsilon):
            config.warn_of_delta()  # the configuration itself promised nothing and so was not warned of
        return Charging.prepare(config, self.recipe, epsilon), self._client_index(settings)

    def _client_index(self, settings: RunSettings) -> ClientIndex:
        """Who holds what in a run."""
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

    def _initial_run_state(self, server: Tensor) -> dict[str, Tensor]:
        recipe = self.recipe
        state = recipe.personalization.initial_run_state(self.model, server)
        if recipe.exchanges:
            state["average"] = server.clone()
        if recipe.mechanism.trend_from == "noised":
            state |= recipe.mechanism.initial_state(self.model, server)
        if recipe.mechanism.uses_risk:
            state["risk_reference"] = torch.zeros((), device=self.device)
        if recipe.sparsification.masks_forward and recipe.sparsification.is_public:
            last = next(knob.default for knob in recipe.sparsification.knobs if knob.name == "sparsity")
            state["sparsity"] = torch.tensor(last, device=self.device)  # of the last round
        return state

    def _initial_client_state(self, server: Tensor) -> dict[str, Tensor]:
        recipe = self.recipe
        state = recipe.personalization.initial_state(self.model, server)
        if recipe.mechanism.trend_from == "exact":
            state |= recipe.mechanism.initial_state(self.model, server)
        if recipe.mechanism.uses_risk:
            state["risk"] = torch.zeros((), device=self.device)
        return state

    def _allocate(self, fresh: dict[str, Tensor], *leading: int) -> dict[str, Tensor]:
        return {name: torch.zeros(*leading, *value.shape, device=self.device) for name, value in fresh.items()}

    def _reset_run(self, row: int) -> None:
        """Initial models, state and knob defaults of a run whose books are open."""
        initial = self.model.initial(self.settings[row].seed, self.device)
        self.server[row] = initial
        self.last_release[row] = 0
        for name, value in self._initial_run_state(initial).items():
            self.run_state[name][row] = value
        for name, value in self._initial_client_state(initial).items():
            self.clients[name][row] = value
        self._defaults[row] = {knob.name: knob.default for knob in self.recipe.knobs}
        self._defaults[row] |= self.recipe.personalization.knob_defaults(self.noise_at(row), self.config.rounds)

    def default_knobs(self, row: int) -> dict[str, float]:
        """What a run does where nobody sets a knob, by the knob's name."""
        return dict(self._defaults[row])

    def noise_at(self, row: int) -> Callable[[float | None], float]:
        """The uniform noise multiplier of a run as a function of ε (None: its own)."""

        def noise(epsilon: float | None) -> float:
            budget = self.charging.budgets[row]
            if epsilon is None:
                return budget.uniform_noise_multiplier
            return budget.renewed(epsilon).uniform_noise_multiplier

        return noise

    @property
    def tested_server(self) -> Tensor:
        """What is tested as the server's models `[runs, size]`: their running averages."""
        return self.run_state.get("average", self.server)

    @property
    def done(self) -> BoolArray:
        """Runs that have done all their rounds `[runs]`."""
        return np.asarray(self.rounds >= self.config.rounds)

    @property
    def seeds(self) -> list[int]:
        """The runs' seeds."""
        return [one.seed for one in self.settings]

    # ---------------------------------------------------------------- one round

    def run_round(self, plan: RoundPlan, active: BoolArray | None = None, evaluate: bool = False) -> RoundReport:
        """One communication round of every active run that is not done.

        Args:
            plan: the controllers' decisions, one entry per run.
            active: runs to advance `[runs]`; None advances all.
            evaluate: whether to measure accuracy and loss afterwards.

        Raises:
            InputError: the plan does not fit; nothing has changed then.
        """
        plan.check(self.runs, self.recipe.knobs, len(self.model.layers))
        wanted = ~self.done
        if active is not None:
            fits = np.shape(active) == (self.runs,) and np.asarray(active).dtype == bool
            require(fits, f"active is {active}, but it needs True or False for each of {self.runs} runs.")
            wanted = wanted & active
        # Before any data is touched; a refused run stays as it is.
        noise, refused = self.charging.charge(
            plan, wanted, self.rounds, lambda row: self._effective_factor(row, "layer_weights" in plan.settings)
        )
        ran = wanted & ~refused
        try:
            figures = Round(self, plan, noise, ran).run()
        finally:
            self.rounds[ran] += 1  # what is charged is spent, also where an error or an interruption lost the round
        if evaluate:
            figures |= self._evaluate()
        return RoundReport(self._in_units(_to_host(figures, ran)), ran, refused)

    @property
    def update_scales(self) -> FloatArray:
        """Norms as controllers set and see them, over the model's own `[runs]`."""
        usual = self.config.update_scale
        return np.array([usual if one.update_scale is None else one.update_scale for one in self.settings])

    def _in_units(self, figures: dict[str, FloatArray]) -> dict[str, FloatArray]:
        """Figures `[runs]` with norms in the controllers' units."""
        scales = self.update_scales
        return {name: value * scales if find_figure(name).is_norm else value for name, value in figures.items()}

    def draw_cohort(self, ran: BoolArray, out: BoolArray | None = None) -> Cohort:
        """The clients of the next round of the runs that take part `[runs]`, but for those out `[runs, clients]`."""
        return draw_cohort(self.config, self.seeds, self.rounds, ran, self.device, out)

    def knob_values(self, plan: RoundPlan) -> dict[str, Tensor]:
        """Values of every knob: the plan's, or each run's default `[runs]` (`[runs, layers]`)."""
        values = {name: np.array([defaults[name] for defaults in self._defaults]) for name in (self._defaults[0] or {})}
        values.pop("layer_weights", None)  # the method's own, unless the plan has them
        clip_norm = plan.clip_norm / self.update_scales
        values |= {"clip_norm": clip_norm, "server_learning_rate": plan.server_learning_rate, **plan.settings}
        return {name: self._tensor(value) for name, value in values.items()}

    def public_mask(self, knobs: Mapping[str, Tensor], server: Tensor | None = None) -> Tensor | None:
        """The mask that everybody knows in this round `[runs, size]`, if the method has one.

        Args:
            knobs: values of the knobs `[runs]`.
            server: models that it follows from `[runs, size]`; None takes the server's present ones.
        """
        part, model = self.recipe.sparsification, self.model
        if not part.is_public:
            return None
        draws = None
        if part.draws_mask:
            draws = torch.zeros(self.runs, model.size, device=self.device)
            for row in range(self.runs):
                generator = torch_generator(self.seeds[row], "mask", int(self.rounds[row]), self.device)
                draws[row].uniform_(generator=generator)
        return part.public_mask(model, self.server if server is None else server, knobs["sparsity"], draws)

    def fisher(self, models: Tensor, run: Tensor, client: Tensor, samples: int = 0) -> Tensor:
        """Fisher information of models `[rows, size]` on training samples of the clients at (run, client).

        Args:
            models: one per client.
            run: rows of the batch whose samples are taken.
            client: clients in those rows.
            samples: how many at most, evenly spaced in the client's list, which is sorted by class; 0 takes all.
        """
        tables, limit = self.tables, self.executor.memory_limit(self.device)
        index, counts = of_clients(tables.train, run, client), tables.train_count[run, client]
        if not len(index):
            return torch.zeros_like(models)
        if 0 < samples < index.shape[1]:
            taken = counts.clamp_max(samples)
            spaced = torch.arange(samples, device=self.device) * counts.unsqueeze(-1) // taken.unsqueeze(-1)
            index, counts = index.gather(1, spaced.clamp_max(index.shape[1] - 1)), taken
        return fisher_information(self.model, models, index, counts, self.images, limit)

    def local_work(
        self,
        phases: tuple[Phase, ...],
        stream: str,
        run: Tensor,
        client: Tensor,
        vector: Tensor,
        context: dict[str, Tensor],
    ) -> LocalWork:
        """Local training of the clients at (run, client), from their vectors."""
        config, tables = self.config, self.tables
        lengths, active = phase_steps(config, phases, tables)
        batches = draw_batches(tables, self.seeds, stream, self.rounds, lengths, config.batch_size)
        rates = [config.learning_rate if one.learning_rate is None else one.learning_rate for one in self.settings]
        return LocalWork(
            parameters=vector,
            phases=phases,
            batches=tuple(of_clients(phase, run, client) for phase in batches),
            active=tuple(None if mask is None else of_clients(mask, run, client) for mask in active),
            context=context,
            learning_rate=self._tensor(rates)[run],
            optimizer=config.local_optimizer(),
            rows_vary=config.sampling == "poisson" and config.sampling_rate < 1,
            view=self.recipe.view,
        )

    def common_mask(self, knobs: Mapping[str, Tensor]) -> Tensor:
        """The coordinates that a run's clients upload, whoever takes part, where that is known `[runs, size]`."""
        mask = torch.ones(self.runs, self.model.size, device=self.device)
        if "personal" in self.run_state:
            mask = mask * (1 - self.run_state["personal"])
        static = self.recipe.personalization.static_mask(self.model, self.device)
        mask = mask if static is None else mask * static
        public = self.public_mask(knobs)
        return mask if public is None else mask * public

    def _effective_factor(self, row: int, same_layers: bool) -> float:
        """Of a run's next round, the part of the claimed noise multiplier that its real noise certifies.

        Args:
            row: the run.
            same_layers: whether the plan gives all clients the same layer weights.
        """
        ran = np.zeros(self.runs, dtype=bool)
        ran[row] = True
        cohort = self.draw_cohort(ran)
        samples = self.tables.train_count[cohort.run, cohort.client].to(torch.float32)
        present = torch.ones(1, len(samples), dtype=torch.bool, device=self.device)
        one = torch.ones(1, device=self.device)
        uploaded = by_layer = weights = None
        if "personal" in self.clients:
            uploaded = 1 - self.clients["personal"][cohort.run, cohort.client].unsqueeze(0)
        if "log_odds" in self.clients and not same_layers:
            by_layer = layer_weights(self.clients["log_odds"][cohort.run, cohort.client]).unsqueeze(0)
        if self.recipe.aggregation.weights != "uniform":
            weights = self.recipe.aggregation.client_weights(samples.unsqueeze(0), present)
        who = Contributors(
            clip=one,
            noise_multiplier=one,
            present=present,
            participants=one * len(samples),
            weights=weights,
            uploaded=uploaded,
            layer_sizes=self.layer_sizes,
            layer_weights=by_layer,
            noise_ratio=None,
        )
        return self.releasing.effective_factor(who)

    # ---------------------------------------------------------------- looking at it

    def evaluate(self, mode: str = "") -> dict[str, FloatArray]:
        """Accuracy and loss of every run as it stands, by figure name `[runs]`.

        Args:
            mode: what clients' models are tested on, one of `EVALUATIONS`; empty takes the configuration's.
        """
        return dict(_to_host(self._evaluate(mode), np.ones(self.runs, dtype=bool)))

    def _evaluate(self, mode: str = "") -> dict[str, Tensor]:
        part = self.recipe.personalization
        own = bool(self.clients) and any(name in self.clients for name in ("local", "own", "added"))
        server = self.viewed(self.tested_server, torch.arange(self.runs, device=self.device), self.tested_server)
        models = server
        if own or part.adaptation_phases:
            models = self._client_models().view(self.runs, self.config.clients, -1)
        return self._evaluation.pooled(server) | self._evaluation.personal(models, self.tables, mode)

    def holdout_scores(self, models: Tensor, run: Tensor, client: Tensor) -> tuple[Tensor, Tensor]:
        """Accuracy, and loss over chance level, of models `[rows, size]` on their clients' hold-outs."""
        tables = self.tables
        test = of_clients(tables.test, run, client)
        accuracy, loss = self._evaluation.holdout(models, test, tables.test_count[run, client])
        return accuracy, loss / math.log(self.model.classes)

    def _client_models(self) -> Tensor:
        """The models that every client is tested with `[runs * clients, size]`."""
        part = self.recipe.personalization
        run, client = (
            axis.flatten()
            for axis in torch.meshgrid(
                torch.arange(self.runs, device=self.device),
                torch.arange(self.config.clients, device=self.device),
                indexing="ij",
            )
        )
        state = {name: of_clients(value, run, client) for name, value in self.clients.items()}
        vectors = part.tested(self.model, of_runs(self.tested_server, run), state)
        if part.adaptation_phases:
            context = self._test_context(run, self.tested_server)
            work = self.local_work(part.adaptation_phases, "evaluation", run, client, vectors, context)
            adapted, _ = self.executor.train(work, self.images)
            finite = torch.isfinite(adapted).all(-1, keepdim=True)  # a copy that diverged is tested as it was
            vectors = torch.where(finite, adapted, vectors)
        return self.viewed(vectors, run, self.tested_server)

    def _test_context(self, run: Tensor, server: Tensor | None = None) -> dict[str, Tensor]:
        """The mask that forward passes run under, if the method has a public one, from these server models."""
        if "sparsity" not in self.run_state:
            return {}
        support = self.public_mask({"sparsity": self.run_state["sparsity"]}, server)
        return {} if support is None else {"support": of_runs(support, run)}

    def viewed(self, vectors: Tensor, run: Tensor, server: Tensor | None = None) -> Tensor:
        """The model parameters `[rows, size]` of vectors, under the mask of their runs or of these server models."""
        if self.recipe.sparsification.masks_forward:
            context = self._test_context(run, server)
            masked: Tensor = vmap(lambda one, own: self.recipe.view(self.model, one, own)[0])(vectors, context)
            return masked
        return self.recipe.personalization.parameters(self.model, vectors)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.float32)).to(self.device)

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit: `tensors` by name, and `plain` as values for strict JSON."""
        return saved_state.save(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the object must have been made with the same settings.

        Raises:
            InputError: the state belongs to other settings, is damaged, or a ledger in it was edited; nothing has
                changed then.
        """
        saved_state.load(self, state)


def _to_host(figures: dict[str, Any], ran: BoolArray) -> dict[str, FloatArray]:
    """All figures as float64 `[runs]` on the CPU, in one transfer; NaN for runs that did not take part."""
    on_device = {name: value for name, value in figures.items() if isinstance(value, Tensor)}
    stacked = torch.stack([value.to(torch.float64) for value in on_device.values()]).cpu().numpy()
    host = dict(zip(on_device, stacked, strict=True))
    return {name: np.where(ran, host.get(name, value), np.nan).astype(np.float64) for name, value in figures.items()}
