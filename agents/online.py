"""PPO that learns within the very run that it controls, from what it sees there, without any training before."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from agents.blueprint import core_of
from agents.bounded import BoundedController
from agents.online_learner import OnlineLearner, OnlineSettings, keyed_randomness
from agents.online_spec import KNOBS, NAME, SEEN, TELEMETRY
from fl_core.base.arrays import require_memory
from fl_core.base.errors import InputError, require
from fl_core.run.plan import FloatArray
from fl_core.run.ranges import SEED

State = tuple[NDArray[Any], ...]
_EPISODE, _DECISION, _FILLED = range(3)


class OnlinePPO(BoundedController[State]):
    """An agent per run that learns from the run's own observations (ACDP-pFSD, Algorithm 2).

    State is (accuracy, loss), as observed; reward of a decision is the loss that it removed plus the accuracy that it
    gained (eq. 11-13), computed from the same two numbers: whatever noise the observation has, the reward has, too.
    Actions are random in the first rounds, then the policy's. When the buffer is full, PPO learns from it and the
    buffer is emptied. Weights, optimizer and buffer are in the state that `predict` returns, arrays `[runs, ...]`, so
    that `predict` is a function of its arguments and a run can be continued from what was saved of it.
    """

    def __init__(
        self,
        columns: tuple[int, int],
        features: int,
        chance_loss: float,
        signals: str,
        seed: int = 0,
        settings: OnlineSettings | None = None,
    ):
        """Prepare the agent; it keeps nothing of the environment but what is given here.

        Args:
            columns: places of accuracy and loss in the observation.
            features: size of the observation.
            chance_loss: ln(classes): the cross-entropy in which the loss is measured.
            signals: signal set, for the label.
            seed: of weights and exploration.
            settings: how it learns.
        """
        SEED.check("seed", seed)
        self.signals, self.seed, self.settings = signals, seed, settings or OnlineSettings()
        self._columns, self._features, self._chance_loss = list(columns), features, chance_loss
        with keyed_randomness(seed):
            self._learner = OnlineLearner(self.settings)

    @classmethod
    def for_env(cls, env: Any, seed: int = 0, settings: OnlineSettings | None = None) -> OnlinePPO:
        """Make an agent for any face of an environment.

        Raises:
            InputError: the environment shows no accuracy and loss, or has other knobs than the clip norm.
        """
        return cls(*cls._places(env), seed, settings)

    @staticmethod
    def _places(env: Any) -> tuple[tuple[int, int], int, float, str]:
        """Find what the agent keeps of an environment: the first arguments of its constructor."""
        core = core_of(env)
        names = [feature.name for feature in core.features]
        shown = next((name for name, pair in SEEN.items() if set(pair) <= set(names)), "")
        require(
            bool(shown),
            f"controller '{NAME}' reads accuracy and loss, which this environment does not show; make it with signals "
            f"'paper', or with signals 'accounted' and telemetry '{','.join(TELEMETRY)}'.",
        )
        knobs = ",".join(knob.name for knob in core.knobs)
        require(
            knobs == KNOBS, f"controller '{NAME}' sets the knob '{KNOBS}', but the environment's knobs are {knobs}."
        )
        accuracy, loss = (names.index(name) for name in SEEN[shown])
        chance_loss = math.log(core.layout.classes)
        return (accuracy, loss), len(names), chance_loss, shown

    def check(self, env: Any) -> None:
        """Refuse an environment other than that which it was made for.

        Raises:
            InputError: as `for_env`, or accuracy and loss are other signals, or of another number of classes.
        """
        columns, features, chance_loss, shown = self._places(env)
        own = (tuple(self._columns), self._features, self._chance_loss, self.signals)
        require(
            own == (columns, features, chance_loss, shown),
            f"controller '{NAME}' was made for signals '{self.signals}' ({self._features} features, "
            f"{math.exp(self._chance_loss):.0f} classes), but the environment shows '{shown}' ({features} features, "
            f"{math.exp(chance_loss):.0f} classes).",
        )

    @property
    def label(self) -> str:
        """Readable name for figures and tables."""
        exact = "exact" if self.signals == "paper" else self.signals
        return f"online PPO ({exact} signals, seed {self.seed})"

    def describe(self) -> dict[str, Any]:
        """Name and parameters, as JSON-able values."""
        own = asdict(self.settings) | {"network": list(self.settings.network)}
        return {"name": NAME, "parameters": {"signals": self.signals, "seed": self.seed, **own}}

    def reward(self, before: FloatArray, after: FloatArray) -> float:
        """Compute loss removed plus accuracy gained between two pairs of (accuracy, loss) features.

        Features are 2 x accuracy - 1, and loss / ln(classes) - 1.
        """
        gained, removed = (after[0] - before[0]) / 2, (before[1] - after[1]) * self._chance_loss
        return float(removed + gained)

    # ---------------------------------------------------------------- acting

    @override
    def predict_unclipped(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], State]:
        """Learn from the outcome of the last decision, and decide.

        The agent of a row begins anew where `episode_start` says so. `deterministic` has no effect: an agent that does
        not explore cannot learn.
        """
        array = np.asarray(observation, dtype=np.float64)
        if array.ndim not in (1, 2) or array.shape[-1] != self._features:
            raise InputError(
                f"observation has shape {array.shape}, but controller '{NAME}' was made for {self._features} features."
            )
        seen = np.atleast_2d(array)[:, self._columns]
        require_memory(state, episode_start, len(seen))
        counts, networks, buffers = self._unpack(state, len(seen))
        starts = np.zeros(len(seen), dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        actions = np.zeros((len(seen), 1), dtype=np.float32)
        for row in range(len(seen)):
            if state is None or starts[row]:
                counts[row] = [0 if state is None else counts[row, _EPISODE] + 1, 0, 0]
                with keyed_randomness(self.seed, row, int(counts[row, _EPISODE]), 0):
                    networks[row] = self._learner.fresh()
                buffers[row] = 0.0
            actions[row] = self._decide(row, seen[row], counts[row], networks[row], buffers[row])
        return (actions[0] if array.ndim == 1 else actions), (counts, networks, buffers)

    def _unpack(self, state: State | None, rows: int) -> tuple[NDArray[np.int64], NDArray[np.float32], FloatArray]:
        """Copy counters `[rows, 3]`, weights and moments `[rows, 3, size]`, and transitions `[rows, B, 6]`."""
        if state is not None:
            counts, networks, buffers = (np.array(part) for part in state)
            return counts, networks, buffers
        networks = np.zeros((rows, 3, self._learner.size), dtype=np.float32)
        return np.zeros((rows, 3), dtype=np.int64), networks, np.zeros((rows, self.settings.buffer, 6))

    def _decide(
        self,
        row: int,
        seen: FloatArray,
        counts: NDArray[np.int64],
        network: NDArray[np.float32],
        buffer: FloatArray,
    ) -> float:
        """Decide for one run; counters, weights and buffer are changed in place.

        The buffer's columns are accuracy, loss, action, log probability, value and reward; the one row beyond those
        that are filled waits for its reward.
        """
        decision = int(counts[_DECISION])
        counts[_DECISION] += 1
        with keyed_randomness(self.seed, row, int(counts[_EPISODE]), decision + 1):
            if decision < self.settings.random_decisions:
                return float(2 * torch.rand(1, dtype=torch.float64) - 1)
            updates = max(0, decision - self.settings.random_decisions - 1) // self.settings.buffer
            self._learner.put(network, steps=updates * self.settings.passes)
            if decision > self.settings.random_decisions:
                last = buffer[counts[_FILLED]]
                last[5] = self.reward(last[:2], seen)
                counts[_FILLED] += 1
                if counts[_FILLED] == self.settings.buffer:
                    self._learner.learn(buffer, seen)
                    network[:] = self._learner.taken()
                    counts[_FILLED] = 0
            action, log_probability, value = self._learner.act(seen)
            buffer[counts[_FILLED]] = [*seen, action, log_probability, value, 0.0]
            return action
