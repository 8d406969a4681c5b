"""From what a user types after --controllers to controllers that can be played."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from agents.algorithms import ALGORITHMS
from agents.learned import LearnedController
from agents.online import KNOBS, NAME, SEEN, TELEMETRY, OnlinePPO, OnlineSpec, parse_online
from envs import EnvCore, Setting, make_core
from envs.instances import instance_population, instance_seeds
from envs.playing import Policy
from envs.tasks import find_task
from experiments.contenders.fixed_clip_search import TunedClip, search_rounds, tune_fixed_clip
from experiments.contenders.play import Contender, Settings, releases_in, spread_evenly
from experiments.contenders.progress import rounds_bar
from experiments.contenders.trainings import common_label, load_trainings, training_names
from experiments.contenders.tuned import (
    TUNED,
    acting_view,
    family_of,
    is_tuned,
    prepare_search,
    tuned_contender,
    view_of,
)
from experiments.records.costs import PriorRounds
from fl_core.base.errors import InputError, require_name, unknown_name
from fl_core.data.populations import POPULATIONS, share_samples
from policies.catalog import CONTROLLERS, ControllerSpec, make_controller, parse_controller

LEARNED = tuple(ALGORITHMS)
"""Algorithms whose saved controllers are named as `ppo:FOLDER`."""


def is_learned(spec: str) -> bool:
    """Whether a spec names a saved controller."""
    return spec.partition(":")[0] in LEARNED


def is_online(spec: str) -> bool:
    """Whether a spec names an agent that learns within the run that it controls."""
    return spec.partition(":")[0] == NAME


def check_spec(spec: str) -> None:
    """Refuse a spec that cannot be read, before any work starts.

    Raises:
        InputError: the controller is unknown, or its parameters or folder are wrong.
    """
    if is_learned(spec):
        load_trainings(spec)
    elif is_online(spec):
        parse_online(spec)
    elif spec.partition(":")[0] in CONTROLLERS:
        parse_controller(spec)
    elif is_tuned(spec):
        family_of(spec)
    else:
        raise unknown_name("controller", spec.partition(":")[0], [*CONTROLLERS, *LEARNED, NAME, TUNED])


def canonical(spec: str) -> str:
    """A spec that has been checked as its controller is named: `fixed:1.0` and `fixed:1` are the same."""
    if is_learned(spec) or is_tuned(spec):
        return spec
    return str(parse_online(spec) if is_online(spec) else parse_controller(spec))


def needs_search(specs: Sequence[str]) -> bool:
    """Whether some controller derives from the best fixed clip norm, so that it has to be searched."""
    ready_made = [is_learned(spec) or is_online(spec) or is_tuned(spec) for spec in specs]
    return any(not ready and _anchored(parse_controller(spec)) for spec, ready in zip(specs, ready_made, strict=True))


def _anchored(spec: ControllerSpec) -> bool:
    return spec.anchored and spec.name != "fixed"


def make_contenders(
    specs: Sequence[str], settings: Settings, instances: int, train_on: str = "proxy"
) -> list[Contender]:
    """Controllers ready to play, after searching the best fixed clip norm where one of them derives from it.

    Args:
        specs: as typed.
        settings: the environment without any controller's view.
        instances: training instances that the search tries each value on.
        train_on: whose data the clients of these instances hold, one of `POPULATIONS`.

    Raises:
        InputError: a spec cannot be read, two are the same, or a controller does not fit the task.
    """
    require_name("train_on", train_on, POPULATIONS)
    for spec in specs:
        check_spec(spec)
    names = [canonical(spec) for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"controllers names '{name}' twice, but each may be compared only once.")
    contenders = [_ready_made(spec, settings) for spec in specs]
    searches = {spec: prepare_search(spec, settings, instances, train_on) for spec in specs if is_tuned(spec)}
    for spec, contender in zip(specs, contenders, strict=True):
        if contender is None and spec not in searches:
            _hand_coded(parse_controller(spec), settings, None, dry=True)
        elif contender is not None:
            core = make_core(1, **{**settings, **contender.view, "reward": "final-accuracy"})
            for build in contender.builds:
                build(core)
    tuned = None
    if needs_search(specs):
        rounds = int(make_core(1, **{**settings, "reward": "final-accuracy"}).task.federation.rounds)
        with rounds_bar(search_rounds(rounds, instances), "search for the best fixed clip norm") as progress:
            tuned = tune_fixed_clip(settings, instances, progress, train_on)
    for position, spec in enumerate(specs):
        if spec in searches:
            contenders[position] = tuned_contender(spec, settings, searches[spec])
    ready = _told_apart(
        [
            _hand_coded(parse_controller(spec), settings, tuned) if contender is None else contender
            for spec, contender in zip(specs, contenders, strict=True)
        ]
    )
    _warn_of_shared_clients(ready, settings)
    return ready


def fixed_contender(clip_norm: float, settings: Settings) -> Contender:
    """A fixed clip norm, ready to play."""
    return _hand_coded(parse_controller(f"fixed:{clip_norm:.12g}"), settings, None)


def _told_apart(contenders: list[Contender]) -> list[Contender]:
    """Labels that two contenders share, as trainings of one algorithm with one seed do, are told apart by the specs."""
    labels = [contender.label for contender in contenders]
    return [
        replace(one, label=f"{one.label} {one.name.partition(':')[2] or one.name}")
        if labels.count(one.label) > 1
        else one
        for one in contenders
    ]


def _warn_of_shared_clients(contenders: Sequence[Contender], settings: Settings) -> None:
    """Say which controllers have met the clients that they are about to act on."""
    here = settings.get("population") or instance_population(str(settings.get("instances", "test")))
    by_population: dict[str, list[str]] = {}
    for contender in contenders:
        if contender.tuned_population and share_samples(contender.tuned_population, here):
            by_population.setdefault(contender.tuned_population, []).append(contender.name)
    for population, names in by_population.items():
        warnings.warn(
            f"{', '.join(names)}: trained or tuned on {population} clients, to act on {here} clients; epsilon does not "
            "contain what that told about them.",
            stacklevel=3,
        )


def _ready_made(spec: str, settings: Settings) -> Contender | None:
    """A controller that nothing has to be searched for; None where it is hand-coded."""
    if is_learned(spec):
        return _learned(spec, settings)
    return _online(parse_online(spec), settings) if is_online(spec) else None


def _online(spec: OnlineSpec, settings: Settings) -> Contender:
    """An agent that learns within the run; telemetry left at the task's own pays for what it sees."""
    make_core(1, **{**settings, "knobs": KNOBS, "reward": "final-accuracy"})  # refuses a method without the knob
    usual = find_task(str(settings.get("task", "digits"))).federation
    signals = spec.signals_in(str(settings.get("guarantee") or usual.guarantee))
    view = acting_view(KNOBS, signals, ",".join(TELEMETRY) if signals == "accounted" else "", settings)

    def build(target: EnvCore) -> Policy:
        return OnlinePPO.for_env(target, spec.seed)

    core = make_core(1, **{**settings, **view, "reward": "final-accuracy"})
    return Contender(
        name=str(spec),
        label=OnlinePPO.for_env(core, spec.seed).label,
        view=view,
        builds=(build,),
        signals=signals,
        reads=SEEN[signals],
    )


def _hand_coded(spec: ControllerSpec, settings: Settings, tuned: TunedClip | None, dry: bool = False) -> Contender:
    """A controller of the catalogue; `dry` only checks that it fits, with the task's default as its anchor."""
    view = view_of(spec, settings)
    core = make_core(1, **{**settings, **view, "reward": "final-accuracy"})
    searched = _anchored(spec)
    anchor = (core.task.clip_norm if dry else tuned.clip_norm if tuned else None) if searched else None

    def build(target: EnvCore) -> Policy:
        return make_controller(spec, target, anchor)

    words = ""
    if tuned:
        words = (
            f"the best of {len(tuned.scores)} clip norms on {tuned.instances} training "
            f"instance{'s' if tuned.instances > 1 else ''} of {tuned.population} clients"
        )
    return Contender(
        name=str(spec),
        label=make_controller(spec, core, anchor).label,
        view=view,
        builds=(build,),
        search_rounds=tuned.rounds if tuned and searched else 0,
        tuned_on=words if searched else "",
        tuned_population=tuned.population if tuned and searched else "",
        signals=spec.signals,
        reads=spec.controller.needed_features,
        releases=_clip_search_releases(settings, tuned) if tuned and searched else (),
    )


def _clip_search_releases(settings: Settings, tuned: TunedClip) -> tuple[PriorRounds, ...]:
    """What the search of the best fixed clip norm released: every value met every instance."""
    return releases_in(Setting.of(**settings), spread_evenly(tuned.rounds, instance_seeds("train", tuned.instances)))


def _learned(spec: str, settings: Settings) -> Contender:
    """Saved trainings of a controller; a warning says where they are to act in another setting than trained in."""
    trained = load_trainings(spec)
    controller = trained[0]
    own = controller.blueprint.settings
    here = {"task": "digits"} | dict(settings)
    task = find_task(str(own["task"])).federation
    met, meets = (str(one.get("generator") or "their seeds alone") for one in (own, here))
    if met != meets:
        warnings.warn(f"controller '{spec}' was trained where instances differ in {met}, not {meets}.", stacklevel=2)
    for name in ("task", "method", "epsilon", "delta", "rounds", "clients", "sampling_rate"):
        known, asked = own.get(name, getattr(task, name, None)), here.get(name)
        if asked is not None and known is not None and str(asked) != str(known):
            warnings.warn(f"controller '{spec}' was trained with {name} {known}, not {asked}.", stacklevel=2)

    return Contender(
        name=spec,
        label=common_label(trained),
        view=controller.view,
        builds=tuple(_checked(one) for one in trained),
        trainings=training_names(trained),
        training_rounds=sum(one.training_rounds for one in trained),
        tuned_on=controller.trained_on if len(trained) == 1 else f"{len(trained)} trainings: {controller.trained_on}",
        tuned_population=controller.population,
        signals=controller.view["signals"],
        reads=controller.blueprint.features,
        releases=_released(trained),
    )


def _released(trained: Sequence[LearnedController]) -> tuple[PriorRounds, ...]:
    """What all the trainings released, in the settings that they were trained in; () where these are not to be had.

    How often a training met each of its instances is not kept, so they count evenly. A run that ended early counts as a
    whole one, for its controller may have spent all the budget by then.
    """
    total: Counter[int] = Counter()
    for one in trained:
        about = one.blueprint.training
        validation, played = about.get("validation_instances", []), about.get("train_instances", [])
        released = about.get("released", about["cost"])
        validated = released.get("validation", 0)
        total.update(spread_evenly(validated, validation or played or [0]))
        total.update(spread_evenly(sum(released.values()) - validated, played or validation or [0]))
    try:
        return releases_in(Setting.from_record(trained[0].blueprint.settings), total)
    except InputError:
        return ()


def _checked(controller: LearnedController) -> Callable[[EnvCore], Policy]:
    """What hands out a trained controller, to environments that it was trained for."""

    def build(target: EnvCore) -> Policy:
        controller.check(target)
        return controller

    return build
