"""How the server turns the released sum of updates into its next model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Aggregation:
    """The uniform mean over the *expected* cohort, added with the server's learning rate.

    The divisor is the public qN, never the number of clients that showed up, which is private.
    """

    knobs: tuple[str, ...] = ("server_learning_rate",)

    def __call__(self, broadcast: Tensor, released_sum: Tensor, cohort: float, learning_rate: Tensor) -> Tensor:
        """The next server model `[runs, size]`.

        Args:
            broadcast: this round's server model `[runs, size]`.
            released_sum: noised sum of clipped updates `[runs, size]`.
            cohort: expected number of clients per round.
            learning_rate: `[runs]`.
        """
        return broadcast + learning_rate.unsqueeze(-1) * (released_sum / cohort)
