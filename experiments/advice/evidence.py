"""What controllers have gained in settings near one: read from the committed result pages on control."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from agents.folders import is_pretrained
from envs.tasks import find_task
from experiments.advice.rule import agreement_of
from experiments.advice.signal import Signal, Updates, changed, signal_of
from experiments.contenders.instances import drawn, vary
from experiments.records.comparison import Instance
from experiments.records.plain_yaml import read_yaml
from experiments.statistics.resampling import Difference, Scores, paired_difference
from fl_core.base.errors import InputError, require_name
from fl_core.run.config import FederationConfig

PAGES = "experiments.results.control"
"""Package whose files NAME.yaml and NAME.csv are the pages: options and runs of a comparison."""
BASELINE = "fixed"
"""Controller that gains are counted from: the task's clip norm, the choice of somebody who has tuned nothing."""
FACTORS = {"signal to noise": 1.5, "length of updates": 1.5, "epsilon": 3.0, "clients": 4.0}
"""Factors, up or down, within which a setting is near another."""


@dataclass(frozen=True)
class Place:
    """Where a setting lies among others: the method, and the numbers that decide which controller is good there."""

    signal: float
    norm: float
    epsilon: float
    clients: int
    method: str = ""

    @classmethod
    def of(cls, config: FederationConfig, updates: Updates, signal: Signal) -> Place:
        """Place a configuration."""
        return cls(signal.of_run, updates.norm, config.epsilon, config.clients, config.method)

    def distance(self, other: Place) -> tuple[float, str]:
        """Find how far another place is, and in what most: 1 at the end of `FACTORS`, in logarithms."""
        if other.method != self.method:
            return math.inf, "method"
        mine, theirs = ((one.signal, one.norm, one.epsilon, one.clients) for one in (self, other))
        pairs = zip(FACTORS.items(), mine, theirs, strict=True)
        return max((abs(math.log(own / its)) / math.log(factor), name) for (name, factor), own, its in pairs)


@dataclass(frozen=True)
class Evidence:
    """Runs of one instance of a page.

    Attributes:
        page: name of the page.
        instance: name of its instance.
        config: settings of the federation.
        accuracy: final global accuracy, mean over trainings, by controller and seed.
        free: controllers at hand: that need no search, and no training unless they come with the package.
        raw: controllers that saw exact figures of the clients.
        labels: names of the controllers in reports, with what was found for them.
    """

    page: str
    instance: str
    config: FederationConfig
    accuracy: Mapping[str, Mapping[int, float]]
    free: frozenset[str]
    raw: frozenset[str]
    labels: Mapping[str, str]

    def place(self) -> Place:
        """Work out where it lies."""
        updates = Updates.of(self.config)
        signal = signal_of(self.config, updates.noised, agreement_of(self.config, updates.classes))
        return Place.of(self.config, updates, signal)


@dataclass(frozen=True)
class Gain:
    """What a controller gained over the baseline in settings near one.

    Attributes:
        controller: its spec.
        difference: final global accuracy minus that of the baseline on the same seed; None without evidence.
        page: page that it is from, the nearest that has both.
        free: True if it is at hand: it needs no search, and no training unless it comes with the package.
        raw: True if it saw exact figures of the clients, which no ε covers.
    """

    controller: str
    difference: Difference | None
    page: str = ""
    free: bool = True
    raw: bool = False


@dataclass(frozen=True)
class Nearby:
    """Evidence near a setting.

    Attributes:
        gains: of every controller of the pages: those of the nearest page first, the largest before the others; those
            without evidence last. Gains of one page are of the same runs, those of two are not.
        found: instances that are near.
        nearest: distance of the nearest instance of all, and what it is farthest in.
        where: its page and name.
    """

    gains: tuple[Gain, ...] = ()
    found: tuple[Evidence, ...] = field(default=(), repr=False)
    nearest: tuple[float, str] = (math.inf, "")
    where: str = ""


def near(place: Place, pages: Sequence[Evidence] | None = None) -> Nearby:
    """Gather what is known near a place; `pages` in place of the committed ones."""
    known = list(read_pages() if pages is None else pages)
    placed = [(place.distance(one.place()), one) for one in known if _may_be_near(place, one)]
    placed.sort(key=lambda pair: pair[0][0])
    found = [one for distance, one in placed if distance[0] <= 1]
    gains: dict[str, Gain] = {}
    for page in dict.fromkeys(one.page for one in found):
        own = [one for one in found if one.page == page]
        new = [_gain(name, own) for name in _names(own) if name not in gains]
        new = [one for one in new if one.difference is not None]
        gains |= {one.controller: one for one in sorted(new, key=_size, reverse=True)}
    unknown = [Gain(name, None) for name in _names(known) if name not in gains]
    nearest, where = placed[0] if placed else ((math.inf, ""), None)
    named = "" if where is None else f"{where.page}: {where.instance}".rstrip(": ")
    return Nearby((*gains.values(), *unknown), tuple(found), nearest, named)


def _size(gain: Gain) -> float:
    return -math.inf if gain.difference is None else gain.difference.mean


def _may_be_near(place: Place, one: Evidence) -> bool:
    """Return False where method, ε or number of clients, which cost nothing to know, are too far away already."""
    if one.config.method != place.method:
        return False
    pairs = {"epsilon": one.config.epsilon / place.epsilon, "clients": one.config.clients / place.clients}
    return all(abs(math.log(ratio)) <= math.log(FACTORS[name]) for name, ratio in pairs.items())


def _names(pages: Sequence[Evidence]) -> list[str]:
    return [name for name in dict.fromkeys(name for one in pages for name in one.accuracy) if name != BASELINE]


def lead(controller: str, over: str, found: Sequence[Evidence]) -> Difference | None:
    """Compare two controllers on all pairs of a page's instances that have both; None where there are none."""
    own, base = dict[tuple[str, int], list[float]](), dict[tuple[str, int], list[float]]()
    for one in found:
        mine, theirs = one.accuracy.get(controller, {}), one.accuracy.get(over, {})
        for seed in mine.keys() & theirs.keys():
            own[one.instance, seed], base[one.instance, seed] = [mine[seed]], [theirs[seed]]
    if not own:
        return None
    drawn = len({instance for instance, _ in own}) > 1  # then instances are resampled, else the seeds of the only one
    return paired_difference(Scores(own, drawn), Scores(base, drawn))


def _gain(controller: str, found: Sequence[Evidence]) -> Gain:
    """Compare a controller with the baseline."""
    difference = lead(controller, BASELINE, found)
    if difference is None:
        return Gain(controller, None)
    both = [one for one in found if controller in one.accuracy and BASELINE in one.accuracy]
    free, raw = (all(controller in one.free for one in both), any(controller in one.raw for one in both))
    return Gain(controller, difference, both[0].page, free, raw)


# ---------------------------------------------------------------- reading the pages

_BUDGET = ("epsilon", "noise_multiplier")
"""Options that every run states as its ε."""


def read_pages() -> Iterator[Evidence]:
    """Read every committed page; one that is no comparison, or of settings that are gone, is left out."""
    folder = files(PAGES)
    for page in sorted(one.name.removesuffix(".csv") for one in folder.iterdir() if one.name.endswith(".csv")):
        options = Path(str(folder.joinpath(f"{page}.yaml")))
        rows = list(csv.DictReader(io.StringIO(folder.joinpath(f"{page}.csv").read_text(encoding="utf-8"))))
        try:
            yield from read_page(page, read_yaml(options) if options.is_file() else {}, rows)
        except (InputError, KeyError):
            continue


def read_page(page: str, options: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> Iterator[Evidence]:
    """Read a page from its options, {} for those of the task, and the lines of its runs."""
    runs = [row for row in rows if row["role"] == "controller"]
    config, instances = _instances({**options, **options.get("federation", {})}, runs[0])
    for name, own in _by_instance(runs).items():
        require_name("instance", name, instances)
        changes = dict(instances[name]) | {"epsilon": float(own[0]["epsilon"])}
        yield Evidence(
            page,
            name,
            changed(config, **changes),
            _accuracies(own),
            frozenset(row["controller"] for row in own if _is_at_hand(row)),
            frozenset(row["controller"] for row in own if "raw" in row["signal_classes"].split()),
            {row["controller"]: row.get("label", "") for row in own},
        )


def _is_at_hand(row: Mapping[str, str]) -> bool:
    ready = row["training_rounds"] == "0" or is_pretrained(row["controller"])
    return ready and row["search_rounds"] == "0"


def _instances(options: Mapping[str, Any], run: Mapping[str, str]) -> tuple[FederationConfig, dict[str, Any]]:
    """Make the settings that a page's runs share, and the changes of each instance by name."""
    kinds = FederationConfig.__dataclass_fields__
    names = {name.replace("-", "_"): value for name, value in options.items()}
    own = {name: value for name, value in names.items() if name in kinds and name not in _BUDGET}
    shared = {"clients": int(run["clients"]), "rounds": int(run["planned_rounds"]), "delta": float(run["delta"])}
    given = {**shared, "method": run["method"], "dataset": run["dataset"], "population": run["population"]}
    config = find_task(run["task"], **{**given, **own}).federation
    found: tuple[Instance, ...] = ()
    if names.get("generator"):
        found = drawn(str(names["generator"]), int(names.get("draws", 10)), config, int(names.get("first_draw", 0)))
    elif names.get("vary"):
        listed = names["vary"] if isinstance(names["vary"], list) else [names["vary"]]
        found = vary([str(one) for one in listed], config)
    return config, {one.name: one.changes for one in found} or {"": {}}


def _by_instance(rows: Sequence[Mapping[str, str]]) -> dict[str, list[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        found.setdefault(row["instance"], []).append(row)
    return found


def _accuracies(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[int, float]]:
    """Average the final accuracy over trainings, by controller and seed."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        by_seed = found.setdefault(row["controller"], {})
        by_seed.setdefault(int(row["seed"]), []).append(float(row["global_accuracy"]))
    return {name: {seed: sum(all_) / len(all_) for seed, all_ in seeds.items()} for name, seeds in found.items()}
