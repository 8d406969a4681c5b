"""Checks of a controller's record, which anybody may have written, before anything is made of it."""

from __future__ import annotations

from typing import Any

from agents.algorithms import ALGORITHMS, IMPORTED_OPTIONS, POLICY_KEYWORDS, POLICY_OPTIONS
from agents.blueprint import Blueprint
from agents.options import OPTIONS
from fl_core.base.bounds import Bounds, count
from fl_core.base.errors import require, require_name
from fl_core.base.text import short
from fl_core.base.values import read_value
from fl_core.run.ranges import SEED

COUNT = count(0, 2**53)
MOST_ENTRIES = 4096
"""Most features or knobs of a controller."""
_TEXTS = ("task", "knobs", "signals", "population", "generator", "context")
_SCALES = ("log", "linear")


def check_blueprint(blueprint: Blueprint) -> None:
    """Refuse values that no training leaves.

    Raises:
        InputError: a value is of another type or out of its range.
        KeyError, TypeError: something is missing or cannot be looked into.
    """
    if blueprint.algo in ALGORITHMS:  # files of other libraries describe themselves
        _check_policy(dict(blueprint.arguments))
    Bounds(0.1, 1e6).check("feature_bound", blueprint.feature_bound)
    for what, entries in (("features", blueprint.features), ("knobs", blueprint.knobs)):
        require(
            0 < len(entries) <= MOST_ENTRIES, f"{what} has {len(entries)} entries, but it needs 1 to {MOST_ENTRIES}."
        )
    for knob in blueprint.knobs:
        _check_knob(dict(knob))
    _check_settings(dict(blueprint.settings))
    _check_training(dict(blueprint.training))


def _check_policy(arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        require_name("policy: option", name, (*POLICY_OPTIONS, *IMPORTED_OPTIONS))
        if name in ("network", "value_network"):
            _check_widths(f"policy: {name}", value)
        elif name == "keywords":
            for keyword, given in dict(value).items():
                require_name("policy: keyword", keyword, POLICY_KEYWORDS)
                plain = given is None or isinstance(given, (str, int, float))
                require(plain, f"policy: {keyword} is {short(given)}, but it must be one value.")
        else:
            OPTIONS[name].check(f"policy: {name}", value)


def _check_widths(name: str, widths: Any) -> None:
    """Refuse what are no widths of hidden layers; a policy that was trained elsewhere may have none."""
    require(isinstance(widths, list), f"{name} is {short(widths)}, but it must be a list of widths.")
    if widths:
        OPTIONS["network"].check(name, tuple(widths))


def _check_knob(knob: dict[str, Any]) -> None:
    read_value("name of a knob", knob["name"], str)
    require_name("scale of a knob", knob["scale"], _SCALES)
    for end in ("low", "high"):
        Bounds(-1e12, 1e12).check(f"knob {knob['name']}: {end}", knob[end])
    require(knob["low"] <= knob["high"], f"knob {knob['name']} goes from {knob['low']} to {knob['high']}.")


def _check_settings(settings: dict[str, Any]) -> None:
    _check_origins(settings.get("origins", {}))
    for name, value in settings.items():
        if name == "origins":
            continue
        plain = value is None or isinstance(value, (str, int, float))  # None leaves a setting open
        require(plain, f"settings: {name} is {short(value)}, but it must be one value.")
    for name in _TEXTS:
        read_value(f"settings: {name}", settings.get(name, ""), str)
    read_value("settings: task", settings["task"], str)
    count(1, 1_000_000).check("settings: decision_rounds", settings["decision_rounds"])


def _check_origins(origins: Any) -> None:
    """Refuse what does not say, by names of a user's own parts, where each comes from."""
    fits = isinstance(origins, dict) and all(
        isinstance(about, dict) and all(isinstance(one, str) for one in about.values()) for about in origins.values()
    )
    require(fits, f"settings: origins is {short(origins)}, but it must say where each part comes from.")


def _check_training(training: dict[str, Any]) -> None:
    for name in ("cost", "released"):
        for part, rounds in dict(training.get(name) or {}).items():
            COUNT.check(f"training: {name}.{part}", rounds)
    for name in ("seed", "episodes"):
        COUNT.check(f"training: {name}", training.get(name) or 0)
    for name in ("validation_instances", "train_instances"):
        seeds = training.get(name) or []
        require(isinstance(seeds, list), f"training: {name} is {short(seeds)}, but it must be a list of seeds.")
        for seed in seeds:
            SEED.check(f"training: {name}", seed)
    config = training.get("config") or {}
    require(isinstance(config, dict), f"training: config is {short(config)}, but it must be names with values.")
