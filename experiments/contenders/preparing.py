"""Reading of what a user names after --controllers, checks before any work, and preparation to play."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from agents.online_spec import OnlineSpec
from experiments.contenders.bench import Bench
from experiments.contenders.contenders import Contender, HandCoded, Learned, Online, Tuned
from experiments.contenders.other_rounds import AtRounds
from experiments.contenders.play import Player
from experiments.contenders.rounds_search import RoundsContender
from experiments.contenders.specs import Family, Named, OtherRounds, RoundsFamily, Saved, read_spec, read_specs
from experiments.contenders.trainings import load_trainings
from fl_core.data.populations import share_samples


def parse_contender(spec: str) -> Contender:
    """Read a spec such as `fixed:0.5`, `tuned:exponential-decay`, `online-ppo:3` or `ppo:runs/NAME`.

    Raises:
        InputError: the controller is unknown, or its parameters or folders are wrong.
    """
    return contender_of(read_spec(spec))


def contender_of(named: Named) -> Contender:
    """Make the contender of a spec that was read.

    Raises:
        InputError: a folder holds no controller of the algorithm, or two of them are no trainings of one controller.
    """
    match named:
        case Saved():
            return Learned(named.spec, load_trainings(named.spec))
        case OnlineSpec():
            return Online(named)
        case Family():
            return Tuned(named.controller)
        case RoundsFamily():
            return RoundsContender()
        case OtherRounds():
            return AtRounds(contender_of(named.named), named.rounds)
        case _:
            return HandCoded(named)


def parse_contenders(specs: Sequence[str]) -> list[Contender]:
    """Read specs, each of another controller.

    Raises:
        InputError: a spec cannot be read, or two are the same.
    """
    return [contender_of(one) for one in read_specs(specs)]


def check(contenders: Sequence[Contender], bench: Bench) -> None:
    """Check all contenders, before anything is run or written.

    Raises:
        InputError: a contender does not fit the setting.
    """
    for one in contenders:
        one.check(bench)


def prepare(contenders: Sequence[Contender], bench: Bench) -> list[Player]:
    """Make players of contenders that were checked on the bench; searches are run, or found finished."""
    bench.search(search for one in contenders if (search := one.search(bench)) is not None)
    players = _told_apart([one.prepare(bench) for one in contenders])
    _warn_of_shared_clients(players, bench.setting.federation.population)
    return players


def make_players(specs: Sequence[str], bench: Bench) -> list[Player]:
    """Make players of specs as typed.

    Raises:
        InputError: a spec cannot be read, two are the same, or a controller does not fit the setting.
    """
    contenders = parse_contenders(specs)
    check(contenders, bench)
    return prepare(contenders, bench)


def _told_apart(players: list[Player]) -> list[Player]:
    """Append the spec to labels that two players share, as trainings of one algorithm with one seed do."""
    labels = [player.label for player in players]
    return [
        replace(one, label=f"{one.label} {one.name.partition(':')[2] or one.name}")
        if labels.count(one.label) > 1
        else one
        for one in players
    ]


def _warn_of_shared_clients(players: Sequence[Player], here: str) -> None:
    """Warn of players that were trained or tuned on the clients that they are about to act on."""
    by_population: dict[str, list[str]] = {}
    for player in players:
        if player.tuned_population and share_samples(player.tuned_population, here):
            by_population.setdefault(player.tuned_population, []).append(player.name)
    for population, names in by_population.items():
        warnings.warn(
            f"{', '.join(names)}: trained or tuned on {population} clients, to act on {here} clients; epsilon does not "
            "contain what that told about them.",
            stacklevel=3,
        )
