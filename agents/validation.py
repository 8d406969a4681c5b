"""How good a policy is on held-out instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from envs import make_core
from envs.instances import instance_seeds
from fl_core.config import RunSettings

_BATCH_BYTES = 1 << 31
"""Memory that the client updates of a batch of validation runs may take, about."""


class Predictor(Protocol):
    """What acts: a stable-baselines3 model or policy, or any controller."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Actions for observations `[runs, features]`, and the state to hand in next time."""


class Validation:
    """A frozen set of held-out instances, played as rows of one batch.

    Attributes:
        seeds: the instances.
    """

    def __init__(self, settings: Mapping[str, Any], instances: int):
        """Prepare the environments; `settings` are keyword arguments of an environment."""
        self.seeds = instance_seeds("validation", instances)
        whole = {**settings, "reward": "final-accuracy", "instances": "validation"}
        probe = make_core(1, **whole)
        per_row = 16 * probe.federation.model.size * max(1, math.ceil(probe.task.federation.cohort))
        self._rows = max(1, min(len(self.seeds), _BATCH_BYTES // per_row))
        self._core = make_core(self._rows, **whole)

    def score(self, policy: Predictor, advance: Callable[[int], None]) -> tuple[float, int]:
        """Play every instance once, without exploration.

        Args:
            policy: what acts.
            advance: told of federated rounds as they are done.

        Returns:
            Mean final accuracy in [0, 1] (of the server's model, or of the clients' where the server's is incomplete)
            and the federated rounds it took.
        """
        accuracies: list[float] = []
        rounds = 0
        for first in range(0, len(self.seeds), self._rows):
            chunk = self.seeds[first : first + self._rows]
            rounds += self._play(policy, chunk, advance)
            accuracies += [self._core.final_accuracy(row) for row in range(len(chunk))]
        return float(np.mean(accuracies)), rounds

    def _play(self, policy: Predictor, seeds: list[int], advance: Callable[[int], None]) -> int:
        """Play a batch to its end; the federated rounds it took."""
        core, rows = self._core, range(len(seeds))
        core.finished[:] = True  # rows beyond a last, smaller batch stay idle
        core.reset(rows, [RunSettings(seed=seed) for seed in seeds])
        state, start, done = None, np.ones(core.runs, dtype=bool), 0
        while not core.finished.all():
            actions, state = policy.predict(core.observe(), state, start, deterministic=True)
            core.step(actions)
            start = np.zeros(core.runs, dtype=bool)
            total = int(core.rounds[: len(seeds)].sum())
            advance(total - done)
            done = total
        return done
