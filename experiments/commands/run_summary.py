"""Summary of a run, as JSON values and as what is printed at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envs import EnvCore
from experiments.contenders.play import Player, episode_of
from experiments.records.comparison import Episode
from experiments.records.costs import composed_epsilon
from experiments.records.privacy import privacy_report
from experiments.records.shown import Shown
from fl_core.base.files import spelled_out
from fl_core.run.basis import basis_of
from fl_core.run.choices import EVALUATIONS
from fl_core.run.config import FederationConfig
from fl_core.run.plan import find_metric

VIEW = ("knobs", "signals", "decision_rounds", "context")
"""Settings of the environment that the controller brings, in the summary."""


def summarise_run(core: EnvCore, player: Player, status: str, show: str = "all") -> dict[str, Any]:
    """Summarise a run as JSON-able values: its result, its ε and its settings; numbers not finite are spelled out."""
    config, ledger = core.federation.config, core.federation.charging.budgets[0]
    episode = episode_of(core, 0, by_pld=status != "running")  # which may take seconds
    figures, calibrated = (
        Shown(show).of(core.history[0][-1] if core.history[0] else {}),
        core.controls.calibrated_norm(0),
    )
    numbers = {
        "epsilon_target": ledger.epsilon,
        "delta": config.delta,
        "epsilon_spent": episode.epsilon_spent,
        "epsilon_pld": episode.epsilon_pld,
        **{name: value for name, value in figures.items() if name not in ("epsilon_spent", "epsilon_left")},
    }
    return {
        "status": status,
        "task": core.task.name,
        "method": config.method,
        "controller": player.name,
        "seed": episode.seed,
        "rounds": episode.rounds,
        "diverged": episode.diverged,
        "accountant": ledger.accountant,
        "sampling": f"{config.sampling}, rate {config.sampling_rate:g}",
        "placement": config.placement,
        "guarantee": config.guarantee,
        "tested_on": EVALUATIONS[config.evaluation],
        "privacy": privacy_report(core, 0, player.reads, show).as_json(),
        "executor": core.federation.executor.choice,
        "view": {name: getattr(player.setting.spec, name) for name in VIEW},
        "signals": player.signals,
        "signal_classes": {feature.name: feature.signal_class for feature in core.features},
        "figure_classes": {name: find_metric(name).signal_class for name in figures},
        "population": config.population,
        "search_rounds": player.search_rounds,
        "training_rounds": player.training_rounds,
        "tuned_on": player.tuned_on,
        "tuned_population": player.tuned_population,
        "origins": core.setting.origins | dict(player.origins),
        **({} if calibrated is None else {"calibrated_norm": calibrated}),
        **spelled_out(numbers),
    }


def _search_price(player: Player, config: FederationConfig) -> str:
    """Write the ε that training and search would have cost on the clients that privacy is promised to.

    The exact accuracies by which they chose are not in it: no ε holds for those.
    """
    if not player.releases:
        return ""
    what = "training" if player.training_rounds else "search"
    cost = composed_epsilon(player.releases, config.delta)
    claimed = " by the paper's accounting" if config.guarantee == "as-published" else ""
    return (
        f"; on private clients the rounds of the {what} alone would have cost epsilon {cost:.4g}{claimed}, for "
        f"{basis_of(config)}"
    )


def _tested(episode: Episode, config: FederationConfig) -> str:
    """Name the clients that the mean of their accuracies is over, and its standard error where they are a sample."""
    if config.tested_clients == config.clients:
        return f"{config.clients} clients"
    sample = f"{config.tested_clients:,} of {config.clients:,} clients"
    errors = episode.trajectory.get("personal_accuracy_error")
    return f"{sample} (standard error {errors[-1]:.1%})" if errors else sample


def print_summary(core: EnvCore, player: Player, folder: Path, show: str = "all") -> None:
    """Print a run's result: accuracy, privacy, tuning, executor and the folder of its records."""
    episode, config = episode_of(core, 0), core.federation.config
    print(f"{player.label} on {core.task.name} with {config.method}, seed {episode.seed}: {episode.rounds} rounds")
    if episode.diverged:
        print(f"The run diverged: {core.divergence(0)}.")
    if show == "all":
        if core.judges_server:
            print(f"  global accuracy    {episode.global_accuracy:.1%} on the pooled test set")
        tested = f"{_tested(episode, config)}, on {EVALUATIONS[config.evaluation]}"
        print(
            f"  personal accuracy  {episode.personal_accuracy:.1%}, mean over {_tested(episode, config)}, on {tested}"
        )
    if not core.federation.recipe.exchanges:
        print("  epsilon            0: nothing leaves the clients")
    else:
        print(*(f"  {line}" for line in privacy_report(core, 0, player.reads, show).lines()), sep="\n")
    if player.tuned_population:
        print(f"  tuned on           {player.tuning(config.population)}{_search_price(player, config)}")
    calibrated = core.controls.calibrated_norm(0)
    if calibrated is not None:
        print(f"  calibrated norm    {calibrated:.3g}, of an update on random data; it cost no privacy")
    print(f"  executor           {core.federation.executor.choice}")
    print(
        f"Records: {folder}\nIts privacy: dpilot ledger {folder}\nTo look at it: tensorboard --logdir {folder.parent}"
    )
