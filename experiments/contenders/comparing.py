"""Comparison of prepared players: each plays every held-out run, and all of it becomes one record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from experiments.contenders.bench import Bench, Needs
from experiments.contenders.instances import Case, deal
from experiments.contenders.play import Player, play
from experiments.contenders.preparing import parse_contender
from experiments.contenders.progress import jobs_bar
from experiments.contenders.specs import COARSE_VALUES
from experiments.records.comparison import Comparison, ControllerResult, Episode, Instance
from fl_core.run.parts import origins_of

GRID = Needs("clip_norm")
"""Requirements of the fixed clip norms of the hindsight."""


def compare(
    players: Sequence[Player],
    bench: Bench,
    seeds: Sequence[int],
    command: str,
    instances: Sequence[Instance] = (),
    hindsight: bool = False,
    drawn: bool = False,
) -> Comparison:
    """Play every controller on every seed.

    Args:
        players: the controllers.
        bench: where they were prepared.
        seeds: of held-out runs, the same for all; dealt out to the instances in equal blocks.
        command: what to type to get this again.
        instances: settings to compare in; () for the task's own.
        hindsight: whether fixed clip norms are played on the same runs, for the regret to the best of them.
        drawn: whether the instances were drawn by a generator.
    """
    cases = deal(seeds, instances)
    finished = bench.environments.runner.finished
    began, before = time.monotonic(), finished.seconds
    rounds = bench.setting.federation.rounds
    core = bench.environments.of(players[0].setting.replace(rounds=rounds))
    config = core.federation.config
    planned = sum(player.setting.federation.rounds * len(player.builds) for player in players)
    with jobs_bar(len(cases) * planned, f"{len(players)} controllers") as watch:
        episodes, executor = play(players, cases, bench.environments, watch)
    results = [_result(player, bench, own) for player, own in zip(players, episodes, strict=True)]
    grid = _play_grid(bench, cases) if hindsight else ()
    budget = core.federation.charging.budgets[0]
    return Comparison(
        task=core.task.name,
        method=config.method,
        dataset=", ".join(dict.fromkeys(str(one.changes.get("dataset", config.dataset)) for one in instances))
        or config.dataset,
        clients=config.clients,
        epsilon=config.epsilon,
        delta=config.delta,
        rounds=config.rounds,
        sampling="full" if config.sampling_rate == 1 else config.sampling,
        sampling_rate=config.sampling_rate,
        accountant=budget.accountant,
        placement=config.placement,
        device=str(core.federation.device),
        executor=executor,
        wall_seconds=time.monotonic() - began + finished.seconds - before,
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=command,
        controllers=tuple(results),
        instances=tuple(instances),
        hindsight=grid,
        judged_by="global_accuracy" if core.judges_server else "personal_accuracy",
        guarantee=config.guarantee,
        uncovered=config.uncovered,
        population=config.population,
        drawn=drawn,
        adjacency=config.neighbours,
        origins=_origins(players, instances),
    )


def _origins(players: Sequence[Player], instances: Sequence[Instance]) -> dict[str, str]:
    """Tell where everything that was played comes from, as far as it is not built in, by name."""
    found: dict[str, Mapping[str, str]] = {}
    for player in players:
        found |= player.setting.origins | dict(player.origins)
    for one in instances:
        found |= origins_of(one.changes)
    return {
        name: f"{one['kind']}, {one['from']}" + (f", sha256 {one['sha256']}" if "sha256" in one else "")
        for name, one in found.items()
    }


def _result(player: Player, bench: Bench, episodes: Sequence[Episode]) -> ControllerResult:
    """Make the record of a player's episodes."""
    features = bench.environments.of(player.setting).features
    return ControllerResult(
        name=player.name,
        label=player.label,
        signals=player.signals,
        signal_classes=tuple(dict.fromkeys(feature.signal_class for feature in features)),
        training_rounds=player.training_rounds,
        search_rounds=player.search_rounds,
        tuned_on=player.tuned_on,
        tuned_population=player.tuned_population,
        episodes=tuple(episodes),
        trainings=player.trainings,
        releases=player.releases,
    )


def _play_grid(bench: Bench, cases: Sequence[Case]) -> tuple[ControllerResult, ...]:
    """Play fixed clip norms over the whole range of the knob, on the very runs that controllers are compared on."""
    core = bench.core(GRID)
    values = core.knobs[0].decode(np.linspace(-1, 1, COARSE_VALUES))
    grid = [parse_contender(f"fixed:{float(value):.12g}").prepare(bench) for value in values]
    title = f"hindsight: {len(grid)} fixed clip norms"
    with jobs_bar(core.federation.config.rounds * len(cases) * len(grid), title) as watch:
        episodes, _ = play(grid, cases, bench.environments, watch, every_round=False)
    return tuple(_result(player, bench, own) for player, own in zip(grid, episodes, strict=True))
