"""Options that only some learning algorithms have: what each does and which values it takes.

Which algorithms have an option, and its defaults, stands in `agents.algorithms.ALGORITHMS` alone; help texts read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tyro

from agents.algorithms import ACTIVATIONS, ALGORITHMS, default_text
from fl_core.base.errors import require, require_count, require_name, require_positive

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


def _between(low: float, high: float) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
        require(fits, f"{name} is {value!r}, but it must lie in [{low:g}, {high:g}].")

    return check


def _at_least_zero(name: str, value: Any) -> None:
    require(0 <= value < math.inf, f"{name} is {value}, but it must be a finite number of at least 0.")


def _whole_from_zero(name: str, value: Any) -> None:
    require_count(name, value, least=0)


def _share(name: str, value: Any) -> None:
    require_positive(name, value)
    require(value <= 1, f"{name} is {value}, but it must lie in (0, 1].")


def _widths(name: str, value: Any) -> None:
    require(len(value) > 0, f"{name} is empty, but it needs at least one hidden layer.")
    for width in value:
        require_count(f"A width in {name}", width)


def _activation(name: str, value: Any) -> None:
    require_name(name, value, ACTIVATIONS)


OPTIONS: dict[str, Option] = {
    "network": Option("Widths of the hidden layers", _widths),
    "activation": Option(f"Activation of the hidden layers, {' or '.join(ACTIVATIONS)}", _activation),
    "lstm_size": Option("Width of the memory", require_count),
    "log_std_init": Option(
        "Natural logarithm of the exploration's standard deviation at the beginning; actions span [-1, 1]",
        _between(-10, 2),
    ),
    "n_epochs": Option("Passes over the collected decisions in each update", require_count),
    "minibatches": Option("Parts that the collected decisions are split into in each pass", require_count),
    "gae_lambda": Option("Trade-off between bias and variance of the advantages, in [0, 1]", _between(0, 1)),
    "clip_range": Option("Largest relative change of an action's probability in an update", require_positive),
    "target_kl": Option("Kullback-Leibler divergence at which an update stops early", require_positive),
    "ent_coef": Option("Weight of the entropy in the loss", _at_least_zero),
    "vf_coef": Option("Weight of the value function in the loss", _at_least_zero),
    "max_grad_norm": Option("Largest norm of a gradient", require_positive),
    "exploration_noise": Option("Standard deviation of the noise on actions, which span [-1, 1]", _at_least_zero),
    "learning_starts": Option("Random decisions before anything is learned", _whole_from_zero),
    "replay_size": Option("Decisions in the replay buffer", require_count),
    "replay_batch": Option("Decisions from the replay buffer per gradient step", require_count),
    "replay_ratio": Option("Gradient steps per decision", require_positive),
    "polyak": Option("Share by which a gradient step moves the target networks, in (0, 1]", _share),
}
