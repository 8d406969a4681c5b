"""Control loop of a federated run that is no simulation: a controller, a ledger and whoever trains.

It sees what a round released, asks the controller, charges the ledger, and hands out what the next round is done with.
Controls, charges and figures are those of the simulated runs (`EnvCore`), so that a controller meets the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envs.acting import Actor, Policy
from envs.charged_round import ChargedRound
from envs.context import KNOWN
from envs.controls import Controls, Steered, with_prefix
from envs.loop_state import MEMORY, PLAN, check_arrays, check_plain
from envs.setting import Setting
from envs.signals import MEDIAN_NORM, MEDIAN_SPREAD, NOISE_LEVEL, ROUND_FRACTION, last_action
from fl_core.base.arguments import check_argument, checked
from fl_core.base.errors import require, require_name
from fl_core.base.sealed import understood
from fl_core.models.layout import Layout
from fl_core.privacy.ledger import Ledger
from fl_core.run.charging import UPDATE, Books, Charging
from fl_core.run.config import RunSettings
from fl_core.run.deployable import require_steerable
from fl_core.run.knobs import knob_values
from fl_core.run.plan import METRICS, FloatArray, RoundPlan, RoundReport, in_units
from fl_core.run.release_figures import layer_figures, release_figures

_RUN = np.array([True])


class ControlLoop(Steered):
    """One run under a controller and a ledger, whoever trains.

    A round is charged before it is handed out, and a charge is never taken back: what is handed out and not observed,
    because the process ended or `give_up` was called, is lost, and the next round is a new one.

    Examples:
        >>> from fl_core.models.layout import Outline
        >>> from policies import FixedClip
        >>> setting = Setting.of(clients=20, rounds=2, epsilon=4.0)
        >>> loop = ControlLoop(setting, FixedClip.for_env, Outline({"layer": 3}, classes=2))
        >>> last = np.zeros(3)
        >>> while (now := loop.next_round()) is not None:
        ...     total = np.random.default_rng().normal(0, now.noise_std, 3)  # an empty cohort's
        ...     loop.observe_release(total, last)
        ...     last = total
        ...     print(now.index, round(now.clip_norm, 2), round(now.noise_std, 2), len(loop.ledger.charges))
        0 1.0 1.53 1
        1 1.0 1.53 2

    Attributes:
        setting: task, knobs and signals.
        task: the task as it runs, accounted signals paid for.
        layout: of the model that is trained.
        controls: what turns actions into plans, and reports into observations.
        figures_needed: names of the figures that `observe` must be told of every round.
        charging: the budget; its `on_charge` is called when a round is charged, before it is handed out.
    """

    @checked
    def __init__(
        self,
        setting: Setting,
        controller: Callable[..., Policy],
        layout: Layout,
        run: RunSettings = RunSettings(seed=0),  # noqa: B008  (frozen)
        ledger: Ledger | None = None,
    ):
        """Begin a run.

        Args:
            setting: task, knobs and signals; how its clients are simulated does not matter.
            controller: function from the loop to its controller, such as `AdaptiveQuantileClip.for_env`, the `for_env`
                of a loaded controller, or `lambda loop: model`.
            layout: of the model, such as `Outline`.
            run: ε and seed of the run, and what a visible context shows.
            ledger: of the same budget; None opens a new one.

        Raises:
            InputError: the method or its guarantee can only be simulated, the ledger has another budget, or the
                controller does not fit.
        """
        self.setting, self.spec, self.task, self.layout, self.run = (
            setting,
            setting.spec,
            setting.task_as_run,
            layout,
            run,
        )
        config = self.task.federation
        self._recipe = config.recipe()
        require_steerable(config, self._recipe)
        epsilon = config.epsilon if run.epsilon is None else run.epsilon
        config.check_epsilon(epsilon)
        books = Charging.prepare(config, self._recipe, epsilon)
        if ledger is not None:
            books.ledger.load_state_dict(ledger.state_dict())  # refuses one of another budget
            books = Books(ledger)
        self.charging = Charging(config, self._recipe, [books])
        self._defaults = self.charging.knob_defaults(0)
        self.controls = Controls(self.task, self.spec, layout, self._defaults, 1)
        self._scales = np.array([config.update_scale if run.update_scale is None else run.update_scale])
        self._plan: RoundPlan | None = None
        self._ahead = 0
        self._given: ChargedRound | None = None
        self._refused = False
        shown = {feature.figure for feature in self.features}
        known = {name: np.array([KNOWN[name].read(config, run, layout)]) for name in self.controls.settings}
        told = {ROUND_FRACTION, NOISE_LEVEL, *KNOWN, MEDIAN_NORM, MEDIAN_SPREAD}
        told |= {last_action(knob.name) for knob in self.knobs}
        self.figures_needed = sorted(shown - told - set(self.charging.figures()))
        nothing = {name: np.array([math.nan]) for name in shown if name in METRICS}
        self.controls.begin([0], [layout.size], nothing | known)
        self._observe()
        self._fresh = dict(self.controls.state_dict())
        self._actor = Actor(controller(self), self, len(self.knobs))

    # ---------------------------------------------------------------- what controllers look at

    @property
    def longest(self) -> int:
        """Rounds T of the run."""
        return self.task.federation.rounds

    @property
    def noise_at(self) -> Callable[[float | None], float]:
        """Uniform noise multiplier as a function of ε (None: the run's own)."""
        return self.charging.noise_at(0)

    @property
    def observation(self) -> NDArray[np.float32]:
        """What the controller sees next `[features]`."""
        return self.controls.observation.reshape(-1)

    # ---------------------------------------------------------------- the run

    @property
    def ledger(self) -> Ledger:
        """The run's ledger."""
        return self.charging.ledgers[0]

    @property
    def rounds(self) -> int:
        """Rounds that are charged for, those that were lost included."""
        last = self.ledger.last_charge
        return 0 if last is None else last.round + 1

    @property
    def over(self) -> bool:
        """True if no further round can be had: all are done, or the budget is spent."""
        return self._refused or self.rounds >= self.task.federation.rounds or bool(self.charging.exhausted[0])

    def next_round(self) -> ChargedRound | None:
        """Charge the next round and hand it out; None if the run is over.

        The controller is asked first, once per decision.

        Raises:
            InputError: the round before was not observed, or the controller returns no finite number: nothing is
                charged then. Or what `charging.on_charge` raises: the round is charged then, and lost.
        """
        require(
            self._given is None,
            f"Round {self.rounds} was handed out and neither observed nor given up, so there is no next one yet.",
        )
        if self.over:
            return None
        if not self._ahead:
            self._plan, self._ahead = self._decided(), self.spec.decision_rounds
        assert self._plan is not None
        self._plan.check(1, self._recipe.knobs, len(self.layout.layers))
        index = self.rounds
        try:
            noise, refused = self.charging.charge(self._plan, _RUN, np.array([index]), lambda row: 1.0)
        except BaseException:
            self._end_lost(self.rounds - index)
            raise
        if refused[0]:
            self._refused = True
            return None
        values = knob_values(self._plan, [self._defaults], self._recipe, self._scales)
        knobs = {name: float(one[0]) if one.ndim == 1 else one[0] for name, one in values.items()}
        clip, rate = float(values["clip_norm"][0]), float(values["server_learning_rate"][0])
        multipliers = {name: float(one[0]) for name, one in noise.items() if one[0] > 0 or name == UPDATE}
        self._given = ChargedRound(index, clip, multipliers, rate, knobs)
        return self._given

    def _decided(self) -> RoundPlan:
        """Ask the controller for the plan of the next decision."""
        actions = self._actor.act(self.controls.observation, np.array([self.rounds == 0]))
        coordinates = np.asarray(actions, dtype=np.float64).reshape(1, -1)
        require(
            coordinates.shape[1] == len(self.knobs),
            f"The controller returns {coordinates.shape[1]} numbers, but there are {len(self.knobs)} knobs.",
        )
        return self.controls.plan(coordinates, _RUN)

    @checked
    def observe(self, figures: Mapping[str, float]) -> None:
        """Take in what the round that was handed out has released.

        Args:
            figures: public figures of the release and paid telemetry by name, norms in the model's own units; more than
                the controller sees may be among them. Those of budget, clip and noise are known.

        Raises:
            InputError: no round was handed out, a figure is unknown or no finite number, or one that the controller
                sees is missing.
        """
        given = self._require_given()
        for name, value in figures.items():
            require_name("figure", name.partition(".")[0], METRICS)
            require(math.isfinite(value), f"figure '{name}' is {value}, but it must be a finite number.")
        missing = [name for name in self.figures_needed if name not in figures]
        require(not missing, f"The controller sees {', '.join(missing)}, which the figures of the round lack.")
        told = {name: np.array([float(value)]) for name, value in figures.items()}
        done_with = {"clip_norm": given.clip_norm, "noise_multiplier": given.noise_multiplier}
        known = self.charging.figures() | {name: np.array([value]) for name, value in done_with.items()}
        report = RoundReport(in_units(told | known, self._scales), _RUN, ~_RUN)
        self.controls.note_round(report)
        self._end_round()

    @checked
    def observe_release(
        self, total: NDArray[Any], last: NDArray[Any], telemetry: Mapping[str, float] | None = None
    ) -> None:
        """Take in the sum that a round has released, with central noise of std Cσ in each of its coordinates.

        Args:
            total: noised sum of the clipped updates `[size]`.
            last: that of the round before `[size]`; zeros in the first round.
            telemetry: figures that the round paid for, by name.

        Raises:
            InputError: as `observe`, or the sums are not of the model's size.
        """
        given, size, cohort = self._require_given(), self.layout.size, self.task.federation.cohort
        for name, value in (("total", total), ("last", last)):
            require(value.shape == (size,), f"{name} has shape {value.shape}, but the model has {size} parameters.")
        now, before = (torch.from_numpy(np.asarray(one, dtype=np.float32))[None] for one in (total, last))
        noise = torch.tensor([given.noise_std * math.sqrt(size)], dtype=torch.float32)
        found = release_figures(now, before, noise, cohort) | layer_figures(self.layout, now, cohort)
        self.observe({name: float(value[0]) for name, value in found.items()} | dict(telemetry or {}))

    def give_up(self) -> None:
        """Count the round that was handed out as lost: its charge stays, and the next round is a new one.

        Raises:
            InputError: no round was handed out.
        """
        self._require_given()
        self._end_lost(1)

    def _require_given(self) -> ChargedRound:
        require(self._given is not None, "No round was handed out that could be observed; call next_round first.")
        assert self._given is not None
        return self._given

    def _end_lost(self, count: int) -> None:
        """End rounds of which nothing is known but that they are charged for."""
        for _ in range(count):
            self.controls.note_figures(self.charging.figures(), _RUN)
            self._end_round()

    def _end_round(self) -> None:
        self._given = None
        self._ahead = max(0, self._ahead - 1)
        if not self._ahead or self.over:
            self.controls.end_decision()
            self._observe()

    def _observe(self) -> None:
        noise = np.array([self.charging.budgets[0].uniform_noise_multiplier])
        self.controls.observe([0], np.array([self.rounds]) / self.task.federation.rounds, noise)

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Return the state to continue from: `arrays` by name, and `plain` as values for strict JSON.

        A round that is handed out and not yet observed is lost where it is continued.
        """
        place = self._place()
        return place | {"plain": {"ledger": self.ledger.state_dict(), **place["plain"]}}

    def _place(self) -> dict[str, Any]:
        """Return the state without the ledger, whose length grows with the rounds."""
        arrays = dict(self.controls.state_dict())
        memory = self._actor.memory
        arrays |= {f"{MEMORY}{place}": one for place, one in enumerate(memory or ())}
        if self._plan is not None and self._ahead:
            arrays |= {f"{PLAN}{name}": value for name, value in _plan_arrays(self._plan).items()}
        plain = {
            "observed": self.rounds - (self._given is not None),
            "ahead": self._ahead,
            "refused": self._refused,
            "remembers": memory is not None,
        }
        return {"arrays": {name: np.array(value) for name, value in arrays.items()}, "plain": plain}

    @checked
    def load_state_dict(self, state: Mapping[str, Any], ledger: Ledger | None = None) -> None:
        """Continue where `state_dict` was taken, with the same setting and controller.

        Args:
            state: as saved.
            ledger: the same run's, which may have been charged for more rounds since: those are lost. None takes the
                state's own.

        Raises:
            InputError: the state is none of a run, or it or the ledger has another budget, was edited, or they
                contradict each other.
        """
        self._load(state, ledger, "The state")

    def _load(self, state: Mapping[str, Any], ledger: Ledger | None, where: str) -> None:
        """Continue from a state, which messages call `where`."""
        with understood(f"{where} is not what such a run saved"):
            arrays, plain = dict(state["arrays"]), state["plain"]
            check_argument(f"{where}: plain", plain, dict)
            check_arrays(arrays, self._fresh, where)
            check_plain(plain, arrays, self.spec.decision_rounds, where)
            self._take(arrays, plain, plain["ledger"] if ledger is None else ledger.state_dict(), where)

    def _take(
        self, arrays: dict[str, NDArray[Any]], plain: Mapping[str, Any], ledger: Mapping[str, Any], where: str
    ) -> None:
        """Continue from the parts of a state that were checked each by itself."""
        plan = with_prefix(arrays, PLAN)
        decided = RoundPlan.from_values(1, plan) if plan else None
        if decided is not None:
            decided.check(1, self._recipe.knobs, len(self.layout.layers))
        self.ledger.load_state_dict(ledger)
        lost = self.rounds - plain["observed"]
        require(lost >= 0, f"{where} knows {plain['observed']} rounds, but its ledger has charged {self.rounds}.")
        memory = with_prefix(arrays, MEMORY)
        self._actor.memory = tuple(memory[str(place)] for place in range(len(memory))) if plain["remembers"] else None
        self.controls.load_state_dict(arrays)
        self._plan = decided
        self._ahead, self._refused, self._given = plain["ahead"], plain["refused"], None
        self._end_lost(lost)


def _plan_arrays(plan: RoundPlan) -> dict[str, FloatArray]:
    """Name the values of a plan as `RoundPlan.from_values` takes them."""
    return {"clip_norm": plan.clip_norm, "server_learning_rate": plan.server_learning_rate, **plan.settings}
