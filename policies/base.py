"""Base class of hand-coded controllers: observations in, actions out, by the `predict` of stable-baselines3 models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from envs.knobs import NO_KNOBS, PER_LAYER, Knob
from envs.signals import ROUND_FRACTION
from fl_core.base.arguments import checked
from fl_core.base.arrays import FloatArray, require_memory
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np
from policies.parameters import ANCHOR, Multiple, Parameter
from policies.view import Seen, View

State = tuple[NDArray[Any], ...]
"""Memory that a controller passes from one `predict` to the next; None at first."""


class Controller(ABC):
    """A rule that sets knobs from an observation; `predict` is a pure function of its arguments.

    To write one, subclass it, fill in the class attributes and write `decide`; `--controller mine.py:MyClip` then takes
    it from a file.

    Examples:
        >>> class Halving(Controller):
        ...     name, summary, label_format = "halving", "half the clip norm every round", "halving"
        ...
        ...     def decide(self, seen: Seen) -> dict[str, FloatArray]:
        ...         return {"clip_norm": 4.0 * 0.5**seen.round}
        >>> from envs import DPilotEnv
        >>> env = DPilotEnv(task="digits", clients=6, rounds=3, reward="final-accuracy")
        >>> controller, (observation, _) = Halving.for_env(env), env.reset(seed=1)
        >>> for _ in range(3):
        ...     action, _ = controller.predict(observation)
        ...     observation, *_, info = env.step(action)
        ...     print(round(info["clip_norm"], 3))
        4.0
        2.0
        1.0

    Attributes:
        name: name in specs and lists.
        summary: one line for lists.
        parameters: numbers it is made with, in the order of its spec.
        needed_knobs: comma-separated knobs that its environment must have.
        usual_knobs: knobs of an environment that is made for it; empty where they are the needed ones.
        needed_signals: signal set that its environment must show, `public`, `accounted` or `paper`.
        needed_telemetry: telemetry that the rounds must pay for, where it reads that.
        needed_features: features that it reads.
        assigns: True if its spec gives values to knobs by name, in place of parameters.
        takes_knobs: True if its spec may end in the knobs of its environment.
        tuned: True if its parameters can only come from a search (an anchor), not from a spec.
        any_length: True if it may act in episodes of different lengths at once: it does not read T off its view.
        label_format: template of its label in figures and tables, over the parameters' names.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    needed_knobs: ClassVar[str] = "clip_norm"
    usual_knobs: ClassVar[str] = ""
    needed_signals: ClassVar[str] = "public"
    needed_telemetry: ClassVar[str] = ""
    needed_features: ClassVar[tuple[str, ...]] = (ROUND_FRACTION,)
    assigns: ClassVar[bool] = False
    takes_knobs: ClassVar[bool] = False
    tuned: ClassVar[bool] = False
    any_length: ClassVar[bool] = False
    label_format: ClassVar[str]

    def __init__(self, view: View, values: Mapping[str, float]):
        """Make the controller for a view, with a value for each parameter.

        Raises:
            InputError: the environment lacks a knob or a signal, or a value is not allowed in it.
        """
        self.view = view
        require(
            view.one_length or self.any_length,
            f"controller '{self.name}' is made for runs of one length, but the generator draws rounds.",
        )
        for name in () if self.needed_knobs == NO_KNOBS else self.needed_knobs.split(","):
            self._require_knob(name)
        shown = {feature.name.partition(PER_LAYER)[0] for feature in view.features}
        shown |= {feature.name for feature in view.features}
        paid = f" and telemetry='{self.needed_telemetry}'" if self.needed_telemetry else ""
        for name in self.needed_features:
            require(
                name in shown,
                f"controller '{self.name}' reads the signal '{name}', which this environment does not show; "
                f"make it with signals='{self.needed_signals}'{paid}.",
            )
        self.values = {one.name: self._checked(one, values[one.name]) for one in self.parameters}

    def _require_knob(self, name: str) -> None:
        has = ", ".join(knob.name for knob in self.view.knobs) or "none"
        require(
            bool(self.view.knobs_of(name)),
            f"controller '{self.name}' sets the knob '{name}', but the environment's knobs are {has}.",
        )

    @classmethod
    @checked
    def for_env(cls, env: Any, anchor: float | None = None, **parameters: float) -> Self:
        """Make a controller for an environment.

        Args:
            env: any face of a DPilot environment, wrapped or not, its core, or a `View`.
            anchor: clip norm C* that defaults derive from; None takes the task's default clip norm.
            **parameters: values of `cls.parameters` by name; those left out take their default.

        Raises:
            InputError: an unknown parameter, a value out of range, or an environment that does not fit.
        """
        view = View.of(env)
        names = [one.name for one in cls.parameters]
        for name in parameters:
            require_name(f"parameter of controller '{cls.name}'", name, names)
        given = len(parameters) > 0
        require(given or not cls.tuned or anchor is not None, f"controller '{cls.name}' needs a tuned clip norm.")
        clip = view.knob("clip_norm")
        if anchor is not None and clip is not None:
            clip.check(anchor)
        values = {one.name: one.default_value(view.knob(one.knob), anchor) for one in cls.parameters}
        return cls(view, values | parameters)

    def check(self, env: Any) -> None:
        """Refuse an environment other than that which it was made for.

        Args:
            env: any face of a DPilot environment, wrapped or not, a vector of such faces, or a core.

        Raises:
            InputError: knobs, signals, rounds, rounds per decision or the model's layers differ.
        """
        self.view.require_same(View.of(env), f"controller '{self.name}'")

    def _checked(self, parameter: Parameter, value: float) -> float:
        value = parameter.check(self.name, value)
        knob = self.view.knob(parameter.knob)
        return value if knob is None else knob.check(value)

    @classmethod
    def usage(cls) -> str:
        """Write the syntax of its spec, as `aqc[:QUANTILE[:RATE[:START]]]`."""
        if cls.tuned:
            return cls.name
        names: list[str] = []
        before = ""
        for one in cls.parameters:
            if before == one.unit == ANCHOR:
                names[-1] += f":{one.name.upper()}"  # both or none
            else:
                names.append(one.name.upper())
            before = one.unit
        return cls.name + "".join(f"[:{name}" for name in names) + "]" * len(names)

    @property
    def label(self) -> str:
        """Readable name with the parameters' values, for figures and tables."""
        units = {one.name: one.in_multiples and self.view.in_multiples for one in self.parameters}
        shown = {name: Multiple(value) if units.get(name) else value for name, value in self.values.items()}
        return self.label_format.format(**shown)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON-able values."""
        unit = {"clip_norms": "in multiples of the calibrated norm"} if self.view.in_multiples else {}
        return {"name": self.name, "parameters": dict(self.values), **unit}

    # ---------------------------------------------------------------- acting

    @abstractmethod
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """Choose values `[n]` of knobs by name; knobs left out keep their default."""

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], State | None]:
        """Choose actions for observations; the signature is that of a stable-baselines3 model.

        Args:
            observation: `[features]` or `[n, features]`.
            state: state returned by the call before; None at first.
            episode_start: True for each observation that is the first of an episode `[n]`.
            deterministic: without effect.

        Returns:
            Actions `[knobs]` or `[n, knobs]`, float32 in [-1, 1], and the state for the next call.

        Raises:
            InputError: the observation is of another environment, or the state of other observations.
        """
        array = np.asarray(observation)
        size = len(self.view.features)
        if array.ndim not in (1, 2) or array.shape[-1] != size:
            raise InputError(
                f"observation has shape {array.shape}, but controller '{self.name}' was made for {size} features."
            )
        batch = np.atleast_2d(array).astype(np.float64)
        seen = Seen(self.view, batch)
        require_memory(state, episode_start, len(batch))
        state = self._next_state(state, episode_start, seen)
        actions = self._coordinates(seen, state).astype(np.float32)
        return (actions[0] if array.ndim == 1 else actions), state

    def _next_state(self, state: State | None, episode_start: NDArray[Any] | None, seen: Seen) -> State | None:
        """Compute the state that belongs to these observations; rules without memory pass it on."""
        return state

    def _coordinates(self, seen: Seen, state: State | None) -> FloatArray:
        """Compute action coordinates `[n, knobs]`."""
        values = self.decide(seen)
        return self._encoded(values, len(seen))

    def _encoded(self, values: Mapping[str, FloatArray], rows: int) -> FloatArray:
        """Encode knob values by name as coordinates; knobs left out keep their default."""
        columns = [self._column(knob, values, rows) for knob in self.view.knobs]
        return np.stack(columns, axis=-1) if columns else np.zeros((rows, 0))

    def _column(self, knob: Knob, values: Mapping[str, FloatArray], rows: int) -> FloatArray:
        return np.broadcast_to(knob.encode(values.get(knob.name, np.full(rows, knob.default))), (rows,))
