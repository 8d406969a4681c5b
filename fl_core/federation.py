"""The federated run, one round at a time, for a batch of runs.

State leads with `[runs, ...]`, client tensors with `[runs, clients, ...]`; a single run is a batch of one. Runs may be
at different rounds: every draw is a function of (seed, stream, round), so a row of a batch equals the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_core.cohort import Cohort, draw_cohort
from fl_core.config import FederationConfig, RunSettings
from fl_core.data.clients import ClientIndex, client_index
from fl_core.data.datasets import load_dataset
from fl_core.errors import InputError, require, require_count
from fl_core.evaluation import Evaluation
from fl_core.executors import Executor, Images, LocalWork
from fl_core.local_data import ClientTables, draw_batches, phase_steps
from fl_core.memory import keep_freed_memory
from fl_core.models import build_model
from fl_core.privacy.ledger import BudgetExhausted, Ledger, Release, split_noise_multiplier
from fl_core.privacy.mechanism import clip_and_sum, noise_std, noised_clip_share
from fl_core.recipes.catalog import find_method
from fl_core.recipes.objective import Phase
from fl_core.rounds import BoolArray, FloatArray, RoundPlan, RoundReport
from fl_core.streams import torch_generator

UPDATE, CLIP_BIT = "update", "clip-bit"


class Federation:
    """A batch of differentially private federated runs of one method on one dataset.

    Attributes:
        config: the settings that the runs share.
        settings: those that each run has to itself.
        recipe: the method.
        rounds: rounds done by each run `[runs]`.
        ledgers: one privacy ledger per run.
        server: server models `[runs, size]`.
        clients: persistent client tensors by name `[runs, clients, ...]`.
    """

    def __init__(self, config: FederationConfig, runs: int = 1):
        """Load the data, build the model, and start run r with seed r.

        Raises:
            InputError: the dataset is missing, or a setting does not fit it.
        """
        require_count("runs", runs)
        self.config = config
        self.recipe = find_method(config.method)
        self.device = config.resolve_device()
        keep_freed_memory()
        self._dataset = load_dataset(config.dataset, config.data_root or None, self.device)
        self.model = build_model(config.model, self._dataset.shape, self._dataset.classes)
        self.executor = Executor(self.model, config.executor, config.memory_limit_mib * 2**20)
        self._images = Images(self._dataset.train_images, self._dataset.train_labels, self._dataset.scale)
        self._evaluation = Evaluation(self.executor, self._dataset, config.evaluation_samples)
        self._shared = self.recipe.personalization.shared(self.model).to(self.device)
        self.runs = runs
        self.settings = [RunSettings(seed=row) for row in range(runs)]
        self.rounds = np.zeros(runs, dtype=np.int64)
        self.server = torch.zeros(runs, self.model.size, device=self.device)
        self._last_release = torch.zeros_like(self.server)
        fresh = self.recipe.personalization.initial_state(self.model, self.server[0])
        self.clients = {
            name: torch.zeros(runs, config.clients, *value.shape, device=self.device) for name, value in fresh.items()
        }
        prepared = [self._prepare(one) for one in self.settings]
        self.ledgers = [ledger for ledger, _ in prepared]
        self._indices = [index for _, index in prepared]
        for row in range(runs):
            self._reset_models(row)
        self._tables = ClientTables(self._indices, self.device)

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
        for row, one, (ledger, index) in zip(rows, settings, prepared, strict=True):
            self.settings[row], self.ledgers[row], self._indices[row] = one, ledger, index
            self.rounds[row] = 0
            self._reset_models(row)
        self._tables = ClientTables(self._indices, self.device)

    def _prepare(self, settings: RunSettings) -> tuple[Ledger, ClientIndex]:
        config = self.config
        epsilon = config.epsilon if settings.epsilon is None else settings.epsilon
        config.check_epsilon(epsilon)
        if math.isinf(config.epsilon) and math.isfinite(epsilon):
            config.warn_of_delta()  # the configuration itself promised nothing and so was not warned of
        partition = config.partition if settings.partition is None else settings.partition
        labels, groups = self._dataset.train_labels, self._dataset.train_groups
        index = client_index(labels, config.clients, partition, settings.seed, groups, config.test_fraction)
        return Ledger(epsilon, config.delta, config.accounting_rate, config.rounds), index

    def _reset_models(self, row: int) -> None:
        initial = self.model.initial(self.settings[row].seed, self.device)
        self.server[row] = initial
        self._last_release[row] = 0
        for name, value in self.recipe.personalization.initial_state(self.model, initial).items():
            self.clients[name][row] = value

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
        plan.check(self.runs)
        wanted = ~self.done
        if active is not None:
            fits = np.shape(active) == (self.runs,) and np.asarray(active).dtype == bool
            require(fits, f"active is {active}, but it needs True or False for each of {self.runs} runs.")
            wanted = wanted & active
        noise, refused = self._charge(plan, wanted)  # before any data is touched: a refused run stays as it is
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
        cohort = draw_cohort(self.config, self.seeds, self.rounds, ran, self.device)
        work = self._local_work(self.recipe.objective.phases, "minibatch", self.rounds, cohort.run, cohort.client)
        trained, loss = self.executor.train(work, self._images)
        update = (trained - work.parameters) * self._shared  # not finite in a personal part is NaN here, too
        finite = torch.isfinite(torch.linalg.vector_norm(update, dim=-1))  # nor may the norm overflow
        rejected = cohort.scatter((~finite).float()).sum(-1)
        used = (self._tensor(cohort.sizes) - rejected).clamp_min(1)
        figures: dict[str, Any] = self._budget_figures() | {
            "train_loss": cohort.scatter(torch.where(finite, loss, 0.0)).sum(-1) / used,
            "participants": cohort.sizes,
            "rejected_updates": rejected,
        }
        if self.recipe.releases:
            figures |= self._release(cohort, self.recipe.sparsification(update), plan, noise, ran)
        self._keep_personal(cohort, trained, finite)
        return figures

    def _charge(self, plan: RoundPlan, wanted: BoolArray) -> tuple[dict[str, FloatArray], BoolArray]:
        """Ask each run's ledger: noise multipliers `[runs]` by release, and the runs that were refused `[runs]`."""
        noise = {name: np.zeros(self.runs) for name in (UPDATE, CLIP_BIT)}
        refused = np.zeros(self.runs, dtype=bool)
        if not (self.recipe.releases and self.recipe.mechanism.private):
            return noise, refused
        telemetry = self.config.telemetry_share
        shares = {UPDATE: 1 - telemetry, CLIP_BIT: telemetry} if telemetry else {UPDATE: 1.0}
        for row in np.flatnonzero(wanted):
            ledger = self.ledgers[row]
            try:
                joint = ledger.uniform_noise_multiplier
                if plan.budget_share is not None:
                    joint = ledger.noise_multiplier_for_share(float(plan.budget_share[row]))
                multipliers = split_noise_multiplier(joint, shares)
                ledger.charge(int(self.rounds[row]), [Release(name, value) for name, value in multipliers.items()])
            except BudgetExhausted:
                refused[row] = True
                continue
            for name, value in multipliers.items():
                noise[name][row] = value
        return noise, refused

    def _local_work(
        self, phases: tuple[Phase, ...], stream: str, rounds: np.ndarray, run: Tensor, client: Tensor
    ) -> LocalWork:
        """Local training of the clients at (run, client), each from the model it has now."""
        config, tables = self.config, self._tables
        lengths, active = phase_steps(config, phases, tables)
        batches = draw_batches(tables, self.seeds, stream, rounds, lengths, config.batch_size)
        start = self._client_models(run, client)
        rates = [config.learning_rate if one.learning_rate is None else one.learning_rate for one in self.settings]
        return LocalWork(
            parameters=start,
            phases=phases,
            batches=tuple(phase[run, client] for phase in batches),
            active=tuple(None if mask is None else mask[run, client] for mask in active),
            context={"start": start},
            learning_rate=self._tensor(rates)[run],
            optimizer=config.local_optimizer(),
            rows_vary=config.sampling == "poisson" and config.sampling_rate < 1,
        )

    def _client_models(self, run: Tensor, client: Tensor) -> Tensor:
        """The models that clients have before a round `[rows, size]`."""
        state = {name: value[run, client] for name, value in self.clients.items()}
        return self.recipe.personalization.compose(self.model, self.server[run], state)

    def _release(
        self, cohort: Cohort, update: Tensor, plan: RoundPlan, noise: dict[str, FloatArray], ran: BoolArray
    ) -> dict[str, Any]:
        """Clip, sum, noise and aggregate; the server models of the runs that ran move on. Returns the figures."""
        config, private = self.config, self.recipe.mechanism.private
        present, participants = cohort.present(), self._tensor(cohort.sizes)
        clip, rate = self._tensor(plan.clip_norm), self._tensor(plan.server_learning_rate)
        clipped = clip_and_sum(cohort.scatter(update), present, clip if private else None)
        std = noise_std(config.placement, clip, self._tensor(noise[UPDATE]), participants)
        normal = self._draw_noise("noise", ran & (noise[UPDATE] > 0), self.model.size) * self._shared
        released = clipped.total + std.unsqueeze(-1) * normal
        moved = self.recipe.aggregation(self.server, released, config.cohort, rate)
        counts = self._counts(cohort)
        # Of the expected cohort: how many took part is private, and must not reach a public figure.
        expected = torch.full_like(participants, config.cohort)
        expected_std = noise_std(config.placement, clip, self._tensor(noise[UPDATE]), expected)
        noise_norm = expected_std * self._shared.sum().sqrt()
        previous = self._last_release
        figures: dict[str, Any] = {
            "server_learning_rate": plan.server_learning_rate,
            "server_norm": torch.linalg.vector_norm(moved, dim=-1),
            "update_norm": clipped.norms.sum(-1) / counts,
            "release_norm_ratio": _ratio(torch.linalg.vector_norm(released, dim=-1), noise_norm),
            "release_alignment": torch.cosine_similarity(released, previous, dim=-1),
        }
        if private:
            figures["clip_norm"] = plan.clip_norm
            figures["noise_multiplier"] = noise[UPDATE]
            figures["clipped_share"] = (present & ~clipped.within).sum(-1) / counts
            figures["signal_to_noise"] = _ratio(torch.linalg.vector_norm(clipped.total, dim=-1), noise_norm)
        if private and config.telemetry_share:
            bits = self._draw_noise("telemetry", ran & (noise[CLIP_BIT] > 0), 1).squeeze(-1)
            multiplier = noise_std(config.placement, torch.ones_like(clip), self._tensor(noise[CLIP_BIT]), participants)
            figures["unclipped_share_noised"] = noised_clip_share(
                clipped.within, present, config.cohort, multiplier, bits
            )
        advanced = torch.from_numpy(ran).to(self.device).unsqueeze(-1)
        self.server = torch.where(advanced, moved, self.server)
        self._last_release = torch.where(advanced, released, self._last_release)
        return figures

    def _draw_noise(self, stream: str, rows: BoolArray, size: int) -> Tensor:
        """Standard normal draws `[runs, size]` of this round's stream; 0 for the other runs."""
        noise = torch.zeros(self.runs, size, device=self.device)
        for row in np.flatnonzero(rows):
            generator = torch_generator(self.seeds[row], stream, int(self.rounds[row]), self.device)
            noise[row].normal_(generator=generator)
        return noise

    def _keep_personal(self, cohort: Cohort, trained: Tensor, finite: Tensor) -> None:
        """Store what each client keeps; one whose training diverged keeps what it had."""
        for name, value in self.recipe.personalization.next_state(self.model, trained).items():
            stored = self.clients[name]
            keep = finite.view(-1, *[1] * (value.dim() - 1))
            stored[cohort.run, cohort.client] = torch.where(keep, value, stored[cohort.run, cohort.client])

    # ---------------------------------------------------------------- looking at it

    def evaluate(self) -> dict[str, FloatArray]:
        """Accuracy and loss of every run as it stands, by figure name `[runs]`."""
        return dict(_to_host(self._evaluate(), np.ones(self.runs, dtype=bool)))

    def _evaluate(self) -> dict[str, Tensor]:
        personalization = self.recipe.personalization
        models = self.server
        if personalization.is_stateful or personalization.adaptation:
            run, client = (
                axis.flatten()
                for axis in torch.meshgrid(
                    torch.arange(self.runs, device=self.device),
                    torch.arange(self.config.clients, device=self.device),
                    indexing="ij",
                )
            )
            if personalization.adaptation:
                work = self._local_work(personalization.adaptation, "evaluation", self.rounds, run, client)
                adapted, _ = self.executor.train(work, self._images)
                finite = torch.isfinite(adapted).all(-1, keepdim=True)  # a copy that diverged is tested as it was
                models = torch.where(finite, adapted, work.parameters)
            else:
                models = self._client_models(run, client)
            models = models.view(self.runs, self.config.clients, -1)
        return self._evaluation.pooled(self.server) | self._evaluation.personal(models, self._tables)

    def _budget_figures(self) -> dict[str, FloatArray]:
        spent = np.array([ledger.epsilon_spent() for ledger in self.ledgers])
        if self.recipe.releases and not self.recipe.mechanism.private:
            spent = np.full(self.runs, np.inf)
        left = [
            max(0.0, ledger.epsilon - value) if value < np.inf else ledger.epsilon
            for ledger, value in zip(self.ledgers, spent, strict=True)
        ]
        return {
            "epsilon_spent": spent,
            "epsilon_left": np.array(left),
            "budget_left": np.array([ledger.remaining_share for ledger in self.ledgers]),
        }

    def _counts(self, cohort: Cohort) -> Tensor:
        return self._tensor(cohort.sizes).clamp_min(1)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.float32)).to(self.device)

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit: `tensors` by name, and `plain` as values for strict JSON."""
        tensors = {"server": self.server, "last_release": self._last_release}
        tensors |= {f"clients.{name}": value for name, value in self.clients.items()}
        return {
            "tensors": {name: value.detach().clone() for name, value in tensors.items()},
            "plain": {
                "config": _plain(self.config),
                "settings": [_plain(one) for one in self.settings],
                "executor": self.executor.kind,
                "rounds": self.rounds.tolist(),
                "ledgers": [ledger.state_dict() for ledger in self.ledgers],
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the object must have been made with the same settings.

        Raises:
            InputError: the state belongs to other settings, is damaged, or a ledger in it was edited; nothing has
                changed then.
        """
        try:
            settings, ledgers, rounds = self._read_plain(state["plain"])
            tensors = self._read_tensors(state["tensors"])
            self.executor.resume_as(state["plain"]["executor"])
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(f"The saved state is not one that a federation wrote ({error!r}).") from error
        self.start(range(self.runs), settings)
        self.ledgers, self.rounds = ledgers, rounds
        self.server, self._last_release = tensors["server"], tensors["last_release"]
        self.clients = {name: tensors[f"clients.{name}"] for name in self.clients}

    def _read_plain(self, plain: Mapping[str, Any]) -> tuple[list[RunSettings], list[Ledger], np.ndarray]:
        """Settings, ledgers and rounds `[runs]` of a saved state, once they fit this federation and each other."""
        for field, value in _plain(self.config).items():
            if field not in ("executor", "device", "memory_limit_mib", "data_root") and plain["config"][field] != value:
                raise InputError(f"{field} of the saved run is {plain['config'][field]}, but here it is {value}.")
        for part in ("settings", "rounds", "ledgers"):
            found = len(plain[part])
            require(found == self.runs, f"The saved state holds {found} {part}, but this federation has {self.runs}.")
        settings = [_read_settings(one) for one in plain["settings"]]
        ledgers = [self._prepare(one)[0] for one in settings]
        for ledger, saved, rounds in zip(ledgers, plain["ledgers"], plain["rounds"], strict=True):
            ledger.load_state_dict(saved)
            self._check_round(rounds, ledger)
        return settings, ledgers, np.array(plain["rounds"], dtype=np.int64)

    def _check_round(self, rounds: int, ledger: Ledger) -> None:
        """Refuse a number of rounds done that is impossible, or another one than the ledger has charged."""
        require_count("rounds of the saved run", rounds, least=0)
        require(
            rounds <= self.config.rounds, f"rounds of the saved run is {rounds}, but it has {self.config.rounds} only."
        )
        if self.recipe.releases and self.recipe.mechanism.private:
            charged = ledger.charges[-1].round + 1 if ledger.charges else 0
            require(rounds == charged, f"rounds of the saved run is {rounds}, but its ledger has charged {charged}.")

    def _read_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of a saved state's tensors on this device, once they have the right shapes."""
        tensors = {}
        for name, own in self.state_dict()["tensors"].items():
            fits = saved[name].shape == own.shape and saved[name].dtype == own.dtype
            require(fits, f"{name} of the saved run has shape {tuple(saved[name].shape)}, not {tuple(own.shape)}.")
            tensors[name] = saved[name].to(self.device).clone()
        return tensors


def _plain(settings: FederationConfig | RunSettings) -> dict[str, Any]:
    """Fields as values for strict JSON, which has no infinity; an epsilon of 8 and of 8.0 read the same."""
    epsilon = settings.epsilon
    return asdict(settings) | {"epsilon": None if epsilon is None else str(float(epsilon))}


def _read_settings(plain: Mapping[str, Any]) -> RunSettings:
    """The inverse of `_plain` for a run's settings."""
    epsilon = plain["epsilon"]
    return RunSettings(**{**plain, "epsilon": None if epsilon is None else float(epsilon)})


def _ratio(value: Tensor, noise_norm: Tensor) -> Tensor:
    """Value over the noise's norm; 0 where there is no noise to compare with."""
    return torch.where(noise_norm > 0, value / noise_norm.clamp_min(torch.finfo(value.dtype).tiny), 0.0)


def _to_host(figures: dict[str, Any], ran: BoolArray) -> dict[str, FloatArray]:
    """All figures as float64 `[runs]` on the CPU, in one transfer; NaN for runs that did not take part."""
    on_device = {name: value for name, value in figures.items() if isinstance(value, Tensor)}
    stacked = torch.stack([value.to(torch.float64) for value in on_device.values()]).cpu().numpy()
    host = dict(zip(on_device, stacked, strict=True))
    return {name: np.where(ran, host.get(name, value), np.nan).astype(np.float64) for name, value in figures.items()}
