"""`dpilot advise`: what to expect of a setting, and what to choose in it, before it runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from agents.folders import is_pretrained
from experiments.advice.advice import Advice, advise, as_json
from experiments.advice.choices import Choice
from experiments.advice.evidence import BASELINE, FACTORS, Gain, Nearby
from experiments.advice.other_rounds import RoundsFound
from experiments.advice.rule import MARGINAL, SPARED, USABLE, VERDICTS, evidence_of_rule
from experiments.commands.typed import typed_options
from experiments.options.advise import AdviseOptions
from experiments.reports.tables import Table
from experiments.reports.words import NONE, delta_text, points
from experiments.terminal import console
from fl_core.data.datasets import dataset_entry
from fl_core.run.basis import basis_of
from fl_core.run.budget import delta_warning
from fl_core.run.config import FederationConfig

_CHOSEN = ("rounds", "sampling_rate", "population", "noise")
"""Options that the commands to run next have their own values of."""


@dataclass(frozen=True)
class AdviseCommand(AdviseOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Print the advice, and return it with the commands to run next."""
        self.check()
        advice = advise(self.federation)
        commands = next_commands(self.task, self.federation, advice)
        _print(advice, commands, console(110))
        return {**as_json(advice), "epsilon_holds_for": basis_of(advice.config), "commands": commands}


def next_commands(task: str, config: FederationConfig, advice: Advice) -> list[str]:
    """Compose the commands that try what is advised on proxy clients, and then run it, or look at more clients."""
    chosen = {**asdict(config), "rounds": advice.best.rounds, "sampling_rate": advice.best.sampling_rate}
    names = [name for name in _CHOSEN if name not in ("rounds", "sampling_rate")]
    own = ["--task", task, *typed_options(task, chosen, names)]
    rivals = dict.fromkeys((BASELINE, advice.fixed, advice.decay, advice.controller))
    compare = ["dpilot", "compare", *own, "--population", "proxy", "--controllers", *rivals, "--seeds", "10"]
    if advice.verdict == VERDICTS[0]:
        clients, _ = advice.wanted()[VERDICTS[2]]
        more = typed_options(task, {**asdict(config), "clients": clients})
        return [shlex.join(compare), shlex.join(["dpilot", "advise", "--task", task, *more])]
    return [shlex.join(compare), shlex.join(["dpilot", "run", *own, "--controller", advice.controller])]


def _print(advice: Advice, commands: Sequence[str], shown: Console) -> None:
    config = advice.config
    cohort = "all" if config.sampling_rate == 1 else f"about {config.cohort:.3g}"
    shown.print(
        f"{config.method} on {config.dataset} with {config.model}: {config.clients:,} clients, {cohort} of them in "
        f"each of {config.rounds} rounds, epsilon {config.epsilon:.4g}"
    )
    grid = Grid(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, text in _lines(advice):
        grid.add_row(f"  {name}", text)
    shown.print(grid)
    rounds = {f"{one.rounds}{_as_set(one.rounds, config.rounds)}": one for one in advice.rounds}
    shown.print(_choices("rounds", rounds, advice.best_rounds).terminal())
    if advice.rates:
        own = config.sampling_rate
        rates = {f"{one.sampling_rate:g}{_as_set(one.sampling_rate, own)}": one for one in advice.rates}
        title = f"In {advice.best.rounds} rounds:"
        shown.print(_choices("sampling rate", rates, advice.best, title).terminal())
    shown.print(_controllers(advice).terminal())
    usable = advice.verdict != VERDICTS[0]
    shown.print(f"Next, on proxy clients and then {'for good' if usable else 'with as many clients as would do'}:")
    for command in commands:
        shown.print(f"  {command}", soft_wrap=True)


def _lines(advice: Advice) -> Iterator[tuple[str, str]]:
    """List what is said of the setting as it is, as (name, text)."""
    config, own, updates = advice.config, advice.own, advice.updates
    yield "epsilon holds for", basis_of(config)
    yield "delta", delta_warning(config.delta, config.clients) or delta_text(config.delta)
    yield "noise multiplier", f"{own.signal.noise_multiplier:.4g} in every round, equal rounds"
    yield (
        "updates",
        f"{updates.norm:.3g} long on random data, which is x; as far as {updates.step:.3g} gradients; "
        f"{updates.size:,} parameters, {updates.noised:,.0f} with noise",
    )
    yield (
        "signal to noise",
        f"{own.signal.expected_of_round:.3g} a round and {own.signal.of_run:.3g} the whole run, if the mean clipped "
        f"update is {own.signal.agreement:.2g} C long, as in proxy runs of digits where clients hold as few classes; "
        f"{own.signal.strength:.3g} if all clients agreed",
    )
    yield "verdict", f"{advice.verdict}: {_kept_text(advice)}"
    for verdict, (clients, epsilon) in advice.wanted().items():
        yield (
            f"{verdict} with",
            f"{clients:,} clients like these at this epsilon, or epsilon {epsilon:.3g} with these clients",
        )
    best = advice.best
    yield (
        "clip norm",
        f"{best.multiple * updates.norm:.3g} ({best.multiple:.2g}x) for {best.rounds} rounds: best clip norm × rounds "
        "is about constant",
    )
    if advice.found is not None:
        yield "rounds", _rounds_text(advice.found)
    yield "read", _read_text(config)


def _kept_text(advice: Advice) -> str:
    about = evidence_of_rule()
    return (
        f"about {100 * advice.kept:.0f} % of what training without noise gains over chance is kept "
        f"({100 * USABLE:.0f} % or more is called usable, less than {100 * MARGINAL:.0f} % not); the rule is off by "
        f"{100 * about['error']:.0f} points on the {about['runs']:,} proxy runs of digits that it was fitted to"
    )


def _rounds_text(found: RoundsFound) -> str:
    return (
        f"{found.rounds} took a search on the near page {found.page} rather than {found.own}, where they gained "
        f"{points(found.gain)} points over the best fixed clip norm; that goes before the rule, which knows no dataset"
    )


def _read_text(config: FederationConfig) -> str:
    if dataset_entry(config.dataset).shape:
        return "no sample of any client: shape, classes and size of the dataset are published"
    return f"of dataset {config.dataset} the images' shape, the number of classes and of samples; no sample is used"


def _as_set(value: float, own: float) -> str:
    return " (as set)" if value == own else ""


def _choices(name: str, choices: Mapping[str, Choice], best: Choice, title: str = "") -> Table:
    """Tabulate numbers of rounds, or sampling rates, by their text."""
    rows = [
        (
            value,
            f"{one.signal.noise_multiplier:.3g}",
            f"{one.signal.expected_of_round:.3g}",
            f"{one.signal.of_run:.3g}",
            f"{one.multiple:.2g}x",
            f"{100 * one.kept:.0f}",
            f"{one.work:,.0f}",
            "yes" if one is best else "",
        )
        for value, one in choices.items()
    ]
    headers = (
        name,
        "noise multiplier",
        "S/N of a round",
        "of the run",
        "clip norm",
        "kept, %",
        "client-rounds",
        "advised",
    )
    caption = (
        "kept: of the gain over chance that training without noise has, at that clip norm; advised: the least work "
        f"that keeps all but {100 * SPARED:.0f} points of the most, or what a search has found near it"
    )
    return Table(headers, tuple(rows), words=("advised",), title=title, caption=caption)


def _controllers(advice: Advice) -> Table:
    nearby = advice.nearby
    rows = [
        (
            gain.controller,
            points(gain.difference),
            str(gain.difference.pairs),
            _evidence_text(gain),
            "yes" if gain.controller == advice.controller else "",
        )
        for gain in nearby.gains
        if gain.difference is not None
    ]
    if advice.controller == advice.decay:
        rows.insert(0, (advice.decay, NONE, "0", "the rule above: a decay around its clip norm", "yes"))
    distance, what = nearby.nearest
    within = ", ".join(f"{name} ×{factor:g}" for name, factor in FACTORS.items())
    unknown = ", ".join(_families(nearby))
    if nearby.where:
        closest = f"the nearest is {nearby.where}, {100 * distance:.0f} % of that away, in {what}"
    else:
        closest = "no page is of this method, with about as many clients and such an epsilon"
    caption = (
        f"gain: points of final accuracy over '{BASELINE}', the task's own clip norm, on {len(nearby.found)} instances "
        f"of committed results with this method that are near: within {within}; {closest}; the nearest page comes "
        f"first, and only gains of one page are of the same runs"
        + (f"; no evidence near this setting for {unknown}" if unknown else "")
    )
    headers = ("controller", "gain", "pairs", "evidence", "advised")
    return Table(headers, tuple(rows), words=("evidence", "advised"), caption=caption)


def _families(nearby: Nearby) -> list[str]:
    """Name the kinds of controllers of which nothing is known near a setting."""
    known = {_family(gain) for gain in nearby.gains if gain.difference is not None}
    return [name for name in dict.fromkeys(map(_family, nearby.gains)) if name not in known]


def _family(gain: Gain) -> str:
    return gain.controller if is_pretrained(gain.controller) else gain.controller.partition(":")[0]


def _evidence_text(gain: Gain) -> str:
    remarks = [gain.page]
    remarks += ["tuned or trained on proxy clients"] if not gain.free else []
    remarks += ["sees exact figures of the clients"] if gain.raw else []
    return "; ".join(remarks)
