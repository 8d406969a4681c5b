"""Checks that a run's books agree with themselves, and with what else lies in the run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.records.plain_yaml import read_yaml
from experiments.records.run_state import FORMAT as STATE_FORMAT
from experiments.records.run_state import RECORD as STATE
from fl_core.base.errors import require
from fl_core.base.files import json_number, read_json
from fl_core.base.sealed import read_sealed, understood
from fl_core.privacy.adjacency import amplified_rate
from fl_core.run.charging import Books

Facts = Mapping[str, Any]
"""Fields of a `RunFacts` by name."""

CONFIG, SUMMARY = "config.yaml", "summary.json"
_SETTINGS = ("method", "guarantee", "clients", "sampling", "sampling_rate", "placement", "rounds", "population")
_SUMMARISED = ("task", "method", "controller", "seed", "placement", "guarantee", "population")


def check_books(path: Path, facts: Facts, books: Books) -> None:
    """Refuse books that contradict themselves or their facts.

    A round is charged before it runs, so there may be a charge more than rounds done, never one less.

    Raises:
        InputError: the numbers of charges and rounds, or a budget and a fact, do not fit.
    """
    done, ledger = facts["rounds_done"], books.ledger
    for name, one in books.by_name().items():
        charged = len(one.charges)
        rounds = [row[0] for row in one.rows]
        least = 0 if one in books.clients or not facts["private"] else done
        require(
            least <= charged <= (done + 1 if facts["private"] else 0) and rounds == list(range(charged)),
            f"The file '{path}' contradicts itself: its {name} holds {charged} charges, but {done} rounds are done.",
        )
    total = facts["rounds"]
    require(done <= total, f"The file '{path}' contradicts itself: {done} of {total} rounds are done.")
    sound = facts["guarantee"] == "sound" or not facts["private"]
    require(
        sound is (books.claim is None),
        f"The file '{path}' contradicts itself: guarantee is {facts['guarantee']}, but it holds "
        f"{'no' if books.claim is None else 'a'} claim.",
    )
    rate = amplified_rate(facts["sampling"], facts["sampling_rate"], facts["placement"], ledger.adjacency)
    for field, said, counted in (("rounds", total, ledger.rounds), ("sampling_rate", rate, ledger.sampling_rate)):
        require(
            said == counted,
            f"The file '{path}' contradicts itself: {field} of its facts comes to {said}, of its ledger to {counted}.",
        )


def check_folder(folder: Path, facts: Facts, books: Books) -> None:
    """Refuse books that lie beside another run's configuration, summary or saved state.

    Raises:
        InputError: something that both say differs.
    """
    own = {name: facts[name] for name in ("task", "seed", "controller", *_SETTINGS)}
    own |= {"epsilon": books.budget.epsilon, "delta": books.budget.delta}
    for file, told in _told(folder):
        for name, value in told.items():
            mine = own[name]
            require(
                json_number(value) == json_number(mine),
                f"The ledger in '{folder}' is of another run than {file} beside it: its {name} is {mine}, not {value}.",
            )


def _told(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read what the other files of a run's folder say of it, as far as they are there, by the facts' names."""
    told = {CONFIG: _told_by_config, SUMMARY: _told_by_summary, STATE: _told_by_state}
    for file, read in told.items():
        path = folder / file
        if path.exists():
            with understood(f"The file '{path}' is none that a run wrote"):
                yield file, read(path)


def _told_by_config(path: Path) -> dict[str, Any]:
    said = read_yaml(path)
    return _top(said) | _settings(said["federation"])


def _told_by_summary(path: Path) -> dict[str, Any]:
    said = read_json(path)
    return {name: said[name] for name in _SUMMARISED} | {"epsilon": said["epsilon_target"], "delta": said["delta"]}


def _told_by_state(path: Path) -> dict[str, Any]:
    said = read_sealed(path, STATE_FORMAT)["about"]
    return _settings(said["settings"]) | {"task": said["settings"]["task"], "seed": said["seed"]}


def _top(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said[name] for name in ("task", "seed")}


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    follows = "epsilon" not in said and said["noise_multiplier"] is not None
    return {name: said[name] for name in (*_SETTINGS, "delta", *(() if follows else ("epsilon",)))}
