"""Specs: controllers as users name them, alone as `aqc:0.5:0.2`, or several at once as `log-odds+budget-linear`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs.knobs import EVERY_KNOB, KNOB_GROUPS, NO_KNOBS, target_of
from envs.signals import SIGNAL_SETS
from fl_core.base.arguments import checked
from fl_core.base.errors import InputError, require
from fl_core.base.sources import split_spec
from fl_core.base.values import read_value
from fl_core.privacy.telemetry import CLIP_BIT
from policies.base import Controller
from policies.catalog import CONTROLLERS
from policies.combined import SEPARATOR, CombinedControl
from policies.constant import base_knobs, read_assignments
from policies.parameters import ANCHOR, MULTIPLE, Parameter
from policies.view import CLIP_NORM, MULTIPLES, View


@dataclass(frozen=True)
class ControllerSpec:
    """A controller as named by a user.

    Attributes:
        name: its catalogue name.
        parameters: the leading parameters that were given.
        assigned: values of knobs by name, for controllers that take these.
        chosen_knobs: comma-separated knobs of its environment, where they were named; empty for the usual ones.
        multiples: True if its clip norms are multiples of the calibrated length of an update.
        others: controllers that act beside it, each on knobs of its own.
    """

    name: str
    parameters: tuple[float, ...] = ()
    assigned: tuple[tuple[str, float], ...] = ()
    chosen_knobs: str = ""
    multiples: bool = False
    others: tuple[ControllerSpec, ...] = ()

    @property
    def parts(self) -> tuple[ControllerSpec, ...]:
        """The controllers that act at once, each alone; one where there are no others."""
        return (replace(self, others=()), *self.others)

    def __str__(self) -> str:
        return SEPARATOR.join(one._text for one in self.parts)

    @property
    def _text(self) -> str:
        given = zip(self.controller.parameters, self.parameters, strict=False)
        suffixes = [(value, MULTIPLE if self.multiples and one.in_multiples else "") for one, value in given]
        pieces = [self.name, *(f"{value:.12g}{suffix}" for value, suffix in suffixes)]
        pieces += [",".join(f"{name}={value:.12g}" for name, value in self.assigned)] if self.assigned else []
        return ":".join([*pieces, self.chosen_knobs] if self.chosen_knobs else pieces)

    @property
    def controller(self) -> type[Controller]:
        """Class of the controller."""
        return CONTROLLERS.find(self.name)

    @property
    def knobs(self) -> str:
        """Comma-separated knobs that its environment must have."""
        named = [one._own_knobs for one in self.parts]
        return ",".join(one for one in named if one != NO_KNOBS) or NO_KNOBS

    @property
    def _own_knobs(self) -> str:
        own = base_knobs(name for name, _ in self.assigned)
        names = self.chosen_knobs or own or self.controller.usual_knobs or self.controller.needed_knobs
        if not self.multiples:
            return names
        return ",".join(MULTIPLES if name == CLIP_NORM else name for name in names.split(","))

    @property
    def signals(self) -> str:
        """Signal set that its environment must show: of several controllers', the one that shows most."""
        return max((one.controller.needed_signals for one in self.parts), key=[*SIGNAL_SETS].index)

    @property
    def telemetry(self) -> str:
        """Comma-separated telemetry that the rounds must pay for; "" for none beside the task's own."""
        needed = [one.controller.needed_telemetry for one in self.parts if one.controller.needed_telemetry]
        usual = any(one.signals == "accounted" and not one.controller.needed_telemetry for one in self.parts)
        return ",".join(dict.fromkeys([CLIP_BIT, *needed] if needed and usual else needed))

    @property
    def features(self) -> tuple[str, ...]:
        """Features that it reads."""
        return tuple(dict.fromkeys(name for one in self.parts for name in one.controller.needed_features))

    @property
    def origins(self) -> dict[str, dict[str, str]]:
        """Origins of the controllers that are not built in, by name."""
        return {name: origin for one in self.parts for name, origin in CONTROLLERS.origins_of(one.name).items()}

    @property
    def anchored(self) -> bool:
        """True if a parameter that was not given derives from an anchor clip norm, which a search should find first."""
        return any(one.unit == ANCHOR for spec in self.parts for one in spec._not_given)

    @property
    def _not_given(self) -> tuple[Parameter, ...]:
        return self.controller.parameters[len(self.parameters) :]

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """Clip norms among the given values, which the range of the environment's knob must hold."""
        return tuple(value for one in self.parts if not one.multiples for value in one._given_clip_norms)

    @property
    def _given_clip_norms(self) -> tuple[float, ...]:
        bounded = zip(self.controller.parameters, self.parameters, strict=False)
        given = [value for one, value in bounded if one.knob == CLIP_NORM]
        return (*given, *(value for name, value in self.assigned if name == CLIP_NORM))

    def named_parameters(self) -> dict[str, float]:
        """Return the given parameters by name."""
        given = {one.name: value for one, value in zip(self.controller.parameters, self.parameters, strict=False)}
        return given | dict(self.assigned)

    def view(self, env: Any) -> View:
        """Return the view of an environment that the controller is made for, with clip norms in the spec's unit.

        Raises:
            InputError: it is no DPilot environment, or lacks the knob of multiples.
        """
        view = View.of(env)
        return view.with_multiples() if any(one.multiples for one in self.parts) else view

    def make(self, env: Any, anchor: float | None) -> Controller:
        """Make the controller, see `make_controller`."""
        view = self.view(env)
        if not self.others:
            return self.controller.for_env(view, anchor, **self.named_parameters())
        return CombinedControl(view, [one._make_part(view, anchor) for one in self.parts])

    def _make_part(self, view: View, anchor: float | None) -> Controller:
        names = {CLIP_NORM if name == MULTIPLES else name for name in self._sets} if self.multiples else self._sets
        return self.controller.for_env(view.limited(names), anchor, **self.named_parameters())

    @property
    def _sets(self) -> frozenset[str]:
        """Knobs that it sets, those of groups one by one and without layers."""
        named = [] if self._own_knobs == NO_KNOBS else self._own_knobs.split(",")
        return frozenset(one for name in named for one in KNOB_GROUPS.get(name, (name,)))


def split_specs(text: str) -> list[str]:
    """Split `log-odds+budget-linear:0.5` into the specs of controllers that act at once.

    A + separates where a controller is named before it and no number follows: names of files may hold one.
    """
    first, *rest = text.split(SEPARATOR)
    specs = [first]
    for piece in rest:
        name = CONTROLLERS.split(specs[-1])[0]
        named = name in CONTROLLERS.names() or split_spec(name) is not None
        if named and not piece[:1].isdigit():
            specs.append(piece)
        else:
            specs[-1] += SEPARATOR + piece
    return specs


@checked
def parse_controller(spec: str) -> ControllerSpec:
    """Parse a spec such as `fixed:0.5`, `exponential-decay:2:0.5`, `constant:clip_norm=0.5` or `aqc+budget-linear`.

    Clip norms with an x, as in `exponential-decay:1x:0.25x`, are multiples of the length that a client's update has on
    random data, which costs no privacy (`fl_core.run.calibration`). A + joins controllers that act at once.

    Raises:
        InputError: a name is unknown, parameters are too many, too few, no numbers, or out of range, or two
            controllers set the same knob.
    """
    first, *others = [_parse_one(one) for one in split_specs(spec)]
    _refuse_rivals(spec, [first, *others])
    return replace(first, others=tuple(others))


def _refuse_rivals(spec: str, parts: Sequence[ControllerSpec]) -> None:
    """Refuse controllers that would act at once on the same knob."""
    setters: dict[str, tuple[str, str]] = {}
    for one in parts:
        require(
            EVERY_KNOB not in one._sets or len(parts) == 1,
            f"controller '{spec}' lets {one.name} set {EVERY_KNOB} knobs; name its own.",
        )
        for knob in sorted(one._sets):
            target = target_of(knob)
            before, name = setters.get(target, (one.name, knob))
            same = f"the knob '{knob}'" if name == knob else f"{name} and {knob}, which are the same"
            require(
                target not in setters,
                f"controller '{spec}' sets {same} twice, by {before} and by {one.name}; only one can.",
            )
            setters[target] = one.name, knob


def _parse_one(spec: str) -> ControllerSpec:
    """Parse the spec of one controller; raises as `parse_controller`."""
    name, rest = CONTROLLERS.split(spec)
    controller = CONTROLLERS.find(name)
    texts = rest.split(":") if rest or spec.strip() != name else []
    if controller.assigns:
        return ControllerSpec(name, assigned=read_assignments(spec, ":".join(texts)))
    expected = () if controller.tuned else controller.parameters
    chosen = texts.pop() if controller.takes_knobs and len(texts) == len(expected) + 1 else ""
    if len(texts) > len(expected):
        takes = "no parameters" if not expected else f"at most {len(expected)}"
        raise InputError(f"controller '{spec}' has {len(texts)} parameters, but {controller.usage()} takes {takes}.")
    multiples = _in_multiples(spec, expected, texts)
    values = tuple(
        one.check(name, read_value(f"{one.name} of controller '{spec}'", _number(one, text), float, finite=True))
        for one, text in zip(expected, texts, strict=False)
    )
    left_out = [one.name for one in expected[len(texts) :] if one.unit == ANCHOR]
    given = [one.name for one in expected[: len(texts)] if one.unit == ANCHOR]
    require(
        not given or not left_out,
        f"controller '{spec}' has {' and '.join(given)} but no {' and no '.join(left_out)}; give all or none.",
    )
    return ControllerSpec(name, values, chosen_knobs=chosen, multiples=multiples)


def _number(parameter: Parameter, text: str) -> str:
    """Return the text of a value without the unit of a multiple."""
    return text.strip().removesuffix(MULTIPLE) if parameter.in_multiples else text


def _in_multiples(spec: str, parameters: Sequence[Parameter], texts: Sequence[str]) -> bool:
    """Return True if the clip norms of a spec are multiples of the calibrated length of an update, as `fixed:1x`.

    Raises:
        InputError: only some of them are.
    """
    given = [text.strip() for one, text in zip(parameters, texts, strict=False) if one.in_multiples]
    marked = [text for text in given if text.endswith(MULTIPLE)]
    require(
        len(marked) in (0, len(given)),
        f"controller '{spec}' has clip norms in two units; write an {MULTIPLE} behind all of them or none.",
    )
    return bool(marked)


@checked
def make_controller(spec: str | ControllerSpec | type[Controller], env: Any, anchor: float | None = None) -> Controller:
    """Make the controller of a spec for an environment.

    Args:
        spec: as `parse_controller` reads it, or a class of controllers.
        env: any face of a DPilot environment that has the spec's knobs and signals.
        anchor: clip norm C* that parameters left out derive from: decays go from 2 C* to C*/2 within the knob's range,
            `server-lr-decay` takes 2 C*, `best-fixed` C*. None takes the task's default; `best-fixed` refuses that.

    Raises:
        InputError: the spec, the anchor or the environment does not fit.
    """
    known = spec if isinstance(spec, ControllerSpec) else parse_controller(CONTROLLERS.name_of(spec))
    return known.make(env, anchor)
