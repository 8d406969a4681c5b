"""From what a user types after --controllers to controllers that can be played."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from agents.algorithms import ALGORITHMS
from agents.bundle import LearnedController, load_controller
from agents.online import KNOBS, NAME, SEEN, TELEMETRY, OnlinePPO, OnlineSpec, parse_online
from envs import EnvCore, make_core
from envs.instances import instance_population
from envs.tasks import find_task
from experiments.episodes import Contender, Policy, Settings
from experiments.progress import rounds_bar
from experiments.tuning import TunedClip, search_rounds, tune_fixed_clip
from fl_core.data.populations import POPULATIONS, share_samples
from fl_core.errors import InputError, require, unknown_name
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
        _load(spec)
    elif is_online(spec):
        parse_online(spec)
    elif spec.partition(":")[0] in CONTROLLERS:
        parse_controller(spec)
    else:
        raise unknown_name("controller", spec.partition(":")[0], [*CONTROLLERS, *LEARNED, NAME])


def needs_search(specs: Sequence[str]) -> bool:
    """Whether some controller derives from the best fixed clip norm, so that it has to be searched."""
    ready_made = [is_learned(spec) or is_online(spec) for spec in specs]
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
    if train_on not in POPULATIONS:
        raise unknown_name("train_on", train_on, POPULATIONS)
    for spec in specs:
        check_spec(spec)
        if list(specs).count(spec) > 1:
            raise InputError(f"controllers names '{spec}' twice, but each may be compared only once.")
    contenders = [_ready_made(spec, settings) for spec in specs]
    for spec, contender in zip(specs, contenders, strict=True):
        if contender is None:
            _hand_coded(parse_controller(spec), settings, None, dry=True)
        else:
            contender.build(make_core(1, **{**settings, **contender.view, "reward": "final-accuracy"}))
    tuned = None
    if needs_search(specs):
        rounds = int(make_core(1, **{**settings, "reward": "final-accuracy"}).task.federation.rounds)
        with rounds_bar(search_rounds(rounds, instances), "search for the best fixed clip norm") as progress:
            tuned = tune_fixed_clip(settings, instances, progress, train_on)
    ready = [
        _hand_coded(parse_controller(spec), settings, tuned) if contender is None else contender
        for spec, contender in zip(specs, contenders, strict=True)
    ]
    _warn_of_shared_clients(ready, settings)
    return ready


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
    view = {"knobs": KNOBS, "signals": signals, "decision_rounds": 1}
    if signals == "accounted" and settings.get("telemetry") in (None, usual.telemetry):
        view["telemetry"] = ",".join(TELEMETRY)

    def build(target: EnvCore) -> Policy:
        return OnlinePPO.for_env(target, spec.seed)

    core = make_core(1, **{**settings, **view, "reward": "final-accuracy"})
    return Contender(
        name=str(spec),
        label=OnlinePPO.for_env(core, spec.seed).label,
        view=view,
        build=build,
        signals=signals,
        reads=SEEN[signals],
    )


def _hand_coded(spec: ControllerSpec, settings: Settings, tuned: TunedClip | None, dry: bool = False) -> Contender:
    """A controller of the catalogue; `dry` only checks that it fits, with the task's default as its anchor."""
    view = {"knobs": spec.knobs, "signals": spec.signals, "decision_rounds": 1}
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
        build=build,
        search_rounds=tuned.rounds if tuned and searched else 0,
        tuned_on=words if searched else "",
        tuned_population=tuned.population if tuned and searched else "",
        signals=spec.signals,
        reads=spec.controller.needed_features,
    )


def _learned(spec: str, settings: Settings) -> Contender:
    """A saved controller; a warning says where it is asked to act in another setting than it was trained in."""
    controller = _load(spec)
    own = controller.blueprint.settings
    here = {"task": "digits"} | dict(settings)
    task = find_task(str(own["task"])).federation
    for name in ("task", "method", "epsilon", "delta", "rounds", "clients", "sampling_rate"):
        trained, asked = own.get(name, getattr(task, name, None)), here.get(name)
        if asked is not None and trained is not None and str(asked) != str(trained):
            warnings.warn(f"controller '{spec}' was trained with {name} {trained}, not {asked}.", stacklevel=2)

    def build(target: EnvCore) -> Policy:
        controller.check(target)
        return controller

    return Contender(
        name=spec,
        label=controller.label,
        view=controller.view,
        build=build,
        training_rounds=controller.training_rounds,
        tuned_on=controller.trained_on,
        tuned_population=controller.population,
        signals=controller.view["signals"],
        reads=controller.blueprint.features,
    )


def _load(spec: str) -> LearnedController:
    algorithm, _, folder = spec.partition(":")
    if not folder:
        raise InputError(f"controller '{spec}' names no folder; write {algorithm}:runs/NAME.")
    controller = load_controller(folder)
    found = controller.blueprint.algo
    require(found == algorithm, f"controller '{spec}' was trained with {found}; write {found}:{folder}.")
    return controller
