"""The environment without a library's protocol: a batch of federated runs, advanced one decision at a time.

The faces for Gymnasium and stable-baselines3 are thin layers over this class; it knows neither library's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from envs.actions import read_actions, share_outside
from envs.context import KNOWN
from envs.controls import Controls, Steered, with_prefix
from envs.episodes import Episodes
from envs.fleet import Fleet
from envs.generators import parse_generator
from envs.instances import instance_seeds
from envs.knobs import PER_LAYER
from envs.references import ReferenceAccuracies
from envs.resets import read_rows
from envs.rewards import DIVERGENCE_PENALTY, RewardInputs, find_reward
from envs.setting import Setting
from fl_core.base.arguments import checked
from fl_core.base.errors import require
from fl_core.models.layout import Layout
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import BoolArray, FloatArray, RoundPlan


class EnvCore(Steered, Episodes):
    """A batch of federated runs with named knobs and features.

    Attributes:
        setting: all its settings.
        spec: those of observation, action, reward and instances.
        task: the task as it runs, accounted signals paid for.
        generator: distribution of the instances' settings.
        fleet: the runs, in a federation for each shape of instance.
        controls: what turns actions into plans, and reports into observations.
        pool: instances of the spec's set, by seed.
        judges_server: whether results are judged by the server's model; by the clients' where it is incomplete.
    """

    @checked
    def __init__(self, setting: Setting, runs: int = 1):
        """Build the task's federation with `runs` rows.

        Raises:
            InputError: a knob is unknown, or the data, the method or the generator do not allow the setting.
        """
        spec = setting.spec
        self.setting, self.spec = setting, spec
        self.task = setting.task_as_run
        self.pool = instance_seeds(spec.instances, spec.instance_count)
        self._reward = find_reward(spec.reward)
        self.generator = parse_generator(spec.generator)
        self.fleet = Fleet(self.task.federation, runs, self.generator.shapes)
        recipe, layout = self.federation.recipe, self.federation.model
        self.controls = Controls(self.task, spec, layout, self.federation.charging.knob_defaults(0), runs)
        self.judges_server = recipe.personalization.judged_by_server
        accuracy = "global_accuracy" if self.judges_server else "personal_accuracy"
        super().__init__(self.fleet, runs, accuracy, [knob.name for knob in self.knobs])
        self._needs_evaluation = self._reward.every_decision or self.controls.needs_evaluation
        self._references = ReferenceAccuracies(self.task, self.generator, accuracy)
        if self.generator.axes:
            self._check_generator([span.name for span in layout.layers])

    def _check_generator(self, layers: Sequence[str]) -> None:
        """Refuse a generator some of whose instances cannot be, before any is played."""
        names = [{span.name for span in member.model.layers} for member in self.fleet.members]
        by_layer = any(PER_LAYER in name for name in (*(k.name for k in self.knobs), *(f.name for f in self.features)))
        require(
            not by_layer or all(own == set(layers) for own in names),
            f"generator '{self.spec.generator}' mixes models of different layers, but knobs or signals of single "
            "layers are asked for.",
        )
        for member in self.fleet.members:
            for one in self.generator.extremes():
                member.prepare([0], [one])

    @property
    def federation(self) -> Federation:
        """The runs; where instances differ in shape, those of the first shape."""
        return self.fleet.members[0]

    @property
    def layout(self) -> Layout:
        """Layout of the model, that of the first shape."""
        return self.federation.model

    @property
    def longest(self) -> int:
        """Rounds T of an episode; where the generator draws it, of the longest."""
        return max(member.config.rounds for member in self.fleet.members)

    @property
    def noise_at(self) -> Callable[[float | None], float]:
        """Uniform noise multiplier of the first run as a function of ε (None: its own)."""
        return self.federation.charging.noise_at(0)

    @property
    def rounds(self) -> NDArray[np.int64]:
        """Rounds done by each run `[runs]`."""
        return self.fleet.rounds

    # ---------------------------------------------------------------- episodes

    @checked
    def reset(self, rows: Sequence[int], settings: Sequence[RunSettings]) -> None:
        """Start new episodes in some rows; the generator draws the settings that are left open.

        Raises:
            InputError: as `prepare`; no run has changed then.
        """
        self.prepare(rows, settings)()

    def prepare(self, rows: Sequence[int], settings: Sequence[RunSettings]) -> Callable[[], None]:
        """Make new episodes ready in some rows; what is returned starts them.

        Raises:
            InputError: a row is none of the batch's or named twice, there is not one setting per row, or a setting is
                not allowed.
        """
        rows = read_rows(rows, self.runs)
        require(len(settings) == len(rows), f"There are {len(settings)} settings for {len(rows)} rows.")
        settings = [self.generator.fill(one) for one in settings]
        begin = self.fleet.prepare(rows, settings, [self.generator.shape_of(one.seed) for one in settings])
        return partial(self._start, rows, settings, begin)

    def _start(self, rows: Sequence[int], settings: Sequence[RunSettings], begin: Callable[[], None]) -> None:
        """Start the episodes that are ready."""
        begin()
        if self._reward.needs_reference:
            self._references.expect(settings)
        metrics = self.fleet.evaluate() if self._needs_evaluation or self.spec.evaluate_every_round else {}
        self._begin(rows, metrics)
        self.controls.begin(rows, [self.fleet.of(row).model.size for row in rows], {**metrics, **self._context(rows)})
        self._observe(rows)

    def _context(self, rows: Sequence[int]) -> dict[str, FloatArray]:
        """Read the settings that features are made of by figure `[runs]`, for some rows."""
        found = {name: np.full(self.runs, np.nan) for name in self.controls.settings}
        for name, values in found.items():
            for row in rows:
                member = self.fleet.of(row)
                values[row] = KNOWN[name].read(member.config, member.settings[row], member.model)
        return found

    def _observe(self, rows: Sequence[int]) -> None:
        """Make the observations of some rows anew."""
        self.controls.observe(rows, self.fleet.rounds / self.fleet.lengths, self.fleet.noise_multipliers)

    @checked
    def references(self, seeds: Sequence[int]) -> list[float]:
        """Return the final accuracy of the default clip norm on each instance, the baseline of rewards."""
        instances = [self.generator.fill(RunSettings(seed=seed)) for seed in seeds]
        found: list[float] = []
        for first in range(0, len(instances), self.runs):
            found += self._references.find(instances[first : first + self.runs])
        return found

    def step(self, actions: NDArray[Any], rows: Sequence[int] | None = None) -> tuple[FloatArray, BoolArray]:
        """Apply one decision to the unfinished runs among `rows` (None: all).

        Args:
            actions: coordinates `[runs, knobs]`; beyond [-1, 1] they saturate. Those of other runs are ignored.
            rows: runs to advance.

        Returns:
            Rewards `[runs]` and whether each run ended in this step `[runs]`.

        Raises:
            InputError: there is not one coordinate per run and knob, one is NaN or infinite, or `rows` names no rows;
                nothing has changed then.
            ResetNeeded: none of the runs has been reset yet.
        """
        coordinates = read_actions(actions, self.runs, len(self.knobs))
        chosen = np.zeros(self.runs, dtype=bool)
        chosen[list(range(self.runs)) if rows is None else read_rows(rows, self.runs)] = True
        if not self.begun.any():
            raise gym.error.ResetNeeded("Cannot step before a reset: no run has begun.")
        active = chosen & ~self.finished
        plan = self.controls.plan(coordinates, active)
        ended, diverged = self._advance(plan, active, share_outside(coordinates))
        previous = {name: value.copy() for name, value in self._metrics.items()}
        if self._needs_evaluation or ended.any():
            metrics = self.fleet.evaluate()
            # A row's figures must not tell that another row's episode has ended.
            self._record_evaluation(metrics, active if self._needs_evaluation else ended)
            self.controls.note_figures(metrics, active)
        self.finished |= ended
        self._observe(list(np.flatnonzero(active)))
        return self._rewards(previous, active, ended, diverged), ended

    def end_diverged(self, actions: NDArray[Any]) -> None:
        """End the unfinished runs whose actions `[runs, knobs]` are not all finite, as diverged.

        `step` would refuse them. Accuracy is that of the model as it stands.

        Raises:
            InputError: there is not one coordinate per run and knob.
        """
        ended = ~self.finished & ~np.isfinite(read_actions(actions, self.runs, len(self.knobs))).all(axis=1)
        if ended.any():
            self.failed |= ended
            self.finished |= ended
            self._record_evaluation(self.fleet.evaluate(), ended)

    def _advance(self, plan: RoundPlan, active: BoolArray, outside: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Run the rounds of one decision; returns which runs ended, and which of them with a model no longer finite."""
        ended = np.zeros(self.runs, dtype=bool)
        diverged = np.zeros(self.runs, dtype=bool)
        for _ in range(self.spec.decision_rounds):
            going = active & ~ended
            if not going.any():
                break
            report = self.fleet.run_round(plan, going, evaluate=self.spec.evaluate_every_round)
            self._record(report, outside)
            self.controls.note_round(report)
            broken = report.ran & ~np.isfinite(report.figures.get("server_norm", np.zeros(self.runs)))
            diverged |= broken
            ended |= going & (report.refused | broken | self.fleet.over)
        self.controls.end_decision()
        return ended, diverged

    def _rewards(
        self, previous: dict[str, FloatArray], active: BoolArray, ended: BoolArray, diverged: BoolArray
    ) -> FloatArray:
        zero = np.zeros(self.runs)

        def read(store: dict[str, FloatArray], name: str) -> FloatArray:
            return store.get(name, zero)

        inputs = RewardInputs(
            accuracy=read(self._metrics, self._accuracy),
            previous_accuracy=read(previous, self._accuracy),
            trimmed_accuracy=read(self._metrics, "trimmed_accuracy"),
            previous_trimmed_accuracy=read(previous, "trimmed_accuracy"),
            trimmed_loss=read(self._metrics, "trimmed_loss"),
            previous_trimmed_loss=read(previous, "trimmed_loss"),
            ended=ended.astype(np.float64),
            reference=self._references_of(ended),
        )
        rewards = np.where(diverged, DIVERGENCE_PENALTY, self._reward.compute(inputs))
        return np.where(active, np.nan_to_num(rewards, nan=DIVERGENCE_PENALTY, posinf=0.0, neginf=0.0), 0.0) + 0.0

    def _references_of(self, ended: BoolArray) -> FloatArray:
        """Return the references that rewards of runs which ended are measured by `[runs]`; 0 for the others."""
        found = np.zeros(self.runs)
        rows = np.flatnonzero(ended)
        if self._reward.needs_reference and len(rows):
            found[rows] = self._references.find([self.fleet.of(row).settings[row] for row in rows.tolist()])
        return found

    # ---------------------------------------------------------------- what is seen

    def observe(self) -> NDArray[np.float32]:
        """Return the observations of all runs `[runs, features]`, as a copy."""
        return self.controls.observation

    def state_dict(self) -> dict[str, Any]:
        """Return the state to continue from between two decisions: `tensors` by name, `plain` as JSON-able values."""
        state = self.fleet.state_dict()
        arrays = self.controls.state_dict() | {f"metrics.{name}": value for name, value in self._metrics.items()}
        state["tensors"] |= {f"env.{name}": torch.from_numpy(value.copy()) for name, value in arrays.items()}
        state["plain"] |= self._plain_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, with the same spec and settings.

        Raises:
            InputError: the state belongs to other settings, or a ledger in it was edited.
        """
        self.fleet.load_state_dict(state)
        arrays = {
            name.removeprefix("env."): value.cpu().numpy().copy()
            for name, value in state["tensors"].items()
            if name.startswith("env.")
        }
        self.controls.load_state_dict(arrays)
        self._metrics = with_prefix(arrays, "metrics.")
        self._load_plain_state(state["plain"])
        if self._reward.needs_reference:
            self._references.expect([self.fleet.of(row).settings[row] for row in range(self.runs)])

    def describe(self) -> dict[str, Any]:
        """Return what a controller must match: setting, knobs and features, as JSON-able values."""
        return {
            "setting": self.setting.as_record(),
            "knobs": [asdict(knob) for knob in self.knobs],
            "features": [feature.name for feature in self.features],
        }


def make_core(runs: int = 1, setting: Setting | None = None, **settings: Any) -> EnvCore:
    """Make a core from keyword arguments: those of `Setting.of`, or a setting and what is replaced in it.

    Raises:
        InputError: a name is unknown or a value is not allowed.
    """
    return EnvCore(Setting.of(**settings) if setting is None else setting.replace(**settings), runs)
