"""Federated runs, one round at a time, as a batch.

State leads with `[runs, ...]`, client tensors with `[runs, clients, ...]`; a single run is a batch of one. Runs may be
at different rounds: every draw is a function of (seed, stream, round), so a row of a batch equals the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.base.arguments import checked
from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.base.errors import InputError, require, require_count
from fl_core.base.streams import new_secret
from fl_core.data.clients import ClientIndex
from fl_core.data.datasets import Dataset
from fl_core.privacy.ledger import Ledger
from fl_core.run import saved_state
from fl_core.run.budget import both_given
from fl_core.run.charging import Books, Charging
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.knobs import knob_values
from fl_core.run.plan import RoundPlan, RoundReport, in_units
from fl_core.run.round import play_round
from fl_core.run.round_parts import Charged
from fl_core.run.simulation import Simulation
from fl_core.run.state import RunState


class Federation(Simulation):
    """A batch of differentially private federated runs of one method on one dataset.

    It keeps the runs' state and privacy budgets; `play_round` computes the rounds.

    Examples:
        >>> federation = Federation(FederationConfig(clients=6, rounds=2, epsilon=4.0), runs=3)
        >>> report = federation.run_round(RoundPlan.constant(3, clip_norm=0.5), evaluate=True)
        >>> report.figures["epsilon_spent"].round(2).tolist()
        [2.69, 2.69, 2.69]
        >>> report.figures["personal_accuracy"].shape
        (3,)

    Attributes:
        state: everything that the next round starts from, beside settings, data and budgets.
        charging: the runs' privacy budgets.
    """

    @checked
    def __init__(self, config: FederationConfig, runs: int = 1, dataset: Dataset | None = None):
        """Load the data, build the model, and start run r with seed r.

        Args:
            config: settings that the runs share.
            runs: how many.
            dataset: in place of the configuration's, on its device; of the same shape and classes.

        Raises:
            InputError: the dataset is missing, or a setting does not fit it.
        """
        require_count("runs", runs)
        super().__init__(config, runs, dataset)
        self.state = RunState.allocate(self.recipe, self.model, runs, config)
        self.charging = Charging(config, self.recipe, [self._open_books(one) for one in self.settings])
        self._defaults = [dict[str, float]() for _ in range(runs)]
        for row in range(runs):
            self._reset_run(row)

    @property
    def rounds(self) -> NDArray[np.int64]:
        """Rounds done by each run `[runs]`."""
        return self.state.rounds

    @property
    def server(self) -> Tensor:
        """Server models `[runs, size]`."""
        return self.state.server

    @property
    def last_release(self) -> Tensor:
        """Sums that were released last `[runs, size]`."""
        return self.state.last_release

    @property
    def clients(self) -> dict[str, Tensor]:
        """What the clients keep, by name `[runs, clients, ...]`; copies, as who never took part keeps nothing."""
        return {name: self.state.clients.everybody(name) for name in self.state.clients.names}

    @property
    def ledgers(self) -> list[Ledger]:
        """Per run, what certifies its privacy."""
        return self.charging.ledgers

    # ---------------------------------------------------------------- starting runs

    @checked
    def start(self, rows: Sequence[int], settings: Sequence[RunSettings]) -> None:
        """Put rows of the batch at the beginning of new runs.

        Raises:
            InputError: a row does not exist, a partition is impossible or a budget is invalid; no row has changed then.
        """
        self.begin(rows, settings, self.prepare(rows, settings))

    def prepare(self, rows: Sequence[int], settings: Sequence[RunSettings]) -> list[tuple[Books, ClientIndex]]:
        """Make the budgets and the data of new runs, for `begin`; nothing is started.

        Raises:
            InputError: as `start`.
        """
        for row in rows:
            require(0 <= row < self.runs, f"row is {row}, but this federation has rows 0 to {self.runs - 1}.")
        require(len(rows) == len(settings), f"There are {len(rows)} rows to start, but settings for {len(settings)}.")
        present = dict(zip(self.settings, self._indices, strict=True))
        return [(self._open_books(one), present.get(one) or self._client_index(one)) for one in settings]

    def begin(
        self, rows: Sequence[int], settings: Sequence[RunSettings], prepared: Sequence[tuple[Books, ClientIndex]]
    ) -> None:
        """Put rows of the batch at the beginning of new runs that `prepare` has made ready."""
        self._hold(rows, settings, [index for _, index in prepared])
        for row, (books, _) in zip(rows, prepared, strict=True):
            self.charging.books[row] = books
            self._reset_run(row)

    def _open_books(self, settings: RunSettings) -> Books:
        """Open the books of a new run, once its budget is one that the method can have."""
        config = self.config
        if settings.epsilon is not None and config.noise_multiplier is not None:
            raise both_given(settings.epsilon, config.noise_multiplier)
        epsilon = config.epsilon if settings.epsilon is None else settings.epsilon
        config.check_epsilon(epsilon)
        require(
            math.isfinite(epsilon) or not config.client_budgets,
            f"epsilon is {epsilon}, but clients have budgets of their own, client_epsilon '{config.client_epsilon}', "
            "and need a finite one.",
        )
        if math.isinf(config.epsilon) and math.isfinite(epsilon):
            config.warn_of_delta()  # the configuration itself promised nothing and so was not warned of
        return Charging.prepare(config, self.recipe, epsilon)

    def _reset_run(self, row: int) -> None:
        """Set initial models, state and knob defaults of a run whose books are open."""
        self.secrets[row] = new_secret() if self.config.noise == "secret" else b""
        self.state.restart(row, self.recipe, self.model, self.model.initial(self.settings[row].seed, self.device))
        self._defaults[row] = self.charging.knob_defaults(row)

    @property
    def done(self) -> BoolArray:
        """Runs that have done all their rounds `[runs]`."""
        return np.asarray(self.rounds >= self.config.rounds)

    # ---------------------------------------------------------------- one round

    @checked
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
            if not fits:
                raise InputError(f"active is {active}, but it needs True or False for each of {self.runs} runs.")
            wanted = wanted & active
        # Before any data is touched; a refused run stays as it is.
        certified = cache(partial(self._effective_factors, wanted, "layer_weights" in plan.settings))
        noise, refused = self.charging.charge(plan, wanted, self.rounds, lambda row: float(certified()[row]))
        ran = wanted & ~refused
        try:
            charged = Charged(ran, noise, self.charging.client_shares())
            self.state, figures = play_round(self, self.state, self.knob_values(plan), charged)
        finally:
            self.rounds[ran] += 1  # what is charged is spent, also where an error or an interruption lost the round
        if evaluate:
            figures |= self.test(self.state)
        figures = self.charging.figures() | figures
        return RoundReport(in_units(_to_host(figures, ran), self.update_scales), ran, refused)

    def knob_values(self, plan: RoundPlan) -> dict[str, Tensor]:
        """Gather the values of every knob, as the function of that name, `[runs]` (`[runs, layers]`) on the device."""
        values = knob_values(plan, self._defaults, self.recipe, self.update_scales)
        return {name: self._tensor(value) for name, value in values.items()}

    def _effective_factors(self, wanted: BoolArray, same_layers: bool) -> FloatArray:
        """Compute the part of the claimed noise multiplier that the real noise of each run's next round certifies.

        What each client uploads is known on the device alone, and is read in one transfer for all runs.

        Args:
            wanted: runs that it is computed for `[runs]`; the others have 1.
            same_layers: True if the plan gives all clients the same layer weights.
        """
        rows = np.flatnonzero(wanted)
        who = (self.contributors(self.state, int(row), same_layers) for row in rows)
        factors = np.ones(self.runs)
        factors[rows] = torch.stack([self.releaser.effective_factor(one) for one in who]).cpu().numpy()
        return factors

    # ---------------------------------------------------------------- looking at it

    @checked
    def evaluate(self, mode: str = "") -> dict[str, FloatArray]:
        """Measure accuracy and loss of every run as it stands, by figure name `[runs]`.

        Args:
            mode: what clients' models are tested on, one of `EVALUATIONS`; empty takes the configuration's.
        """
        return dict(_to_host(self.test(self.state, mode), np.ones(self.runs, dtype=bool)))

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Copy everything needed to continue bit for bit: `tensors` by name, and `plain` as values for strict JSON."""
        return saved_state.save(
            self.config, self.settings, self.executor.kind, self.state, self.charging.books, self.secrets
        )

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the object must have been made with the same settings.

        Where the noise is secret, its keys must be among `secrets` already.

        Raises:
            InputError: the state belongs to other settings, is damaged, its noise has another key, or a ledger in it
                was edited; nothing has changed then.
        """
        secrets = list(self.secrets)
        saved = saved_state.read(self.config, self.recipe, self.state, state, self._open_books, secrets)
        self.executor.resume_as(saved.executor)
        self.start(range(self.runs), saved.settings)
        self.secrets = secrets
        self.charging.books = saved.books
        self.state = saved.state


def _to_host(figures: dict[str, Any], ran: BoolArray) -> dict[str, FloatArray]:
    """All figures as float64 `[runs]` on the CPU, in one transfer; NaN for runs that did not take part."""
    on_device = {name: value for name, value in figures.items() if isinstance(value, Tensor)}
    stacked = torch.stack([value.to(torch.float64) for value in on_device.values()]).cpu().numpy()
    host = dict(zip(on_device, stacked, strict=True))
    return {name: np.where(ran, host.get(name, value), np.nan).astype(np.float64) for name, value in figures.items()}
