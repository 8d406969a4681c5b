"""Validation of a policy on held-out instances."""

from __future__ import annotations

from envs import EnvCore, Setting
from envs.acting import Policy
from envs.instances import instance_seeds
from envs.playing import RowProgress, rows_at_once, run_to_the_end
from fl_core.run.config import RunSettings


class Validation:
    """Frozen set of held-out instances, played as rows of one batch.

    Attributes:
        seeds: the instances.
    """

    def __init__(self, setting: Setting, instances: int):
        """Prepare the environments, of the setting's own clients."""
        self.seeds = instance_seeds("validation", instances)
        whole = setting.replace(reward="final-accuracy", instances="validation")
        probe = EnvCore(whole)
        self._rows = rows_at_once(probe, len(self.seeds))
        self._core = EnvCore(whole, self._rows)

    def score(self, policy: Policy, advance: RowProgress) -> tuple[list[float], int, int]:
        """Play every instance once, without exploration.

        Args:
            policy: what acts.
            advance: told of federated rounds as they are done.

        Returns:
            Final accuracy in [0, 1] of each instance (of the server's model, or of the clients' where the server's is
            incomplete), the federated rounds they took, and the runs that diverged.
        """
        accuracies: list[float] = []
        rounds = diverged = 0
        for first in range(0, len(self.seeds), self._rows):
            chunk = [RunSettings(seed=seed) for seed in self.seeds[first : first + self._rows]]
            run_to_the_end(self._core, policy, chunk, advance)
            rounds += int(self._core.rounds[: len(chunk)].sum())
            accuracies += [self._core.final_accuracy(row) for row in range(len(chunk))]
            diverged += sum(self._core.diverged(row) for row in range(len(chunk)))
        return accuracies, rounds, diverged
