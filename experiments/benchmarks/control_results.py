"""Pages of finished comparisons under experiments/results/control, and the overview over all of them.

`python -m experiments.benchmarks.control_results runs/FOLDER ...` writes the pages of comparisons that were made by
`dpilot compare --config experiments/results/control/NAME.yaml` beside their definitions, and writes README.md and
overview.png anew from all tables NAME.csv there; without folders it does the latter alone.
"""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.records.comparison import Comparison
from experiments.reports.comparison import contents
from experiments.reports.comparison_csv import csv_text
from experiments.reports.drawing import COLOURS, GREY, STYLE, figure_png, wrapped
from experiments.reports.figures import overview_figure as comparison_figure
from experiments.reports.pages import markdown
from experiments.reports.tables import Table
from experiments.reports.words import NONE, points
from experiments.statistics.resampling import Difference, Scores, paired_difference
from fl_core.base.errors import InputError, require
from fl_core.base.files import write_bytes, write_text

RESULTS = Path("experiments/results/control")
OVERVIEW = "README.md"
FIGURE = "overview.png"
METHOD = "dp-fedavg"
BASELINE, PROBE = "best-fixed", "probe"
NOT_TOLD = "The figures are in report.html, beside this file."
IN_FOLDER = "comparison.json, and every run is a line of comparison.csv"
"""What a report says of the files beside it; a page has one table and one figure."""


@dataclass(frozen=True)
class Played:
    """A controller's final accuracies in one setting, from the lines of a table."""

    name: str
    label: str
    trained: bool
    searched: bool
    scores: Scores


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
    def learned(self) -> list[Played]:
        """Controllers that training made."""
        return [one for one in self.played.values() if one.trained]

    @property
    def best_tuned(self) -> Played:
        """The schedule with the highest mean here, of those that a search has tuned: chosen afterwards."""
        tuned = [one for one in self.played.values() if one.searched and not one.trained and one.name != PROBE]
        return max(tuned, key=lambda one: float(one.scores.values.mean()))

    def lead(self, name: str, over: str) -> Difference | None:
        """Lead of a controller over another on the same seeds; None where one of them did not play."""
        if name not in self.played or over not in self.played or name == over:
            return None
        return paired_difference(self.played[name].scores, self.played[over].scores)


def read_boards(tables: Iterable[Path]) -> list[Board]:
    """Read tables; those of one task, ε and number of clients are one board, and must have the same seeds.

    Tables of settings that differ from run to run, and of methods with knobs or models of their own, are left out: they
    have pages of their own.

    Raises:
        InputError: two tables of one setting have other seeds, or a setting lacks the best fixed clip norm.
    """
    boards: dict[tuple[str, float, int], Board] = {}
    for path in tables:
        lines = list(csv.DictReader(path.open(encoding="utf-8")))
        if any(line["instance"] or line["method"] != METHOD for line in lines):
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


# --- In words -----------------------------------------------------------------------------------------------------


def overview_table(boards: Sequence[Board]) -> Table:
    """Tabulate what learning and the probe gain: a row for each setting and learned controller."""
    rows = []
    for board in boards:
        best = board.best_tuned
        learned: list[Played | None] = [*board.learned] or [None]
        for one in learned:
            name = "" if one is None else one.name
            leads = [
                board.lead(who, over)
                for who, over in ((name, BASELINE), (name, best.name), (PROBE, BASELINE), (PROBE, best.name))
            ]
            cells = [NONE if found is None else points(found) for found in leads]
            seeds = f"{len(best.scores.pairs)}"
            rows.append((board.title, NONE if one is None else short_name(one), *cells, best.label, seeds))
    headers = (
        "Setting",
        "Learned",
        "Learned − best fixed",
        "Learned − best tuned",
        "Probe − best fixed",
        "Probe − best tuned",
        "The best tuned schedule",
        "Seeds",
    )
    return Table(headers, tuple(rows), words=("Learned", "The best tuned schedule"))


def short_name(played: Played) -> str:
    """Name a controller as it is typed, without the folder of its trainings."""
    kind, _, rest = played.name.partition(":")
    if not played.trained or "/" not in rest:
        return played.name
    trainings = f", {played.scores.trainings} trainings" if played.scores.trainings > 1 else ""
    folder = next((part for part in reversed(Path(rest).parts) if not re.search(r"seed|\*", part)), rest)
    return f"{kind} ({folder}{trainings})"


def leads_table(boards: Sequence[Board]) -> Table:
    """Tabulate the lead of every controller over the best fixed clip norm, in each setting."""
    kinds = list(dict.fromkeys(_kind(one) for board in boards for one in board.played.values() if one.name != BASELINE))
    rows = []
    for kind in kinds:
        cells = []
        for board in boards:
            found = [one for one in board.played.values() if _kind(one) == kind]
            lead = board.lead(found[0].name, BASELINE) if found else None
            cells.append(NONE if lead is None else points(lead))
        rows.append((kind, *cells))
    return Table(("Controller − best-fixed", *(board.title for board in boards)), tuple(rows))


def _kind(played: Played) -> str:
    """Name what is the same controller in every setting: trainings in different settings are."""
    return played.name.partition(":")[0] if "/" in played.name else played.name


def answer(boards: Sequence[Board]) -> list[str]:
    """Answer in three sentences when learned control beats what is free, from the numbers alone."""
    learned = [(board, one) for board in boards for one in board.learned]
    over_fixed = [(board, board.lead(one.name, BASELINE)) for board, one in learned]
    over_tuned = [(board, board.lead(one.name, board.best_tuned.name)) for board, one in learned]
    free = [(board, board.lead(PROBE, BASELINE)) for board in boards]
    free_tuned = [(board, board.lead(PROBE, board.best_tuned.name)) for board in boards]
    return [
        f"Learned control {_counted(over_fixed, 'the best fixed clip norm, which takes a search,')}.",
        f"It {_counted(over_tuned, 'the best tuned schedule, chosen with hindsight,')}.",
        f"The probe, which needs neither training nor search, {_counted(free, 'the best fixed clip norm')}, and "
        f"{_counted(free_tuned, 'the best tuned schedule')}{_unbeaten(free_tuned)}.",
    ]


def _unbeaten(leads: Sequence[tuple[Board, Difference | None]]) -> str:
    """Conclude that nothing is gained by tuning or training, where the probe loses nowhere."""
    known = [lead for _, lead in leads if lead is not None]
    lost = any(lead.sign < 0 for lead in known)
    return ": what is free is at or above what was searched for in every setting" if known and not lost else ""


def _counted(leads: Sequence[tuple[Board, Difference | None]], whom: str) -> str:
    """Say how often a controller beats another, by the intervals, and where it does or loses to it."""
    known = [(board.title, lead) for board, lead in leads if lead is not None]
    if not known:
        return f"was not compared with {whom}"
    told = {
        sign: "; ".join(f"{where}: {points(lead)}" for where, lead in known if lead.sign == sign) for sign in (1, -1)
    }
    won, lost = (sum(lead.sign == sign for _, lead in known) for sign in (1, -1))
    total = len(known)
    words = f"beats {whom} in {won} of {total} cases" + (f" ({told[1]})" if won else "")
    level = total - won - lost
    words += f", ties with it in {level}" if level else ""
    return words + (f", and loses to it in {lost} ({told[-1]})" if lost else "")


_HOW = (
    "Points of final global accuracy on the same held-out seeds, with 95 % bootstrap intervals over seeds and, for "
    "learned controllers, trainings; every controller spends the same ε, for its signals too. The best tuned schedule "
    "is the one with the highest mean on the held-out seeds themselves, which favours it, of all that a search tuned. "
    "Searches and trainings took place on proxy clients; the privacy that they would cost on clients that are to be "
    "protected is not in ε, and is on the pages."
)


def overview_text(boards: Sequence[Board], pages: Sequence[str]) -> str:
    """Write the overview as Markdown."""
    sentences = answer(boards)
    page_list = "\n".join(f"- [{name}]({name}.md): `dpilot compare --config {RESULTS / name}.yaml`" for name in pages)
    return (
        "\n\n".join(
            [
                "# When does learned control beat what is free?",
                *sentences,
                f"![Lead of each controller over the best fixed clip norm]({FIGURE})",
                "## Learning and probing against fixed clip norms and tuned schedules",
                overview_table(boards).markdown(),
                _HOW,
                "## Every controller against the best fixed clip norm",
                leads_table(boards).markdown(),
                "## Pages",
                page_list,
                "This page: `python -m experiments.benchmarks.control_results`, from the tables beside it.",
            ]
        )
        + "\n"
    )


def overview_figure(boards: Sequence[Board]) -> Figure:
    """Draw the lead of each controller over the best fixed clip norm, a panel for each setting."""
    kinds = list(dict.fromkeys(_kind(one) for board in boards for one in board.played.values() if one.name != BASELINE))
    columns = min(3, len(boards))
    rows = -(-len(boards) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.2 + 3.4 * columns, rows * (1.3 + 0.27 * len(kinds))), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for ax in axes.flat[len(boards) :]:
            ax.set_visible(False)
        for ax, board in zip(axes.flat, boards, strict=False):
            for place, kind in enumerate(kinds):
                own = [one for one in board.played.values() if _kind(one) == kind]
                lead = board.lead(own[0].name, BASELINE) if own else None
                if lead is None:
                    continue
                colour = (
                    COLOURS[3]
                    if own[0].trained
                    else COLOURS[2]
                    if kind == PROBE
                    else COLOURS[0]
                    if own[0].searched
                    else GREY
                )
                ax.plot([100 * end for end in lead.interval], [place, place], color=colour, linewidth=2.4)
                ax.plot([100 * lead.mean], [place], "o", color=colour, markersize=6, markeredgecolor="white")
            ax.axvline(0, color=GREY, linewidth=1)
            ax.set_title(board.title)
            ax.set_xlabel("points above best-fixed")
            ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            ax.set_yticks(range(len(kinds)), [wrapped(kind, 30) for kind in kinds])
            ax.set_ylim(len(kinds) - 0.5, -0.5)
        return figure


# --- Files --------------------------------------------------------------------------------------------------------


def publish(folder: Path, results: Path = RESULTS) -> str:
    """Write the page, table and figure of a finished comparison beside its definition; returns their name.

    Raises:
        InputError: the folder holds no comparison, or it was made by no definition.
    """
    comparison = Comparison.read(folder / "comparison.json")
    words = shlex.split(comparison.command)
    definition = Path(words[words.index("--config") + 1]) if "--config" in words[:-1] else None
    if definition is None:
        raise InputError(f"The comparison in '{folder}' was made by no definition: its command has no --config.")
    name = definition.stem
    shown = f"![Clip norms over the rounds, and the accuracy they lead to]({name}.png)"
    text = markdown(comparison, contents(comparison)).replace(NOT_TOLD, shown).replace(IN_FOLDER, f"{name}.csv")
    write_text(results / f"{name}.md", text)
    write_text(results / f"{name}.csv", csv_text(comparison))
    write_bytes(results / f"{name}.png", figure_png(comparison_figure(comparison)))
    return name


def write_overview(results: Path = RESULTS) -> None:
    """Write the overview and its figure from all tables of the results."""
    tables = sorted(results.glob("*.csv"))
    boards = read_boards(tables)
    require(bool(boards), f"The folder '{results}' holds no tables of comparisons.")
    write_text(results / OVERVIEW, overview_text(boards, [path.stem for path in tables]))
    write_bytes(results / FIGURE, figure_png(overview_figure(boards)))


def main() -> None:
    """Publish the folders that are named, and write the overview."""
    for folder in sys.argv[1:]:
        print(RESULTS / f"{publish(Path(folder))}.md")
    write_overview()
    print(RESULTS / OVERVIEW)


if __name__ == "__main__":
    main()
