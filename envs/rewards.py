"""Rewards. They may use exact metrics, because they exist only where a controller is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fl_core.base.errors import require_name
from fl_core.run.plan import FloatArray

DIVERGENCE_PENALTY = -10.0
"""Reward of the step in which a run's model stops being finite; the episode ends there."""


@dataclass(frozen=True)
class RewardInputs:
    """Figures that rewards are computed from, one entry per run `[runs]`.

    Attributes:
        accuracy: of the method's own models (the server's, or the clients' where the server's is incomplete).
        previous_accuracy: the same one decision earlier.
        trimmed_accuracy, trimmed_loss, previous_trimmed_accuracy, previous_trimmed_loss: ACDP-pFSD's telemetry.
        ended: whether the run is over (bool).
        reference: final accuracy of the task's default clip norm on the same instance.
    """

    accuracy: FloatArray
    previous_accuracy: FloatArray
    trimmed_accuracy: FloatArray
    previous_trimmed_accuracy: FloatArray
    trimmed_loss: FloatArray
    previous_trimmed_loss: FloatArray
    ended: FloatArray
    reference: FloatArray


@dataclass(frozen=True)
class Reward:
    """A line of the catalogue.

    Attributes:
        compute: reward `[runs]` of a decision.
        summary: what it rewards.
        every_decision: whether it needs accuracy after every decision, not only at the end.
        needs_reference: whether it needs the default clip norm's result on the same instance.
    """

    compute: Callable[[RewardInputs], FloatArray]
    summary: str
    every_decision: bool = False
    needs_reference: bool = False

    @property
    def cost(self) -> str:
        """What it costs beside the rounds of the episodes, in words."""
        if self.needs_reference:
            return "a whole run of the default clip norm, when the first episode on each instance ends"
        return "an evaluation after every decision" if self.every_decision else "an evaluation at the end"


def _final_accuracy(figures: RewardInputs) -> FloatArray:
    return figures.ended * figures.accuracy


def _advantage(figures: RewardInputs) -> FloatArray:
    return 10 * figures.ended * (figures.accuracy - figures.reference)


def _accuracy_gain(figures: RewardInputs) -> FloatArray:
    return figures.accuracy - figures.previous_accuracy


def _loss_and_accuracy(figures: RewardInputs) -> FloatArray:
    loss = figures.previous_trimmed_loss - figures.trimmed_loss
    return loss + (figures.trimmed_accuracy - figures.previous_trimmed_accuracy)


REWARDS: dict[str, Reward] = {
    "final-accuracy": Reward(
        _final_accuracy,
        "final accuracy of the global model, or of the clients' where the method makes personal ones; at the end",
    ),
    "advantage": Reward(
        _advantage,
        "10 x (that - the same with the task's default clip norm on the same instance), at the end",
        needs_reference=True,
    ),
    "accuracy-gain": Reward(_accuracy_gain, "the same accuracy, gained in each decision", every_decision=True),
    "paper": Reward(
        _loss_and_accuracy,
        "loss removed plus accuracy gained in each decision, trimmed means over the clients' models (ACDP-pFSD)",
        every_decision=True,
    ),
}


def find_reward(name: str) -> Reward:
    """Find a reward by name.

    Raises:
        InputError: it is unknown.
    """
    require_name("reward", name, REWARDS)
    return REWARDS[name]
