"""Several controllers that act at once, each on knobs of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from fl_core.base.arrays import FloatArray, require_memory
from fl_core.base.errors import require
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np
from policies.base import Controller, State
from policies.view import Seen, View

SEPARATOR = "+"
"""Between the specs of controllers that act at once, as `log-odds+budget-linear:0.5`."""


class CombinedControl(Controller):
    """Lets each of several controllers set its own knobs; all of them see the whole observation.

    Each acts as it does alone where the others leave the run as it is. Its memory is that of its parts, one behind the
    other.

    Attributes:
        parts: the controllers, each made for a view in which the knobs of the others are only seen (`View.limited`).
    """

    name = "combined"
    summary = "several controllers at once, each on knobs of its own"
    label_format = "combined"

    def __init__(self, view: View, parts: Sequence[Controller]):
        """Join controllers.

        Args:
            view: of the environment, with all its knobs.
            parts: controllers that set different ones of them.
        """
        self.view, self.parts = view, tuple(parts)
        self.values: dict[str, float] = {}

    @property
    @override
    def label(self) -> str:
        return " + ".join(part.label for part in self.parts)

    @override
    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "parts": [part.describe() for part in self.parts]}

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {name: value for part in self.parts for name, value in part.decide(seen).items()}

    @override
    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], State | None]:
        array = np.asarray(observation)
        own = [None] * len(self.parts) if state is None else self._shared_out(state, array)
        acted = [part.predict(array, one, episode_start) for part, one in zip(self.parts, own, strict=True)]
        actions = self._joined([action for action, _ in acted], array.shape[:-1])
        memory = tuple(entry for _, one in acted for entry in one or ())
        return actions, memory or None

    def _shared_out(self, state: State, array: NDArray[Any]) -> list[State | None]:
        """Give each part its own arrays of the joint memory; how many they are is seen from a first decision.

        Raises:
            InputError: the memory is that of other controllers.
        """
        require_memory(state, None, len(np.atleast_2d(array)))
        sizes = [len(part.predict(array)[1] or ()) for part in self.parts]
        require(
            len(state) == sum(sizes),
            f"state has {len(state)} arrays, but the memory of '{self.label}' has {sum(sizes)}.",
        )
        ends = np.cumsum(sizes)
        spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return [state[span] if size else None for span, size in zip(spans, sizes, strict=True)]

    def _joined(self, actions: Sequence[NDArray[np.float32]], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Put the parts' coordinates in their places `[..., knobs]`; knobs that none sets keep their default."""
        columns = {knob.name: np.full(shape, knob.encode(knob.default), np.float32) for knob in self.view.knobs}
        for part, action in zip(self.parts, actions, strict=True):
            columns |= {knob.name: action[..., place] for place, knob in enumerate(part.view.knobs)}
        if not columns:
            return np.zeros((*shape, 0), np.float32)
        return np.stack([columns[knob.name] for knob in self.view.knobs], axis=-1)
