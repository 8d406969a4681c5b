"""Loops in which a policy acts until the runs of a batch have ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from envs.acting import Actor, Policy
from envs.core import EnvCore
from fl_core.base.arguments import checked
from fl_core.run.config import RunSettings

RowProgress = Callable[[int], None]
"""Callback with the number of rounds (of single runs) that have just been done."""

_BATCH_BYTES = 1 << 31


def rows_at_once(core: EnvCore, wanted: int) -> int:
    """Compute how many of the wanted runs fit in a batch whose cohorts' updates stay within 2 GiB.

    Args:
        core: an environment of their settings.
        wanted: runs to do.
    """
    per_row = 16 * core.federation.model.size * max(1, math.ceil(core.task.federation.cohort))
    return max(1, min(wanted, _BATCH_BYTES // per_row))


def decisions(core: EnvCore, policy: Policy, state: Any = None, midway: bool = False) -> Iterator[Any]:
    """Let a policy act until all runs have ended; yields its state after each decision.

    A run for which the policy returns no finite number ends as diverged.

    Args:
        core: the runs, just reset, or `midway`.
        policy: the controller, or another object that `envs.as_policy` takes.
        state: the state that its last `predict` returned.
        midway: whether the runs and the state go on together from between two decisions.
    """
    actor = Actor(policy, core, len(core.knobs), state)
    start = np.full(core.runs, not midway)
    while not core.finished.all():
        actions = actor.act(core.observe(), start)
        core.end_diverged(actions)
        core.step(actions)
        start = np.zeros(core.runs, dtype=bool)
        yield actor.memory


@checked
def run_to_the_end(
    core: EnvCore, policy: Policy, instances: Sequence[RunSettings], progress: RowProgress, state: Any = None
) -> Any:
    """Reset rows of a core to the instances, and let the policy act until all these runs have ended.

    Args:
        core: with a row for each instance; those beyond them stay idle.
        policy: the controller.
        instances: one per run.
        progress: told of every round done.
        state: the state returned for the instances before.

    Returns:
        The policy's state, to be handed in with the next instances, so that random ones do not repeat themselves.
    """
    rows = range(len(instances))
    core.finished[:] = True
    core.reset(rows, instances)
    done = 0
    for latest in decisions(core, policy, state):
        state = latest
        total = int(core.rounds[rows].sum())
        progress(total - done)
        done = total
    return state
