"""Options that only some learning algorithms have: what each does and which values it takes.

Which algorithms have an option, and its defaults, stands in `agents.algorithms.ALGORITHMS` alone; help texts read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tyro

from agents.algorithms import ACTIVATIONS, ALGORITHMS, default_text
from fl_core.base.bounds import Bounds, count
from fl_core.base.errors import require, require_name
from fl_core.base.text import short
from fl_core.recipes.parts import WEIGHT

Check = Callable[[str, Any], None]


@dataclass(frozen=True)
class Option:
    """A line of the catalogue.

    Attributes:
        summary: what it does, with its unit.
        check: raises `InputError` for a name and a value that is not allowed.
    """

    summary: str
    check: Check


def option(name: str) -> Any:
    """Help of an option on the command line: its summary, and its default for each algorithm that has it."""
    return tyro.conf.arg(help=f"{OPTIONS[name].summary} ({defaults_by_algorithm(name)}).")


def defaults_by_algorithm(name: str) -> str:
    """List the algorithms that have an option, by its default: `ppo, a2c: tanh; sac, td3: relu`."""
    by_default: dict[str, list[str]] = {}
    for algo, one in ALGORITHMS.items():
        if name in one.options:
            by_default.setdefault(default_text(one.options[name]), []).append(algo)
    return "; ".join(f"{', '.join(algos)}: {text}" for text, algos in by_default.items())


# ---------------------------------------------------------------- checks


def _widths(name: str, value: Any) -> None:
    require(isinstance(value, (tuple, list)), f"{name} is {short(value)}, but it must be a list of widths.")
    require(0 < len(value) <= MOST_LAYERS, f"{name} has {len(value)} layers, but it needs 1 to {MOST_LAYERS}.")
    for width in value:
        WIDTH.check(f"A width in {name}", width)


MOST_LAYERS = 16
WIDTH = count(1, 4096, "a policy of a few knobs needs no more")
POSITIVE = Bounds(1e-9, 1e9, "beyond, it has no effect")
SIZE = count(1, 10_000_000, "more do not fit into memory")


def _activation(name: str, value: Any) -> None:
    require_name(name, value, ACTIVATIONS)


OPTIONS: dict[str, Option] = {
    "network": Option("Widths of the hidden layers", _widths),
    "activation": Option(f"Activation of the hidden layers, {' or '.join(ACTIVATIONS)}", _activation),
    "lstm_size": Option("Width of the memory", WIDTH.check),
    "log_std_init": Option(
        "Natural logarithm of the exploration's standard deviation at the beginning; actions span [-1, 1]",
        Bounds(-10, 2).check,
    ),
    "n_epochs": Option("Passes over the collected decisions in each update", count(1, 1000).check),
    "minibatches": Option("Parts that the collected decisions are split into in each pass", SIZE.check),
    "gae_lambda": Option("Trade-off between bias and variance of the advantages, in [0, 1]", Bounds(0, 1).check),
    "clip_range": Option("Largest relative change of an action's probability in an update", POSITIVE.check),
    "target_kl": Option("Kullback-Leibler divergence at which an update stops early", POSITIVE.check),
    "ent_coef": Option("Weight of the entropy in the loss", WEIGHT.check),
    "vf_coef": Option("Weight of the value function in the loss", WEIGHT.check),
    "max_grad_norm": Option("Largest norm of a gradient", POSITIVE.check),
    "exploration_noise": Option("Standard deviation of the noise on actions, which span [-1, 1]", Bounds(0, 10).check),
    "learning_starts": Option("Random decisions before anything is learned", count(0, 10_000_000).check),
    "replay_size": Option("Decisions in the replay buffer", SIZE.check),
    "replay_batch": Option("Decisions from the replay buffer per gradient step", count(1, 1_000_000).check),
    "replay_ratio": Option("Gradient steps per decision", Bounds(1e-3, 1000).check),
    "polyak": Option("Share by which a gradient step moves the target networks, in (0, 1]", Bounds(1e-6, 1).check),
}
