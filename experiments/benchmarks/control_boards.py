"""Final accuracies of all controllers that played a setting, read from the tables of comparisons and drawn together."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from envs.tasks import find_task
from experiments.contenders.specs import AT, TUNED
from experiments.reports.drawing import COLOURS, GREY, STYLE, footnote, wrapped
from experiments.statistics.resampling import Difference, Scores, paired_difference
from fl_core.base.errors import require
from fl_core.run.basis import basis_of

METHOD = "dp-fedavg"
BASELINE, PROBE = "best-fixed", "probe"
PROBE_ROUNDS = f"{PROBE}{AT}{TUNED}"
"""The probe for a number of rounds that was searched."""
GROUPS = {"searched for": COLOURS[0], "trained": COLOURS[3], PROBE: COLOURS[2], "neither": GREY}
"""What it takes to make a controller -> colour."""


@dataclass(frozen=True)
class Played:
    """A controller's final accuracies in one setting, from the lines of a table."""

    name: str
    label: str
    trained: bool
    searched: bool
    scores: Scores

    @property
    def kind(self) -> str:
        """Name of what is the same controller in every setting: trainings of one algorithm are."""
        return self.name.partition(":")[0] if "/" in self.name else self.name

    @property
    def group(self) -> str:
        """What it took to make it, one of `GROUPS`."""
        if self.trained:
            return "trained"
        return PROBE if self.probes else "searched for" if self.searched else "neither"

    @property
    def probes(self) -> bool:
        """True for the probe, whatever its number of rounds."""
        return self.name.partition(AT)[0] == PROBE


@dataclass
class Board:
    """All controllers that played one task at one ε on the same seeds.

    Attributes:
        task, epsilon: the setting.
        pages: names of the tables.
        played: by name of the controller.
    """

    task: str
    epsilon: float
    clients: int
    pages: list[str] = field(default_factory=list)
    played: dict[str, Played] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Task and ε in words."""
        return f"{self.task}, ε = {self.epsilon:g}"

    @property
    def basis(self) -> str:
        """Unit, adjacency, observer and amplification of its ε."""
        return basis_of(find_task(self.task, epsilon=self.epsilon, clients=self.clients).federation)

    @property
    def learned(self) -> list[Played]:
        """Controllers that training made."""
        return [one for one in self.played.values() if one.trained]

    @property
    def best_tuned(self) -> Played:
        """The schedule with the highest mean here, of those that a search has tuned: chosen afterwards."""
        tuned = [one for one in self.played.values() if one.searched and not one.trained and not one.probes]
        return max(tuned, key=lambda one: float(one.scores.values.mean()))

    def lead(self, name: str, over: str) -> Difference | None:
        """Lead of a controller over another on the same seeds; None where one of them did not play."""
        if name not in self.played or over not in self.played or name == over:
            return None
        return paired_difference(self.played[name].scores, self.played[over].scores)


def read_boards(tables: Iterable[Path]) -> list[Board]:
    """Read tables; those of one task, ε and number of clients are one board, and must have the same seeds.

    They are called by their setting, as digits-7.5.csv and digits-7.5-more.csv. All others are left out, as are methods
    with knobs or models of their own: they have pages of their own.

    Raises:
        InputError: two tables of one setting have other seeds, or a setting lacks the best fixed clip norm.
    """
    boards: dict[tuple[str, float, int], Board] = {}
    for path in sorted(tables, key=lambda path: path.stem):
        lines = list(csv.DictReader(path.open(encoding="utf-8")))
        if not _belongs(path.stem, lines):
            continue
        for line in lines:
            key = (line["task"], float(line["epsilon"]), int(line["clients"]))
            board = boards.setdefault(key, Board(*key))
            if path.stem not in board.pages:
                board.pages.append(path.stem)
        for name in dict.fromkeys(line["controller"] for line in lines if line["role"] == "controller"):
            own = [line for line in lines if line["controller"] == name and line["role"] == "controller"]
            board.played.setdefault(name, _played(own))
    for board in boards.values():
        require(BASELINE in board.played, f"The tables of {board.title} lack the controller '{BASELINE}'.")
        seeds = {one.scores.pairs for one in board.played.values()}
        require(len(seeds) == 1, f"The tables {', '.join(board.pages)} of {board.title} have different seeds.")
    return sorted(boards.values(), key=lambda board: (_ORDER.get(board.task, len(_ORDER)), -board.epsilon))


_ORDER = {"digits": 0, "mnist5k": 1, "fashion-mnist": 2}


def _belongs(stem: str, lines: Sequence[dict[str, str]]) -> bool:
    """Return True for a table that is named after the one setting it is of."""
    if not lines or any(line["instance"] or line["method"] != METHOD for line in lines):
        return False
    setting = f"{lines[0]['task']}-{float(lines[0]['epsilon']):g}"
    return stem == setting or stem.startswith(f"{setting}-")


def _played(lines: Sequence[dict[str, str]]) -> Played:
    """Collect the runs of one controller in one setting."""
    first = lines[0]
    by_pair: dict[tuple[str, int], list[float]] = {}
    for line in sorted(lines, key=lambda one: (int(one["seed"]), one["training"])):
        by_pair.setdefault(("", int(line["seed"])), []).append(float(line["global_accuracy"]))
    return Played(
        name=first["controller"],
        label=first["label"],
        trained=first["training_rounds"] != "0",
        searched=first["search_rounds"] != "0",
        scores=Scores(by_pair),
    )


def kinds_of(boards: Sequence[Board]) -> list[str]:
    """List the kinds of the controllers in order of appearance, without the one that they are measured against."""
    return list(dict.fromkeys(one.kind for board in boards for one in board.played.values() if one.name != BASELINE))


def basis_sentence(boards: Sequence[Board]) -> str:
    """Say what the ε of the boards rests on."""
    titles: dict[str, list[str]] = {}
    for board in boards:
        titles.setdefault(board.basis, []).append(board.title)
    if len(titles) == 1:
        return f"ε holds for {boards[0].basis}."
    told = [f"{', '.join(names)}: {basis}" for basis, names in titles.items()]
    return f"What ε holds for: {'; '.join(told)}."


def overview_figure(boards: Sequence[Board]) -> Figure:
    """Draw the lead of each controller over the best fixed clip norm, a panel for each setting."""
    kinds = kinds_of(boards)
    columns = min(3, len(boards))
    rows = -(-len(boards) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.2 + 3.4 * columns, 0.4 + rows * (1.3 + 0.27 * len(kinds))), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for ax in axes.flat[len(boards) :]:
            ax.set_visible(False)
        for ax, board in zip(axes.flat, boards, strict=False):
            _draw(ax, board, kinds)
        keys = [Line2D([], [], color=colour, marker="o", markeredgecolor="white") for colour in GROUPS.values()]
        figure.legend(keys, list(GROUPS), loc="outside lower center", ncols=len(GROUPS))
        return footnote(figure, basis_sentence(boards))


def _draw(ax: Axes, board: Board, kinds: Sequence[str]) -> None:
    """Draw one setting: a line of each kind of controller, those that did not play left out."""
    for one in board.played.values():
        lead = board.lead(one.name, BASELINE)
        if lead is not None:
            place, colour = kinds.index(one.kind), GROUPS[one.group]
            ax.plot([100 * end for end in lead.interval], [place, place], color=colour, linewidth=2.4)
            ax.plot([100 * lead.mean], [place], "o", color=colour, markersize=6, markeredgecolor="white")
    ax.axvline(0, color=GREY, linewidth=1)
    ax.set_title(board.title)
    ax.set_xlabel(f"points above {BASELINE}")
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.set_yticks(range(len(kinds)), [wrapped(kind, 30) for kind in kinds])
    ax.set_ylim(len(kinds) - 0.5, -0.5)
