"""Saving of a federation, and reading back only where it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_core.base.errors import InputError, require, require_count
from fl_core.base.streams import secret_mark
from fl_core.privacy.ledger import Ledger
from fl_core.recipes.recipe import Recipe
from fl_core.run.charging import Books
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.state import RunState

FORMAT = 4
"""Version of what is saved; 1 kept the averages among the tensors of the method, 2 knew of no keys of the noise,
3 drew minibatches for all clients and kept tensors of those that never took part."""
FREE = ("executor", "device", "memory_limit_mib", "client_memory_mib", "image_memory_mib", "data_root")
"""Settings that may differ where a run is continued."""


@dataclass(frozen=True)
class Saved:
    """A federation as it was saved.

    Attributes:
        settings: of each run.
        books: of each run.
        executor: kind of the executor in use.
        state: the runs' state.
    """

    settings: list[RunSettings]
    books: list[Books]
    executor: str
    state: RunState


def save(
    config: FederationConfig,
    settings: Sequence[RunSettings],
    executor: str,
    state: RunState,
    books: Sequence[Books],
    secrets: Sequence[bytes],
) -> dict[str, Any]:
    """Copy everything that a federation continues from: `tensors` by name, and `plain` values for strict JSON."""
    return {
        "tensors": state.tensors(),
        "plain": {
            "format": FORMAT,
            "config": _plain(config),
            "settings": [_plain(one) for one in settings],
            "executor": executor,
            "rounds": state.rounds.tolist(),
            "noise_keys": [secret_mark(one) for one in secrets],
            "books": [one.state_dict() for one in books],
        },
    }


def read(
    config: FederationConfig,
    recipe: Recipe,
    state: RunState,
    saved: Mapping[str, Any],
    open_books: Callable[[RunSettings], Books],
    secrets: Sequence[bytes],
) -> Saved:
    """Read what `save` returned, once it fits.

    Args:
        config: settings of the federation that is to go on.
        recipe: its method.
        state: its own state, of the shape that is expected.
        saved: what was saved.
        open_books: how books of a run are opened.
        secrets: keys of the runs' noise, which the saved runs must have.

    Raises:
        InputError: the saved state has another format, belongs to other settings, is damaged, its noise has another
            key, or a ledger in it was edited.
    """
    try:
        plain = saved["plain"]
        found = plain.get("format", 1)
        require(
            found == FORMAT,
            f"format of the saved state is {found}, but this version reads {FORMAT} only: start the run again, or go "
            "on with the version that saved it.",
        )
        settings, books, rounds = _read_plain(config, recipe, plain, len(state.rounds), open_books)
        _require_keys(plain["noise_keys"], secrets)
        return Saved(settings, books, plain["executor"], state.with_tensors(saved["tensors"], rounds))
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"The saved state is not one that a federation wrote ({error!r}).") from error


def _read_plain(
    config: FederationConfig,
    recipe: Recipe,
    plain: Mapping[str, Any],
    runs: int,
    open_books: Callable[[RunSettings], Books],
) -> tuple[list[RunSettings], list[Books], NDArray[np.int64]]:
    """Read settings, budgets and rounds `[runs]`, once they fit these settings and each other."""
    for field, value in _plain(config).items():
        if field not in FREE and plain["config"][field] != value:
            raise InputError(f"{field} of the saved run is {plain['config'][field]}, but here it is {value}.")
    for part in ("settings", "rounds", "books"):
        found = len(plain[part])
        require(found == runs, f"The saved state holds {found} {part}, but this federation has {runs}.")
    settings = [_read_settings(one) for one in plain["settings"]]
    books = [open_books(one) for one in settings]
    for own, saved, rounds in zip(books, plain["books"], plain["rounds"], strict=True):
        own.load_state_dict(saved)
        for ledger in (own.ledger, own.budget):
            _check_round(config.rounds, recipe.private, rounds, ledger)
    return settings, books, np.array(plain["rounds"], dtype=np.int64)


def _require_keys(marks: Sequence[str], secrets: Sequence[bytes]) -> None:
    """Refuse to go on with secret noise without its key: other noise on the same sums would be no noise."""
    require(
        marks == [secret_mark(one) for one in secrets],
        "The noise of the saved run is secret, and its key is not the one here: without it the run cannot go on.",
    )


def _check_round(total: int, private: bool, rounds: int, ledger: Ledger) -> None:
    """Refuse a number of rounds done that is impossible, or another one than the ledger has charged."""
    require_count("rounds of the saved run", rounds, least=0)
    require(rounds <= total, f"rounds of the saved run is {rounds}, but it has {total} only.")
    if private:
        charged = ledger.charges[-1].round + 1 if ledger.charges else 0
        require(rounds == charged, f"rounds of the saved run is {rounds}, but its ledger has charged {charged}.")


def _plain(settings: FederationConfig | RunSettings) -> dict[str, Any]:
    """List fields as values for strict JSON, which has no infinity; an epsilon of 8 and of 8.0 read the same."""
    epsilon = settings.epsilon
    return asdict(settings) | {"epsilon": None if epsilon is None else str(float(epsilon))}


def _read_settings(plain: Mapping[str, Any]) -> RunSettings:
    """Invert `_plain` for a run's settings."""
    epsilon = plain["epsilon"]
    return RunSettings(**{**plain, "epsilon": None if epsilon is None else float(epsilon)})
