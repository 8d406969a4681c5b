"""`tuned:FAMILY` on the command line: a schedule family whose parameters are searched before it is played."""

from __future__ import annotations

from typing import Any

from envs import EnvCore, Setting, make_core
from envs.playing import Policy
from experiments.contenders.play import Contender, Settings, releases_in
from experiments.contenders.progress import rounds_bar
from experiments.contenders.search import FamilySearch
from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig
from policies.catalog import ControllerSpec, parse_controller

TUNED = "tuned"
"""Before the name of a family, as `tuned:exponential-decay`."""


def is_tuned(spec: str) -> bool:
    """Whether a spec names a family whose parameters are to be searched."""
    return spec.partition(":")[0] == TUNED


def family_of(spec: str) -> ControllerSpec:
    """The family of `tuned:FAMILY`; parameters that it gives are not searched.

    Raises:
        InputError: it names none, or one without parameters to search.
    """
    family = spec.partition(":")[2]
    if not family:
        raise InputError(f"controller '{spec}' names no family; write {TUNED}:FAMILY, as in {TUNED}:exponential-decay.")
    parsed = parse_controller(family)
    if parsed.controller.tuned or parsed.controller.assigns or not parsed.controller.parameters:
        raise InputError(f"controller '{spec}' names '{parsed.name}', which has no parameters to search.")
    return parsed


def view_of(spec: ControllerSpec, settings: Settings) -> dict[str, Any]:
    """Environment settings that a controller of the catalogue needs; telemetry left at the usual pays for them."""
    return acting_view(spec.knobs, spec.signals, spec.controller.needed_telemetry, settings)


def acting_view(knobs: str, signals: str, telemetry: str, settings: Settings) -> dict[str, Any]:
    """The view of a controller that decides in every round and reads that telemetry, if any."""
    view: dict[str, Any] = {"knobs": knobs, "signals": signals, "decision_rounds": 1}
    if telemetry and settings.get("telemetry") in (None, FederationConfig.telemetry):
        view["telemetry"] = telemetry
    return view


def prepare_search(spec: str, settings: Settings, instances: int, train_on: str) -> FamilySearch:
    """The search that `tuned:FAMILY` asks for, not yet run.

    Raises:
        InputError: the family does not fit the task, or nothing of it is left to search.
    """
    family = family_of(spec)
    return FamilySearch(family, {**settings, **view_of(family, settings)}, instances, train_on)


def tuned_contender(spec: str, settings: Settings, search: FamilySearch) -> Contender:
    """A family at the parameters that the search finds."""
    family = family_of(spec)
    with rounds_bar(search.rounds, f"search for {spec}") as progress:
        found = search.run(progress)
    view = view_of(family, settings)

    def build(target: EnvCore) -> Policy:
        return family.controller.for_env(target, **found.values)

    core = make_core(1, **{**settings, **view, "reward": "final-accuracy"})
    return Contender(
        name=spec,
        label=f"tuned {family.controller.for_env(core, **found.values).label}",
        view=view,
        builds=(build,),
        search_rounds=found.rounds,
        tuned_on=(
            f"the best of {found.candidates} parameter settings in {found.runs} runs, by successive halving on "
            f"{found.instances} training instance{'s' if found.instances > 1 else ''} of {found.population} clients"
        ),
        tuned_population=found.population,
        signals=family.signals,
        reads=family.controller.needed_features,
        releases=releases_in(Setting.of(**{**settings, **view}), found.by_instance),
    )
