"""Control with any knobs at constant values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from typing_extensions import override

from envs.knobs import NO_KNOBS, PER_LAYER, known_knobs
from fl_core.base.arrays import FloatArray
from fl_core.base.errors import require, require_name
from fl_core.base.libraries import numpy as np
from fl_core.base.values import read_assignment, read_list, read_value
from policies.base import Controller
from policies.view import Seen, View


class ConstantControl(Controller):
    """Sets knobs to constant values; a knob per layer that is named without a layer sets all layers."""

    name = "constant"
    summary = "knobs at constant values, as constant:clip_norm=0.5,server_learning_rate=0.7"
    needed_knobs = NO_KNOBS
    needed_features = ()
    assigns = True

    def __init__(self, view: View, values: Mapping[str, float]):
        """Make the controller with values by knob.

        Raises:
            InputError: the environment lacks a knob, or a value is not allowed in it.
        """
        super().__init__(view, {})
        for name in values:
            self._require_knob(name)
        self.values = {name: view.knobs_of(name)[0].check(float(value)) for name, value in values.items()}

    @classmethod
    @override
    def for_env(cls, env: Any, anchor: float | None = None, **parameters: float) -> Self:
        return cls(View.of(env), parameters)

    @classmethod
    @override
    def usage(cls) -> str:
        return f"{cls.name}:KNOB=VALUE[,KNOB=VALUE]"

    @property
    @override
    def label(self) -> str:
        return "constant " + ", ".join(f"{name} {value:.3g}" for name, value in self.values.items())

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {
            knob.name: np.full(len(seen), value)
            for name, value in self.values.items()
            for knob in self.view.knobs_of(name)
        }


def read_assignments(spec: str, text: str) -> tuple[tuple[str, float], ...]:
    """Parse values by knob from a text such as `clip_norm=0.5,layer_weights.fc1=0.3`.

    Raises:
        InputError: it is empty, a name is unknown or repeated, or a value is no number.
    """
    found: dict[str, float] = {}
    for piece in read_list(f"controller '{spec}'", text) or [""]:
        name, value = read_assignment(f"A value of controller '{spec}'", piece, ConstantControl.usage())
        require_name(f"knob of controller '{spec}'", name.partition(PER_LAYER)[0], known_knobs())
        require(name not in found, f"controller '{spec}' sets {name} twice.")
        found[name] = read_value(f"{name} of controller '{spec}'", value, float, finite=True)
    return tuple(found.items())


def base_knobs(names: Iterable[str]) -> str:
    """Join the knobs of an environment that has these, without layers, by commas."""
    return ",".join(dict.fromkeys(name.partition(PER_LAYER)[0] for name in names))
