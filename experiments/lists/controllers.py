"""Lists of controllers, and of what trains them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from agents.algorithms import ALGORITHMS, default_text
from agents.curricula import CURRICULA
from agents.folders import CARD, PRETRAINED, RECORD, pretrained_folders
from agents.formats import EXPORTED
from agents.loggers import LOGGERS
from agents.online_spec import KNOBS, NAME
from experiments.contenders.specs import AT, LEARNED, TUNED, TUNED_ROUNDS
from experiments.lists.rows import Rows, parts_of
from fl_core.base.files import read_json
from fl_core.base.sources import BUILT_IN
from policies.base import Controller
from policies.catalog import CONTROLLERS
from policies.combined import SEPARATOR
from policies.parameters import MULTIPLE
from policies.specs import ControllerSpec
from policies.view import MULTIPLES


def controllers() -> Rows:
    """List the controllers."""
    yield from parts_of(CONTROLLERS, ("controller", "what it does", "signals", "knobs"), _controller)
    own = ("its own", "its own")
    multiples = "any clip norm above, as a multiple of an update's length on random data, which is free: fixed:1x"
    yield (f"...:NUMBER{MULTIPLE}", multiples, "public", MULTIPLES, BUILT_IN.words)
    several = "several of these at once, each on knobs of its own: log-odds+budget-linear:0.5"
    yield (f"ONE{SEPARATOR}OTHER[{SEPARATOR}...]", several, *own, BUILT_IN.words)
    yield (f"{TUNED}:FAMILY", "any of these, its parameters searched on training instances", *own, BUILT_IN.words)
    rounds = "the best fixed clip norm at half, once or twice the rounds, both searched; in a comparison"
    yield (TUNED_ROUNDS, rounds, "public", "clip_norm", BUILT_IN.words)
    other = (
        f"any without a search for other rounds, given, a multiple of the run's ({AT}2x) or searched; in a comparison"
    )
    yield (f"CONTROLLER{AT}ROUNDS|{AT}{TUNED}", other, *own, BUILT_IN.words)
    summary = "PPO that learns the clip norm within the very run, as ACDP-pFSD does, from accuracy and loss"
    yield (f"{NAME}[:accounted|:paper][:SEED]", summary, "by the guarantee", KNOBS, BUILT_IN.words)
    for name, folder in pretrained_folders().items():
        view = read_json(folder / RECORD)["settings"]  # what comes with the package is read without its policy
        yield (f"{PRETRAINED}:{name}", _summary(folder / CARD), view["signals"], _spaced(view["knobs"]), BUILT_IN.words)
    for algorithm in LEARNED:
        made = "`dpilot import`" if algorithm in EXPORTED else f"`dpilot train --algo {algorithm}` or `dpilot import`"
        yield (f"{algorithm}:FOLDER", f"saved by {made}", *own, "the folder")
    yield ("FILE.py:NAME[:PARAMETER...]", "a class made from policies.Controller", *own, "the file")


def _controller(name: str, controller: type[Controller]) -> tuple[str, ...]:
    knobs = "those named" if controller.assigns else _spaced(ControllerSpec(name).knobs)
    usage = name + controller.usage().removeprefix(controller.name)
    return usage, controller.summary, controller.needed_signals, knobs


def _spaced(names: str) -> str:
    return names.replace(",", ", ")


def _summary(card: Path) -> str:
    """Read the first sentence below a card's title."""
    return card.read_text(encoding="utf-8").splitlines()[2].rstrip(".")


def algorithms() -> Rows:
    """List the algorithms."""
    yield ("algorithm", "what it is", "its options", "here?")
    for name, one in ALGORITHMS.items():
        usual = (f"{option.replace('_', '-')} {default_text(value)}" for option, value in one.options.items())
        here = find_spec(one.place.partition(":")[0]) is not None
        yield (name, one.summary, ", ".join(usual), "yes" if here else "no: install the extra zoo")


def curricula() -> Rows:
    """List the curricula."""
    yield ("curriculum", "which training instances it plays")
    yield from ((name, one.summary) for name, one in CURRICULA.items())


def loggers() -> Rows:
    """List the loggers."""
    yield ("logger", "where it keeps what it is sent", "here?")
    for name, one in LOGGERS.items():
        yield (name, one.summary, "yes" if find_spec(one.package) else f"no: install the extra {name}")
