"""The federated run, one round at a time, for a batch of runs.

State leads with `[runs, ...]`, client tensors with `[runs, clients, ...]`; a single run is a batch of one. Runs may be
at different rounds: every draw is a function of (seed, stream, round), so a row of a batch equals the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fl_core import saved_state
from fl_core.charging import CLIP_BIT, RISK, UPDATE, Charging
from fl_core.cohort import Cohort, draw_cohort
from fl_core.config import FederationConfig, RunSettings
from fl_core.data.clients import ClientIndex, client_index
from fl_core.data.datasets import load_dataset
from fl_core.errors import require, require_count
from fl_core.evaluation import Evaluation
from fl_core.executors import Executor, Images, LocalWork
from fl_core.information import fisher_information, jacobian_risk
from fl_core.local_data import ClientTables, draw_batches, phase_steps
from fl_core.memory import keep_freed_memory
from fl_core.models import build_model
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.mechanism import noise_std, noised_clip_share
from fl_core.recipes.mechanism import LEAST_RATIO, layer_weights
from fl_core.recipes.objective import Phase
from fl_core.recipes.personalization import Start
from fl_core.recipes.personalization import View as ClientView
from fl_core.recipes.sparsification import Trained
from fl_core.release import Cohorts, Released, Releasing
from fl_core.rounds import BoolArray, FloatArray, RoundPlan, RoundReport
from fl_core.streams import torch_generator

RISK_PROBES = 4
"""Random signs by which a client's Jacobian risk is estimated."""
RISK_SPAN = 4.0
"""Decades around 1 within which a risk is told apart; what is released is its logarithm over this, in [-1, 1]."""


class Federation:
    """A batch of differentially private federated runs of one method on one dataset.

    Attributes:
        config: the settings that the runs share.
        settings: those that each run has to itself.
        recipe: the method, in its mode and as edited.
        rounds: rounds done by each run `[runs]`.
        charging: the runs' privacy budgets.
        server: server models `[runs, size]`.
        run_state: persistent tensors of each run by name `[runs, ...]`.
        clients: persistent client tensors by name `[runs, clients, ...]`.
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
        self._dataset = load_dataset(config.dataset, config.data_root or None, self.device)
        self.model = build_model(config.model, self._dataset.shape, self._dataset.classes)
        self.executor = Executor(self.model, config.executor, config.memory_limit_mib * 2**20)
        self._images = Images(self._dataset.train_images, self._dataset.train_labels, self._dataset.scale)
        self._evaluation = Evaluation(self.executor, self._dataset, config.evaluation_samples, config.evaluation)
        self._releasing = Releasing(config, self.recipe, self.model)
        self._check_layers()
        self.runs = runs
        self.settings = [RunSettings(seed=row) for row in range(runs)]
        self.rounds = np.zeros(runs, dtype=np.int64)
        self.server = torch.zeros(runs, self.model.size, device=self.device)
        self._last_release = torch.zeros_like(self.server)
        self.run_state = self._allocate(self._initial_run_state(self.server[0]), runs)
        self.clients = self._allocate(self._initial_client_state(self.server[0]), runs, config.clients)
        self.charging = Charging(config, self.recipe, runs)
        self._defaults = [dict[str, float]() for _ in range(runs)]
        prepared = [self._prepare(one) for one in self.settings]
        self._indices = [index for _, index in prepared]
        for row, (books, _) in enumerate(prepared):
            self.charging.open(row, books)
            self._reset_run(row)
        self._tables = ClientTables(self._indices, self.device)

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
        for row in rows:
            require(0 <= row < self.runs, f"row is {row}, but this federation has rows 0 to {self.runs - 1}.")
        require(len(rows) == len(settings), f"There are {len(rows)} rows to start, but settings for {len(settings)}.")
        prepared = [self._prepare(one) for one in settings]
        for row, one, (books, index) in zip(rows, settings, prepared, strict=True):
            self.settings[row], self._indices[row] = one, index
            self.charging.open(row, books)
            self.rounds[row] = 0
            self._reset_run(row)
        self._tables = ClientTables(self._indices, self.device)

    def _prepare(self, settings: RunSettings) -> tuple[tuple[Ledger, Ledger | None], ClientIndex]:
        config = self.config
        epsilon = config.epsilon if settings.epsilon is None else settings.epsilon
        config.check_epsilon(epsilon)
        if math.isinf(config.epsilon) and math.isfinite(epsilon):
            config.warn_of_delta()  # the configuration itself promised nothing and so was not warned of
        partition = config.partition if settings.partition is None else settings.partition
        labels, groups = self._dataset.train_labels, self._dataset.train_groups
        index = client_index(labels, config.clients, partition, settings.seed, groups, config.test_fraction)
        return self.charging.prepare(epsilon), index

    def _check_layers(self) -> None:
        """Refuse parts that ask for more of the model than it has."""
        layers = getattr(self.recipe.sparsification, "sparse_layers", None)
        if layers is not None:
            layers(self.model)

    def _initial_run_state(self, server: Tensor) -> dict[str, Tensor]:
        recipe = self.recipe
        state = recipe.personalization.initial_run_state(self.model, server)
        if recipe.mechanism.trend_from == "noised":
            state |= recipe.mechanism.initial_state(self.model, server)
        if recipe.mechanism.uses_risk:
            state["risk_reference"] = torch.zeros((), device=self.device)
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
        self._last_release[row] = 0
        for name, value in self._initial_run_state(initial).items():
            self.run_state[name][row] = value
        for name, value in self._initial_client_state(initial).items():
            self.clients[name][row] = value
        self._defaults[row] = {knob.name: knob.default for knob in self.recipe.knobs}
        self._defaults[row] |= self.recipe.personalization.knob_defaults(self._noise_at(row), self.config.rounds)

    def _noise_at(self, row: int) -> Any:
        """The uniform noise multiplier of a run as a function of ε (None: its own)."""

        def noise(epsilon: float | None) -> float:
            budget = self.charging.budgets[row]
            if epsilon is None:
                return budget.uniform_noise_multiplier
            size = (self.config.delta, self.config.accounting_rate, self.config.rounds)
            return Ledger(epsilon, *size, claim=budget.claim).uniform_noise_multiplier

        return noise

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
        noise, refused = self.charging.charge(plan, wanted, self.rounds, self._effective_factor)
        ran = wanted & ~refused
        try:
            figures = self._train_and_release(plan, noise, ran)
        finally:
            self.rounds[ran] += 1  # what is charged is spent, also where an error or an interruption lost the round
        if evaluate:
            figures |= self._evaluate()
        return RoundReport(_to_host(figures, ran), ran, refused)

    def _train_and_release(self, plan: RoundPlan, noise: dict[str, FloatArray], ran: BoolArray) -> dict[str, Any]:
        """The round of the runs that are charged for it. Returns the figures."""
        recipe, model = self.recipe, self.model
        cohort = draw_cohort(self.config, self.seeds, self.rounds, ran, self.device)
        knobs = self._knobs(plan)
        start = self._begin(cohort, knobs)
        work = self._local_work(
            recipe.objective.phases, "minibatch", self.rounds, cohort.run, cohort.client, start.vector, start.context
        )
        trained, loss = self.executor.train(work, self._images)
        update = trained[:, : model.size] - start.reference
        if start.shared is not None:
            update = update * start.shared
        finite = torch.isfinite(torch.linalg.vector_norm(update, dim=-1))  # nor may the norm overflow
        if self.clients:  # a personal part that diverged is no better
            finite &= torch.isfinite(torch.linalg.vector_norm(trained, dim=-1))
            update = torch.where(finite.unsqueeze(-1), update, torch.nan)
        rejected = cohort.scatter((~finite).float()).sum(-1)
        used = (self._tensor(cohort.sizes) - rejected).clamp_min(1)
        figures: dict[str, Any] = self.charging.figures() | {
            "train_loss": cohort.scatter(torch.where(finite, loss, 0.0)).sum(-1) / used,
            "participants": cohort.sizes,
            "rejected_updates": rejected,
        }
        if recipe.exchanges:
            figures |= self._release(cohort, update, trained, start, knobs, noise, ran)
        self._keep(cohort, recipe.personalization.end(model, trained, start), finite)
        if recipe.mechanism.uses_risk:
            figures |= self._measure_risk(cohort, trained, work, noise, ran, finite)
        return figures

    def _knobs(self, plan: RoundPlan) -> dict[str, Tensor]:
        """Values of every knob: the plan's, or each run's default `[runs]` (`[runs, layers]`)."""
        values = {name: np.array([defaults[name] for defaults in self._defaults]) for name in (self._defaults[0] or {})}
        values.pop("layer_weights", None)  # the method's own, unless the plan has them
        values |= {"clip_norm": plan.clip_norm, "server_learning_rate": plan.server_learning_rate, **plan.settings}
        return {name: self._tensor(value) for name, value in values.items()}

    def _begin(self, cohort: Cohort, knobs: dict[str, Tensor]) -> Start:
        """The vectors, masks and contexts that the cohort's round starts from."""
        start = self.recipe.personalization.begin(self._client_view(cohort.run, cohort.client, knobs))
        context = self._context(start, cohort.run, knobs)
        return Start(start.vector, start.reference, context, start.shared)

    def _client_view(self, run: Tensor, client: Tensor, knobs: Mapping[str, Tensor]) -> ClientView:
        return ClientView(
            model=self.model,
            server=self.server[run],
            state={name: value[run, client] for name, value in self.clients.items()},
            run={name: value[run] for name, value in self.run_state.items()},
            knobs={name: value[run] for name, value in knobs.items()},
            fisher=lambda models: self._fisher(models, run, client),
        )

    def _context(self, start: Start, run: Tensor, knobs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the losses, masks and clamps of the clients read."""
        recipe, needs = self.recipe, self.recipe.objective.needs
        context = {name: value for name, value in start.context.items() if name in needs}
        if recipe.objective.terms or recipe.objective.clamp_count:
            context["start"] = start.vector
        if "clip_norm" in needs:
            context["clip_norm"] = knobs["clip_norm"][run]
        if "anchor" in needs:
            context["anchor"] = self.server[run]
        if recipe.objective.clamp_count:
            count = recipe.objective.clamp_count
            context["radius"] = knobs["clip_norm"][run] / math.sqrt(
                max(1.0, self.config.cohort if count < 0 else count)
            )
        support = self._public_mask(knobs)
        if support is not None:
            context["support"] = support[run]
        return context

    def _public_mask(self, knobs: Mapping[str, Tensor]) -> Tensor | None:
        """The mask that everybody knows in this round `[runs, size]`, if the method has one."""
        part, model = self.recipe.sparsification, self.model
        if not part.is_public:
            return None
        draws = None
        if part.draws_mask:
            draws = torch.zeros(self.runs, model.size, device=self.device)
            for row in range(self.runs):
                generator = torch_generator(self.seeds[row], "mask", int(self.rounds[row]), self.device)
                draws[row].uniform_(generator=generator)
        return part.public_mask(model, self.server, knobs["sparsity"], draws)

    def _fisher(self, models: Tensor, run: Tensor, client: Tensor) -> Tensor:
        """Fisher information of models `[rows, size]` on the training samples of the clients at (run, client)."""
        tables, limit = self._tables, self.executor.memory_limit(self.device)
        index, counts = tables.train[run, client], tables.train_count[run, client]
        if not len(index):
            return torch.zeros_like(models)
        return fisher_information(self.model, models, index, counts, self._images, limit)

    def _local_work(
        self,
        phases: tuple[Phase, ...],
        stream: str,
        rounds: np.ndarray,
        run: Tensor,
        client: Tensor,
        vector: Tensor,
        context: dict[str, Tensor],
    ) -> LocalWork:
        """Local training of the clients at (run, client), from their vectors."""
        config, tables = self.config, self._tables
        lengths, active = phase_steps(config, phases, tables)
        batches = draw_batches(tables, self.seeds, stream, rounds, lengths, config.batch_size)
        rates = [config.learning_rate if one.learning_rate is None else one.learning_rate for one in self.settings]
        return LocalWork(
            parameters=vector,
            phases=phases,
            batches=tuple(phase[run, client] for phase in batches),
            active=tuple(None if mask is None else mask[run, client] for mask in active),
            context=context,
            learning_rate=self._tensor(rates)[run],
            optimizer=config.local_optimizer(),
            rows_vary=config.sampling == "poisson" and config.sampling_rate < 1,
            view=self.recipe.view,
        )

    # ---------------------------------------------------------------- release

    def _release(
        self,
        cohort: Cohort,
        update: Tensor,
        trained: Tensor,
        start: Start,
        knobs: dict[str, Tensor],
        noise: dict[str, FloatArray],
        ran: BoolArray,
    ) -> dict[str, Any]:
        """Clip, sum, noise and aggregate; the server models of the runs that ran move on. Returns the figures."""
        recipe, model, private = self.recipe, self.model, self.recipe.private
        kept = recipe.sparsification.kept(
            Trained(
                model,
                update,
                trained[:, : model.size],
                start.context,
                knobs["sparsity"][cohort.run] if "sparsity" in knobs else update.new_ones(len(update)),
                lambda models: self._fisher(models, cohort.run, cohort.client),
            )
        )
        if kept is not None:
            update = update * kept
        uploaded = self._uploaded(start.shared, kept)
        cohorts = Cohorts(
            updates=cohort.scatter(update),
            present=cohort.present(),
            participants=self._tensor(cohort.sizes),
            uploaded=self._noised_coordinates(cohort, uploaded, kept, start),
            samples=cohort.scatter(self._tables.train_count[cohort.run, cohort.client].to(torch.float32)),
            clip=knobs["clip_norm"],
            layer_weights=self._layer_weights(cohort, knobs),
            noise_multiplier=self._tensor(noise[UPDATE]),
            budget_ratio=self._budget_ratio(cohort, knobs),
        )
        released = self._releasing(cohorts, lambda uploads: self._update_noise(cohort, noise, ran, uploads))
        rate = knobs["server_learning_rate"].unsqueeze(-1)
        moved = self.server + rate * released.mean
        figures = self._release_figures(cohorts, released, moved, knobs, noise)
        figures["uplink_bytes"] = self._uplink_bytes(cohort, uploaded)
        if "personal" in start.context:
            figures["personal_share"] = self._mean_over(cohort, start.context["personal"].mean(-1))
        if private and CLIP_BIT in noise:
            figures["unclipped_share_noised"] = self._clip_bit(cohorts, released, noise, ran)
        self._advance(cohort, update, released, moved, knobs, ran)
        return figures

    @staticmethod
    def _uploaded(shared: Tensor | None, kept: Tensor | None) -> Tensor | None:
        """What each client uploads, `[rows, size]` or `[size]`; None for everything."""
        if shared is None or kept is None:
            return kept if shared is None else shared
        return shared * kept

    def _noised_coordinates(
        self, cohort: Cohort, uploaded: Tensor | None, kept: Tensor | None, start: Start
    ) -> Tensor | None:
        """Which coordinates carry noise, in the shape of `Cohorts.uploaded`."""
        if kept is not None and not self.recipe.sparsification.noises_kept_only:
            uploaded = start.shared  # a private choice: every coordinate that could have been uploaded is noised
        if uploaded is None:
            return None
        if uploaded.dim() == 1:
            return uploaded.expand(self.runs, 1, -1)
        if self._mask_is_common:
            common = torch.zeros(self.runs, uploaded.shape[-1], device=self.device)
            common[cohort.run] = uploaded
            missing = torch.from_numpy(cohort.sizes == 0).to(self.device).unsqueeze(-1)
            if bool((cohort.sizes == 0).any()):
                common = torch.where(missing, self._common_mask(), common)
            return common.unsqueeze(1)
        return cohort.scatter(uploaded)

    @property
    def _mask_is_common(self) -> bool:
        """Whether all clients of a run upload the same coordinates, as everybody knows."""
        part = self.recipe.personalization
        return getattr(part, "mask_from", "aggregate") == "aggregate" and not (
            self.recipe.sparsification.noises_kept_only and not self.recipe.sparsification.is_public
        )

    def _common_mask(self) -> Tensor:
        """The coordinates that a run's clients would upload, whoever takes part `[runs, size]`."""
        mask = torch.ones(self.runs, self.model.size, device=self.device)
        if "personal" in self.run_state:
            mask = mask * (1 - self.run_state["personal"])
        static = self.recipe.personalization.static_mask(self.model, self.device)
        mask = mask if static is None else mask * static
        public = self._public_mask(self._default_knobs())
        return mask if public is None else mask * public

    def _default_knobs(self) -> dict[str, Tensor]:
        return self._knobs(RoundPlan.constant(self.runs))

    def _layer_weights(self, cohort: Cohort, knobs: Mapping[str, Tensor]) -> Tensor | None:
        """Squared shares of C of the layers `[runs, width or 1, layers]`; None for one clip over all."""
        if self.recipe.mechanism.clip != "layers":
            return None
        if "layer_weights" in knobs:
            weights = knobs["layer_weights"]
            return (weights / weights.sum(-1, keepdim=True)).unsqueeze(1)
        if "log_odds" in self.run_state:
            return layer_weights(self.run_state["log_odds"]).unsqueeze(1)
        return cohort.scatter(layer_weights(self.clients["log_odds"][cohort.run, cohort.client]))

    def _budget_ratio(self, cohort: Cohort, knobs: Mapping[str, Tensor]) -> Tensor | None:
        """Share of the round's budget of each client by its last known risk `[runs, width]` (ADP-PFL eq. 12)."""
        mechanism = self.recipe.mechanism
        if not mechanism.uses_risk:
            return None
        risks = self.clients["risk"]
        reference = self.run_state["risk_reference"]
        if mechanism.exact_risk:
            known = torch.where(risks > 0, risks, torch.inf).amin(-1)
            reference = torch.where(torch.isfinite(known), known, 0.0)
        own = risks[cohort.run, cohort.client]
        compared = (own > 0) & (reference[cohort.run] > 0)
        ratio = (reference[cohort.run] / own.clamp_min(1e-30)).clamp(LEAST_RATIO, 1.0)
        ratio = ratio ** knobs["client_budget_strength"][cohort.run]
        return cohort.scatter(torch.where(compared, ratio, 1.0))

    def _effective_factor(self, row: int) -> float:
        """Of a run's next round, the part of the claimed noise multiplier that its real noise certifies."""
        ran = np.zeros(self.runs, dtype=bool)
        ran[row] = True
        cohort = draw_cohort(self.config, self.seeds, self.rounds, ran, self.device)
        samples = self._tables.train_count[cohort.run, cohort.client].to(torch.float32)
        uploaded = None
        if "personal" in self.clients:
            uploaded = 1 - self.clients["personal"][cohort.run, cohort.client]
        return self._releasing.effective_factor(samples, uploaded)

    def _release_figures(
        self,
        cohorts: Cohorts,
        released: Released,
        moved: Tensor,
        knobs: Mapping[str, Tensor],
        noise: dict[str, FloatArray],
    ) -> dict[str, Any]:
        counts = cohorts.participants.clamp_min(1)
        figures: dict[str, Any] = {
            "server_learning_rate": knobs["server_learning_rate"],
            "server_norm": torch.linalg.vector_norm(moved, dim=-1),
            "update_norm": released.clipped.norms.sum(-1) / counts,
            "release_norm_ratio": _ratio(torch.linalg.vector_norm(released.total, dim=-1), released.expected_noise),
            "release_alignment": torch.cosine_similarity(released.total, self._last_release, dim=-1),
        }
        if self.recipe.private:
            figures["clip_norm"] = knobs["clip_norm"]
            figures["noise_multiplier"] = noise[UPDATE]
            figures["clipped_share"] = (cohorts.present & ~released.clipped.within).sum(-1) / counts
            signal = torch.linalg.vector_norm(released.exact, dim=-1)
            figures["signal_to_noise"] = _ratio(signal, released.expected_noise)
        return figures

    def _clip_bit(self, cohorts: Cohorts, released: Released, noise: dict[str, FloatArray], ran: BoolArray) -> Tensor:
        """The noised share of clients within the clip norm `[runs]`."""
        bits = self._draw_noise("telemetry", ran & (noise[CLIP_BIT] > 0), (1,)).squeeze(-1)
        one = torch.ones_like(cohorts.clip)
        std = noise_std(self.config.placement, one, self._tensor(noise[CLIP_BIT]), cohorts.participants)
        return noised_clip_share(released.clipped.within, cohorts.present, self.config.cohort, std, bits)

    def _advance(
        self,
        cohort: Cohort,
        update: Tensor,
        released: Released,
        moved: Tensor,
        knobs: Mapping[str, Tensor],
        ran: BoolArray,
    ) -> None:
        """Server models and the state that follows from what was released, of the runs that ran."""
        recipe, model = self.recipe, self.model
        advanced = torch.from_numpy(ran).to(self.device)
        state = recipe.personalization.after_release(model, self.run_state, released.total, knobs, uploads=False)
        if "log_odds" in self.run_state:
            state |= recipe.mechanism.next_state(model, self.run_state, released.total)
        for name, value in state.items():
            self.run_state[name] = torch.where(_match(advanced, value), value, self.run_state[name])
        self.server = torch.where(advanced.unsqueeze(-1), moved, self.server)
        self._last_release = torch.where(advanced.unsqueeze(-1), released.total, self._last_release)
        self._advance_clients(cohort, update, released, knobs)

    def _advance_clients(self, cohort: Cohort, update: Tensor, released: Released, knobs: Mapping[str, Tensor]) -> None:
        """The state that clients derive from their own uploads."""
        recipe, model = self.recipe, self.model
        own = {name: value[cohort.run, cohort.client] for name, value in self.clients.items()}
        state: dict[str, Tensor] = {}
        if released.uploads is not None:
            uploads = released.uploads[cohort.run, cohort.place]
            chosen = {name: value[cohort.run] for name, value in knobs.items()}
            state |= recipe.personalization.after_release(model, own, uploads, chosen, uploads=True)
        if "log_odds" in self.clients:
            state |= recipe.mechanism.next_state(model, own, torch.nan_to_num(update))
        for name, value in state.items():
            self.clients[name][cohort.run, cohort.client] = value

    def _measure_risk(
        self,
        cohort: Cohort,
        trained: Tensor,
        work: LocalWork,
        noise: dict[str, FloatArray],
        ran: BoolArray,
        finite: Tensor,
    ) -> dict[str, Any]:
        """Every client's risk after training, kept; and the noised mean, where the method compares with it."""
        if len(trained):
            images, labels = self._images.read(work.batches[-1][:, -1])
            generator = torch.Generator().manual_seed(0)  # any signs will do, the same for all
            signs = torch.randint(0, 2, (RISK_PROBES, self.model.size), generator=generator).to(self.device) * 2.0 - 1.0
            risk = jacobian_risk(self.model, trained[:, : self.model.size], images, labels, signs)
            risk = torch.where(torch.isfinite(risk), risk, 0.0).clamp(10**-RISK_SPAN, 10**RISK_SPAN)
            self._keep(cohort, {"risk": risk}, finite)
        if self.recipe.mechanism.exact_risk:
            return {}
        own = self.clients["risk"][cohort.run, cohort.client]
        scores = cohort.scatter(torch.where(own > 0, own.clamp_min(1e-30).log10() / RISK_SPAN, 0.0).clamp(-1, 1))
        draws = self._draw_noise("risk", ran & (noise[RISK] > 0), (1,)).squeeze(-1)
        std = noise_std(
            self.config.placement, torch.ones_like(draws), self._tensor(noise[RISK]), self._tensor(cohort.sizes)
        )
        mean = ((scores.sum(-1) + std * draws) / self.config.cohort).clamp(-1, 1)
        reference = 10 ** (RISK_SPAN * mean)
        advanced = torch.from_numpy(ran).to(self.device)
        self.run_state["risk_reference"] = torch.where(advanced, reference, self.run_state["risk_reference"])
        return {"risk_noised": reference}

    def _update_noise(self, cohort: Cohort, noise: dict[str, FloatArray], ran: BoolArray, uploads: bool) -> Tensor:
        """Standard normal draws of this round for the sums `[runs, size]`, or for each upload `[runs, width, size]`."""
        rows, size = ran & (noise[UPDATE] > 0), self.model.size
        if not uploads:
            return self._draw_noise("noise", rows, (size,))
        draws = torch.zeros(self.runs, cohort.width, size, device=self.device)
        for row in np.flatnonzero(rows):  # a run's draws must not depend on the width of its batch
            generator = torch_generator(self.seeds[row], "noise", int(self.rounds[row]), self.device)
            own = torch.empty(int(cohort.sizes[row]), size, device=self.device).normal_(generator=generator)
            draws[row, : len(own)] = own
        return draws

    def _draw_noise(self, stream: str, rows: BoolArray, shape: tuple[int, ...]) -> Tensor:
        """Standard normal draws `[runs, *shape]` of this round's stream; 0 for the other runs."""
        noise = torch.zeros(self.runs, *shape, device=self.device)
        for row in np.flatnonzero(rows):
            generator = torch_generator(self.seeds[row], stream, int(self.rounds[row]), self.device)
            noise[row].normal_(generator=generator)
        return noise

    def _keep(self, cohort: Cohort, state: Mapping[str, Tensor], finite: Tensor) -> None:
        """Store what each client keeps; one whose training diverged keeps what it had."""
        for name, value in state.items():
            stored = self.clients[name]
            previous = stored[cohort.run, cohort.client]
            stored[cohort.run, cohort.client] = torch.where(_match(finite, value), value, previous)

    def _uplink_bytes(self, cohort: Cohort, uploaded: Tensor | None) -> Tensor:
        """Bytes that a client of the cohort uploads, mean `[runs]`: 4 per value, and what tells which values they are.

        Where the noise covers coordinates that a private choice left out, all of them are sent. A mask that the server
        does not know costs a bit per parameter (FedGLP-ADP eq. 20), or the positions 4 bytes each if that is less.
        """
        recipe, size = self.recipe, self.model.size
        if uploaded is None:
            return torch.full((self.runs,), 4.0 * size, device=self.device)
        if uploaded.dim() == 1:
            return torch.full((self.runs,), 4.0 * float(uploaded.sum()), device=self.device)
        values = 4.0 * uploaded.sum(-1)
        told = torch.zeros_like(values)
        if getattr(recipe.personalization, "mask_from", "") == "uploads":
            told += size / 8
        if recipe.sparsification.kind != "none" and not recipe.sparsification.is_public:
            if self.config.placement == "central" or recipe.sparsification.noises_kept_only or not recipe.private:
                told += torch.minimum(values, torch.full_like(values, size / 8))
            else:
                values = torch.full_like(values, 4.0 * size)
        return self._mean_over(cohort, values + told)

    def _mean_over(self, cohort: Cohort, values: Tensor) -> Tensor:
        """Mean of `[rows]` over each run's cohort `[runs]`."""
        return cohort.scatter(values).sum(-1) / self._tensor(cohort.sizes).clamp_min(1)

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
        server = self._viewed(self.server, torch.arange(self.runs, device=self.device))
        models = server
        if own or part.adaptation_phases:
            models = self._client_models().view(self.runs, self.config.clients, -1)
        return self._evaluation.pooled(server) | self._evaluation.personal(models, self._tables, mode)

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
        state = {name: value[run, client] for name, value in self.clients.items()}
        vectors = part.tested(self.model, self.server[run], state)
        if part.adaptation_phases:
            context = self._test_context(run)
            work = self._local_work(part.adaptation_phases, "evaluation", self.rounds, run, client, vectors, context)
            adapted, _ = self.executor.train(work, self._images)
            finite = torch.isfinite(adapted).all(-1, keepdim=True)  # a copy that diverged is tested as it was
            vectors = torch.where(finite, adapted, vectors)
        return self._viewed(vectors, run)

    def _test_context(self, run: Tensor) -> dict[str, Tensor]:
        """The mask that forward passes run under, if the method has a public one."""
        if self.recipe.sparsification.kind != "reparameterized":
            return {}
        support = self._public_mask(self._default_knobs())
        return {} if support is None else {"support": support[run]}

    def _viewed(self, vectors: Tensor, run: Tensor) -> Tensor:
        """The model parameters `[rows, size]` of vectors, under the mask of their runs."""
        part, sparsification = self.recipe.personalization, self.recipe.sparsification
        if vectors.shape[-1] > self.model.size:
            vectors = part.parameters(self.model, vectors)
        if sparsification.kind != "reparameterized":
            return vectors
        context = self._test_context(run)
        masked: Tensor = vmap(lambda one, own: self.recipe.view(self.model, one, own)[0])(vectors, context)
        return masked

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


def _match(mask: Tensor, value: Tensor) -> Tensor:
    """A mask `[rows]` shaped to broadcast against `[rows, ...]`."""
    return mask.view(-1, *[1] * (value.dim() - 1))


def _ratio(value: Tensor, noise_norm: Tensor) -> Tensor:
    """Value over the noise's norm; 0 where there is no noise to compare with."""
    return torch.where(noise_norm > 0, value / noise_norm.clamp_min(torch.finfo(value.dtype).tiny), 0.0)


def _to_host(figures: dict[str, Any], ran: BoolArray) -> dict[str, FloatArray]:
    """All figures as float64 `[runs]` on the CPU, in one transfer; NaN for runs that did not take part."""
    on_device = {name: value for name, value in figures.items() if isinstance(value, Tensor)}
    stacked = torch.stack([value.to(torch.float64) for value in on_device.values()]).cpu().numpy()
    host = dict(zip(on_device, stacked, strict=True))
    return {name: np.where(ran, host.get(name, value), np.nan).astype(np.float64) for name, value in figures.items()}
