"""Aggregation: from the noised updates to the server's next model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fl_core.base.errors import require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.recipes.parts import KnobRange, Part

DIVISORS = {
    "expected": "the public expected size qN of the cohort, whoever showed up",
    "participants": "the clients that took part, a private number unless the cohort is fixed or shown",
    "count": "per coordinate the clients that share it; one that nobody shares stays (FedGLP-ADP eq. 12)",
}
WEIGHTS = {
    "uniform": "every client alike",
    "data": "by its number of samples, which is private",
}


@dataclass(frozen=True)
class Aggregation(Part):
    """A mean of the updates, added with the server's learning rate.

    Tests run on a running average of the server's models, in which the newest has the weight w_t; training goes on from
    the newest alone. The average is a function of released models, so it costs no privacy. At w_t = 1 nothing is
    averaged; w_t = 1/k in the k-th round of a run's last K makes it the plain mean of these K models.

    Attributes:
        divide_by: one of `DIVISORS`.
        weights: one of `WEIGHTS`.
    """

    kind: ClassVar[str] = "mean"

    divide_by: str = "expected"
    weights: str = "uniform"

    def __post_init__(self) -> None:
        require_name("aggregation.divide_by", self.divide_by, DIVISORS)
        require_name("aggregation.weights", self.weights, WEIGHTS)

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        averaged = "weight of this round's model in the running average that is tested; 1 tests the model itself"
        return (
            KnobRange("server_learning_rate", 0.05, 2.0, 1.0, "log", "factor on the mean update"),
            KnobRange("average_weight", 0.01, 1.0, 1.0, "log", averaged),
        )

    @property
    @override
    def uncovered(self) -> tuple[str, ...]:
        return ("each client's number of samples, by its weight",) if self.weights == "data" else ()

    def client_weights(self, samples: Tensor, present: Tensor) -> Tensor:
        """Weigh the clients' updates `[runs, width]`; weights average to 1 over the clients that are present.

        Args:
            samples: training samples of each client `[runs, width]`.
            present: bool `[runs, width]`.
        """
        weights = present.to(torch.float32)
        if self.weights == "data":
            counted = samples * weights
            total = counted.sum(-1, keepdim=True).clamp_min(1)
            weights = counted * weights.sum(-1, keepdim=True) / total
        return weights

    def factors(self, samples: Tensor, present: Tensor) -> Tensor | None:
        """Weigh the clients' updates as `client_weights` does; None where all weights are 1."""
        return None if self.weights == "uniform" else self.client_weights(samples, present)

    def mean(self, released: Tensor, expected: float, participants: Tensor, sharers: Tensor | None) -> Tensor:
        """Compute the mean update `[runs, size]`.

        Args:
            released: noised sum `[runs, size]`.
            expected: public expected size of the cohort.
            participants: number of clients that took part `[runs]`.
            sharers: number of clients that shared each coordinate `[runs, size]`; None where all did.
        """
        if self.divide_by == "expected":
            return released / expected
        if self.divide_by == "participants" or sharers is None:
            return released / participants.clamp_min(1).unsqueeze(-1)
        return torch.where(sharers > 0, released / sharers.clamp_min(1), 0.0)
