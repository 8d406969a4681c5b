"""Settings of an environment: its task with the federation, its observation, action, reward and instances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.context import CONTEXTS
from envs.generators import GENERATORS, parse_generator
from envs.instances import INSTANCE_SETS, INSTANCES, instance_population
from envs.knobs import knob_names
from envs.rewards import find_reward
from envs.signals import SIGNAL_SETS
from envs.tasks import TASKS, Task, find_task
from fl_core.base.arguments import check_fields, checked, take_numbers
from fl_core.base.bounds import Bounds, check_numbers, count
from fl_core.base.errors import InputError, require, require_name, unknown_name
from fl_core.base.files import digest, spelled_out
from fl_core.base.sealed import require_same
from fl_core.base.values import field_kinds, read_list, read_value
from fl_core.recipes.mechanism import NOISE_KNOBS
from fl_core.run.budget import restated, stated
from fl_core.run.config import FederationConfig
from fl_core.run.parts import PARTS, origins_of, part_names, require_loaded
from fl_core.run.plan import CLIP_NORM
from fl_core.run.ranges import MOST_ROUNDS

ACCOUNTED_TELEMETRY_SHARE = 0.1
"""Share of the budget that accounted signals cost where the task does not say."""


@dataclass(frozen=True)
class EnvSpec:
    """Observation, action, reward and instances of an environment; all fields are JSON scalars, checked at creation."""

    knobs: str = "clip_norm"
    """Comma-separated knobs that the action sets (`dpilot list knobs`); all, personalization or none for those sets."""
    signals: str = "public"
    """Signals that a controller sees: public, accounted (paid for from the same budget) or paper (exact, uncounted)."""
    reward: str = "advantage"
    """Reward of the steps (`dpilot list rewards`); advantage plays a whole reference run when the first episode
    on each instance ends."""
    decision_rounds: int = 1
    """Communication rounds per decision."""
    instances: str = "train"
    """Set of instances that a reset plays, chosen by its seed or drawn: train, validation or test. Unless `population`
    is given, the clients are proxies in the first two, and targets in the last."""
    instance_count: int = 256
    """Size of that set."""
    generator: str = ""
    """Settings in which instances differ besides their seeds (`dpilot list generators`): a name, or as written,
    epsilon=3..12,partition=iid|shards(2); empty for nothing."""
    context: str = "hidden"
    """Settings in which instances may differ, as features of the observation: visible or hidden. The noise multiplier
    is always shown."""
    evaluate_every_round: bool = False
    """True measures accuracy after every round, for records; otherwise only where signals or reward need it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "generator", GENERATORS.name_of(self.generator))
        take_numbers(self)
        check_fields(self)
        require_name("signals", self.signals, SIGNAL_SETS)
        find_reward(self.reward)
        require_name("instances", self.instances, INSTANCE_SETS)
        check_numbers(self, BOUNDS)
        parse_generator(self.generator)
        require_name("context", self.context, CONTEXTS)


BOUNDS: Mapping[str, Bounds] = {
    "decision_rounds": count(1, MOST_ROUNDS, "no run has more rounds"),
    "instance_count": INSTANCES,
}
"""Ranges of its numbers, by field; a `Setting` has no more rounds per decision than its run has rounds."""
_SPEC_KINDS = field_kinds(EnvSpec)
_FEDERATION_KINDS = field_kinds(FederationConfig)
_CLIP_NAMES = ("default_clip_norm", "lowest_clip_norm", "highest_clip_norm")
SETTING_NAMES = ("task", *_SPEC_KINDS, *_FEDERATION_KINDS)
"""Names of the keyword arguments of `Setting.of`, and so of `gym.make`."""


class UnknownSetting(InputError, TypeError):
    """A keyword argument that is no setting, told as Python tells it, too: TorchRL tries `frameskip` and reads that.

    It is made of its sentence, because `gymnasium.make` makes a TypeError anew, of its sentence and the id.
    """

    @classmethod
    def named(cls, name: str) -> UnknownSetting:
        """Name the argument, and the settings that it may have been meant for."""
        sentence = str(unknown_name("setting", name, SETTING_NAMES)).rstrip(".")
        return cls(f"{sentence} (unexpected keyword argument '{name}').")


@dataclass(frozen=True)
class Setting:
    """All settings of an environment: equal settings are equal environments.

    Attributes:
        task: the problem, its federation as asked for.
        spec: what the environment shows and asks.

    Examples:
        >>> setting = Setting.of(task="digits", epsilon=4, signals="paper")
        >>> setting.replace(reward="final-accuracy", epsilon=2.0).federation.epsilon
        2.0
        >>> Setting.from_record(setting.as_record()) == setting
        True
    """

    task: Task
    spec: EnvSpec = field(default_factory=EnvSpec)

    def __post_init__(self) -> None:
        check_fields(self)
        rounds = self.federation.rounds
        require(
            self.spec.decision_rounds <= rounds,
            f"decision_rounds is {self.spec.decision_rounds}, but a run has {rounds} rounds only.",
        )

    @classmethod
    def of(cls, task: str | None = None, **settings: Any) -> Setting:
        """Read a setting from keyword arguments.

        Args:
            task: a built-in task; None takes digits.
            **settings: fields of `EnvSpec`, and of `FederationConfig` to replace the task's, as values or as text; None
                keeps the default. Unless `population` is given, it is that of the set of instances. Dataset, model,
                method and generator may be objects, as the `register_...` functions take them.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        for name in settings:
            if name not in SETTING_NAMES:
                raise UnknownSetting.named(name)
        given = named_parts({name: value for name, value in settings.items() if value is not None})
        spec = EnvSpec(**_read(given, _SPEC_KINDS))
        overrides = {name: value for name, value in given.items() if name in _FEDERATION_KINDS}
        overrides.setdefault("population", instance_population(spec.instances))
        return cls(find_task("digits" if task is None else task, **overrides), spec)

    @property
    def federation(self) -> FederationConfig:
        """Federation as asked for; `task_as_run` pays for accounted signals."""
        return self.task.federation

    @property
    def task_as_run(self) -> Task:
        """The task with accounted signals paid for, and its noise fixed in advance unless a controller sets it.

        Raises:
            InputError: a knob is unknown, or sets noise that is asked to be fixed.
        """
        changes: dict[str, Any] = {}
        if self.spec.signals == "accounted" and not self.federation.telemetry_share:
            changes["telemetry_share"] = ACCOUNTED_TELEMETRY_SHARE
        if self.federation.noise_schedule != "adaptive":
            changes["noise_schedule"] = self._noise_schedule()
        unchanged = all(getattr(self.federation, name) == value for name, value in changes.items())
        return self.task if unchanged else _with_federation(self.task, **changes)

    @property
    def rounds_vary(self) -> bool:
        """True if the generator draws the length of the runs."""
        return any("rounds" in shape for shape in parse_generator(self.spec.generator).shapes)

    def _noise_schedule(self) -> str:
        """Known before the run, from the knobs that the controller sets and the method's budget alone."""
        config = self.federation
        names = knob_names(self.task, self.spec.knobs, config.recipe().knobs)
        chosen = [name for name in names if name in NOISE_KNOBS[config.guarantee]]
        require(
            not chosen or config.noise_schedule == "auto",
            f"noise_schedule is fixed, but the knob {', '.join(chosen)} sets the noise; set it to adaptive.",
        )
        return config.noise_schedule_as_run(controlled=bool(chosen))

    def replace(self, **changes: Any) -> Setting:
        """Return the setting with other values of fields of `EnvSpec` and `FederationConfig`.

        Unlike in `of`, the population does not follow the set of instances.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        for name in changes:
            require_name("setting", name, [*_SPEC_KINDS, *_FEDERATION_KINDS])
        changes = named_parts(changes)
        shown, own = _read(changes, _SPEC_KINDS), restated(_read(changes, _FEDERATION_KINDS))
        spec = replace(self.spec, **shown) if shown else self.spec
        if all(getattr(self.federation, name) == value for name, value in own.items()):
            return Setting(self.task, spec)
        return Setting(_with_federation(self.task, **own), spec)

    @checked
    def holding(self, clip_norms: Sequence[float]) -> Setting:
        """Return the setting with the range of its clip norm widened as far as these clip norms ask.

        Raises:
            InputError: one is no clip norm.
        """
        for value in clip_norms:
            CLIP_NORM.check("clip_norm", value)
        low, high = min([*self.task.clip_range, *clip_norms]), max([*self.task.clip_range, *clip_norms])
        if (low, high) == self.task.clip_range:
            return self
        return Setting(replace(self.task, clip_range=(low, high)), self.spec)

    def as_record(self) -> dict[str, Any]:
        """Return every field as a JSON scalar, by the names of the keyword arguments of `of`; infinity is spelled out.

        The task's default clip norm and range are `default_clip_norm`, `lowest_clip_norm` and `highest_clip_norm`.
        Parts that are not built in are under `origins`, with the digests of their files, by name.
        """
        task = self.task
        clips = dict(zip(_CLIP_NAMES, (task.clip_norm, *task.clip_range), strict=True))
        record: dict[str, Any] = spelled_out(
            {"task": task.name, **clips, **asdict(self.spec), **asdict(self.federation)}
        )
        origins = self.origins
        return record | {"origins": origins} if origins else record

    @property
    def origins(self) -> dict[str, dict[str, str]]:
        """Parts that are not built in: name -> record of its origin, with the digest of its file."""
        generator = self.spec.generator
        named = GENERATORS.origins_of(generator) if generator and "=" not in generator else {}
        shapes = parse_generator(generator).shapes
        drawn = {name: [one[name] for one in shapes if name in one] for name in PARTS}
        return named | origins_of(asdict(self.federation)) | origins_of(drawn)

    @classmethod
    def from_record(cls, record: Any) -> Setting:
        """Read what `as_record` wrote, or the keyword arguments of `of`, from a JSON or YAML file.

        A task that is not built in needs all its fields. Code that it names is not imported, see `resumed`.

        Raises:
            InputError: it is no mapping, a name is unknown or missing, a value is not allowed, or its parts are code
                that is not here or has changed.
        """
        require(isinstance(record, Mapping), f"A setting is {record!r}, but it must be names with values.")
        record = dict(record)
        origins = record.pop("origins", {})
        _require_loaded(record)
        found = cls._from_values(record)
        for name, origin in (origins if isinstance(origins, Mapping) else {}).items():
            require_same(origin, found.origins.get(name), f"Part '{name}' of the setting")
        return found

    @classmethod
    def resumed(cls, record: Any, folder: Path) -> Setting:
        """Read what `as_record` wrote for who goes on with it, and import the code that it names.

        Args:
            record: in a file of the folder.
            folder: of the run or training.

        Raises:
            InputError: as `from_record`, or a file of that code is another one, or lies in the folder.
        """
        origins = record.get("origins") if isinstance(record, Mapping) else None
        for name, origin in (origins if isinstance(origins, Mapping) else {}).items():
            known = _BY_KIND.get(str(origin.get("kind"))) if isinstance(origin, Mapping) else None
            require(known is not None, f"The record in '{folder}' names '{name}', but not what that is.")
            assert known is not None
            known.load_recorded(str(name), origin, folder)
        return cls.from_record(record)

    @classmethod
    def _from_values(cls, record: Mapping[str, Any]) -> Setting:
        """Read the values of a record by name."""
        for name in record:
            require_name("setting", name, [*SETTING_NAMES, *_CLIP_NAMES])
        values = {name: value for name, value in record.items() if name not in _CLIP_NAMES}
        name = read_value("task", values.pop("task", "digits"), str)
        needed = [one for one in (*_CLIP_NAMES, *_FEDERATION_KINDS) if one != "noise_multiplier"]
        missing = [one for one in needed if record.get(one) is None]
        require(
            name in TASKS or not missing,
            f"task '{name}' is not built in, and its record lacks {', '.join(missing)}.",
        )
        found = cls.of(name if name in TASKS else None, **stated(values))
        told = values.get("epsilon", found.federation.epsilon)
        require(
            stated(values) == values or math.isclose(read_value("epsilon", told, float), found.federation.epsilon),
            f"epsilon is {told}, but rounds at noise_multiplier {found.federation.noise_multiplier} have "
            f"{found.federation.epsilon}; give one of the two.",
        )
        summary = found.task.summary if name in TASKS else ""
        return cls(replace(_with_clips(found.task, record), name=name, summary=summary), found.spec)

    def key(self) -> str:
        """SHA-256 of `as_record`: the same for equal settings in every process, different for all others."""
        return digest(self.as_record())


_BY_KIND = {catalogue.kind: catalogue for catalogue in (*PARTS.values(), GENERATORS)}


def named_parts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of an environment with names in the place of objects that are parts.

    Raises:
        InputError: an object is no part of its kind.
    """
    return part_names(settings, {**PARTS, "generator": GENERATORS})


def _require_loaded(record: Mapping[str, Any]) -> None:
    """Refuse a record whose parts are no names, or code that nobody has named in this process."""
    given = {name: read_value(name, record[name], str) for name in (*PARTS, "generator") if name in record}
    require_loaded(given)
    generator = given.get("generator", "")
    if "=" in generator:
        shapes = [part.partition("=") for part in read_list("generator", generator)]
        require_loaded({name.strip(): values.split("|") for name, _, values in shapes})
    else:
        GENERATORS.require_loaded(generator)


@lru_cache(maxsize=256)
def _with_federation(task: Task, **changes: Any) -> Task:
    """Return the task with other values in its federation; cached, so that equal arguments give the same object."""
    return replace(task, federation=replace(task.federation, **changes))


def _read(values: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Read the values that have a kind as that kind; others are left out."""
    return {name: read_value(name, value, kinds[name]) for name, value in values.items() if name in kinds}


def _with_clips(task: Task, record: Mapping[str, Any]) -> Task:
    """Return the task with the default clip norm and the range of a record, where it has them."""
    usual = zip(_CLIP_NAMES, (task.clip_norm, *task.clip_range), strict=True)
    clip, low, high = (read_value(name, record.get(name, value), float, finite=True) for name, value in usual)
    require(
        0 < low <= clip <= high,
        f"default_clip_norm is {clip:g}, but it must lie between lowest_clip_norm {low:g}, which is above 0, and "
        f"highest_clip_norm {high:g}.",
    )
    return replace(task, clip_norm=clip, clip_range=(low, high))
