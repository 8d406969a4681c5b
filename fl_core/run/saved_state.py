"""What a federation saves, and how it is read back only where it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fl_core.base.errors import InputError, require, require_count
from fl_core.privacy.ledger import Ledger
from fl_core.run.charging import Books
from fl_core.run.config import FederationConfig, RunSettings

if TYPE_CHECKING:
    from fl_core.run.federation import Federation

_FREE = ("executor", "device", "memory_limit_mib", "data_root")
"""Settings that may differ where a run is continued."""


def save(federation: Federation) -> dict[str, Any]:
    """`tensors` by name, and `plain` as values for strict JSON."""
    return {
        "tensors": {name: value.detach().clone() for name, value in _tensors(federation).items()},
        "plain": {
            "config": _plain(federation.config),
            "settings": [_plain(one) for one in federation.settings],
            "executor": federation.executor.kind,
            "rounds": federation.rounds.tolist(),
            "books": [books.state_dict() for books in federation.charging.books],
        },
    }


def load(federation: Federation, state: Mapping[str, Any]) -> None:
    """Put a federation where a state was saved.

    Raises:
        InputError: the state belongs to other settings, is damaged, or a ledger in it was edited; nothing has changed
            then.
    """
    try:
        settings, books, rounds = _read_plain(federation, state["plain"])
        tensors = _read_tensors(federation, state["tensors"])
        federation.executor.resume_as(state["plain"]["executor"])
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"The saved state is not one that a federation wrote ({error!r}).") from error
    federation.start(range(federation.runs), settings)
    federation.charging.books = books
    federation.rounds = rounds
    federation.server, federation.last_release = tensors["server"], tensors["last_release"]
    federation.run_state = {name: tensors[f"run.{name}"] for name in federation.run_state}
    federation.clients = {name: tensors[f"clients.{name}"] for name in federation.clients}


def _tensors(federation: Federation) -> dict[str, Tensor]:
    tensors = {"server": federation.server, "last_release": federation.last_release}
    tensors |= {f"run.{name}": value for name, value in federation.run_state.items()}
    return tensors | {f"clients.{name}": value for name, value in federation.clients.items()}


def _read_plain(federation: Federation, plain: Mapping[str, Any]) -> tuple[list[RunSettings], list[Books], np.ndarray]:
    """Settings, budgets and rounds `[runs]` of a saved state, once they fit this federation and each other."""
    for field, value in _plain(federation.config).items():
        if field not in _FREE and plain["config"][field] != value:
            raise InputError(f"{field} of the saved run is {plain['config'][field]}, but here it is {value}.")
    for part in ("settings", "rounds", "books"):
        found, runs = len(plain[part]), federation.runs
        require(found == runs, f"The saved state holds {found} {part}, but this federation has {runs}.")
    settings = [_read_settings(one) for one in plain["settings"]]
    books = [federation._prepare(one)[0] for one in settings]
    for own, saved, rounds in zip(books, plain["books"], plain["rounds"], strict=True):
        own.load_state_dict(saved)
        for ledger in (own.ledger, own.budget):
            _check_round(federation, rounds, ledger)
    return settings, books, np.array(plain["rounds"], dtype=np.int64)


def _check_round(federation: Federation, rounds: int, ledger: Ledger) -> None:
    """Refuse a number of rounds done that is impossible, or another one than the ledger has charged."""
    require_count("rounds of the saved run", rounds, least=0)
    total = federation.config.rounds
    require(rounds <= total, f"rounds of the saved run is {rounds}, but it has {total} only.")
    if federation.recipe.private:
        charged = ledger.charges[-1].round + 1 if ledger.charges else 0
        require(rounds == charged, f"rounds of the saved run is {rounds}, but its ledger has charged {charged}.")


def _read_tensors(federation: Federation, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of a saved state's tensors on this device, once they have the right shapes."""
    tensors = {}
    for name, own in _tensors(federation).items():
        fits = saved[name].shape == own.shape and saved[name].dtype == own.dtype
        require(fits, f"{name} of the saved run has shape {tuple(saved[name].shape)}, not {tuple(own.shape)}.")
        tensors[name] = saved[name].to(federation.device).clone()
    return tensors


def _plain(settings: FederationConfig | RunSettings) -> dict[str, Any]:
    """Fields as values for strict JSON, which has no infinity; an epsilon of 8 and of 8.0 read the same."""
    epsilon = settings.epsilon
    return asdict(settings) | {"epsilon": None if epsilon is None else str(float(epsilon))}


def _read_settings(plain: Mapping[str, Any]) -> RunSettings:
    """The inverse of `_plain` for a run's settings."""
    epsilon = plain["epsilon"]
    return RunSettings(**{**plain, "epsilon": None if epsilon is None else float(epsilon)})
