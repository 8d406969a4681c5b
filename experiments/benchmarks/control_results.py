"""Pages of finished comparisons under experiments/results/control, and the overview over all of them.

`python -m experiments.benchmarks.control_results runs/FOLDER ...` writes the pages of comparisons that were made by
`dpilot compare --config experiments/results/control/NAME.yaml` beside their definitions, and writes README.md and
overview.png anew from all tables NAME.csv there; without folders it does the latter alone.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.control_boards import (
    BASELINE,
    PROBE,
    PROBE_ROUNDS,
    Board,
    Played,
    basis_sentence,
    kinds_of,
    overview_figure,
    read_boards,
)
from experiments.records.comparison import Comparison
from experiments.reports.comparison import contents
from experiments.reports.comparison_csv import csv_text
from experiments.reports.drawing import figure_png
from experiments.reports.figures import overview_figure as comparison_figure
from experiments.reports.pages import markdown
from experiments.reports.tables import Table
from experiments.reports.words import NONE, points, signed
from experiments.statistics.resampling import Difference
from fl_core.base.errors import InputError, require
from fl_core.base.files import write_bytes, write_text

RESULTS = Path("experiments/results/control")
OVERVIEW = "README.md"
FIGURE = "overview.png"
NOT_TOLD = "The figures are in report.html, beside this file."
IN_FOLDER = "comparison.json, and every run is a line of comparison.csv"
"""What a report says of the files beside it; a page has one table and one figure."""


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
    rows = []
    for kind in kinds_of(boards):
        cells = []
        for board in boards:
            found = [one for one in board.played.values() if one.kind == kind]
            lead = board.lead(found[0].name, BASELINE) if found else None
            cells.append(NONE if lead is None else points(lead))
        rows.append((kind, *cells))
    return Table(("Controller − best-fixed", *(board.title for board in boards)), tuple(rows))


def answer(boards: Sequence[Board]) -> list[str]:
    """Answer in four sentences when learned control beats what is free, from the numbers alone."""
    learned = [(board, one) for board in boards for one in board.learned]
    over_fixed = [(f"{one.kind} on {board.title}", board.lead(one.name, BASELINE)) for board, one in learned]
    over_tuned = [
        (f"{one.kind} on {board.title}", board.lead(one.name, board.best_tuned.name)) for board, one in learned
    ]
    free = [(board.title, board.lead(PROBE, BASELINE)) for board in boards]
    free_tuned = [(board.title, board.lead(PROBE, board.best_tuned.name)) for board in boards]
    longer = [(board.title, board.lead(PROBE_ROUNDS, BASELINE)) for board in boards]
    longer_tuned = [(board.title, board.lead(PROBE_ROUNDS, board.best_tuned.name)) for board in boards]
    return [
        f"Learned control {_counted(over_fixed, 'the best fixed clip norm, which takes a search,')}.",
        f"It {_counted(over_tuned, 'the best tuned schedule, chosen with hindsight,')}{_average(over_tuned)}.",
        f"The probe, which needs neither training nor search, {_counted(free, 'the best fixed clip norm')}, and "
        f"{_counted(free_tuned, 'the best tuned schedule')}{_average(free_tuned)}.",
        f"The probe for a number of rounds that was searched {_counted(longer, 'the best fixed clip norm')}, and "
        f"{_counted(longer_tuned, 'the best tuned schedule')}{_average(longer_tuned)}.",
    ]


def _average(leads: Sequence[tuple[str, Difference | None]]) -> str:
    """Tell the mean of the leads, which says more than ties do: an interval that contains zero proves no equality."""
    known = [lead.mean for _, lead in leads if lead is not None]
    return f"; its lead over it is {signed(sum(known) / len(known))} points on average" if known else ""


def _counted(leads: Sequence[tuple[str, Difference | None]], whom: str) -> str:
    """Say how often a controller beats another, by the intervals, and where it does or loses to it."""
    known = [(where, lead) for where, lead in leads if lead is not None]
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
    "Trainings on digits act zero-shot elsewhere; a pretrained controller is one training, so that its interval "
    "does not contain the variation between trainings. "
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
                f"{_HOW} {basis_sentence(boards)}",
                "## Every controller against the best fixed clip norm",
                leads_table(boards).markdown(),
                "## Pages",
                page_list,
                "This page: `python -m experiments.benchmarks.control_results`, from the tables beside it.",
            ]
        )
        + "\n"
    )


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
