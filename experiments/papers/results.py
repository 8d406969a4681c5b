"""Results of the finished cells of a table, beside the printed numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.papers.cell_records import find_record
from experiments.papers.cells import NO_NOISE, Cell
from experiments.papers.measures import MEASURES, Curve, mean_of
from experiments.papers.tables import Block, PaperTable
from experiments.records.folder import write_csv
from fl_core.base.files import spelled_out, write_json

RESULT = "result.json"
OVERALL = "all"
"""Name of the column for the mean over the columns."""


@dataclass(frozen=True)
class Number:
    """One of our numbers, beside the printed one.

    Attributes:
        row, column, guarantee: where it belongs.
        printed: the paper's; None where it prints none.
        mean, spread: over seeds; the mean is None where a run has no value, the standard deviation also for one seed.
        above: bound that the mean is above, where a run did not reach its target; else None.
        reason: why there is no mean; else "".
        seeds: how many there are.
        diverged: how many of them ended early, with a model that is not finite.
        tests: accuracy in percent under every test.
        claimed, certified, updates_only, uploads_view, at_small_delta: ε, as in `PrivacyReport`.
        uncovered: what is given away without noise.
        adaptive: whether a controller chose noise from what was released.
        basis, uploads_basis: what the certified ε and `uploads_view` rest on; "" in records from before it was written
            down.
        uplink_bytes: per client and round.
        seconds, seconds_per_round: per run, and per round of it.
    """

    row: str
    column: str
    guarantee: str
    printed: float | None
    mean: float | None
    spread: float | None
    above: float | None
    reason: str
    seeds: int
    diverged: int
    tests: Mapping[str, float]
    claimed: float
    certified: float | None
    updates_only: float
    uploads_view: float | None
    at_small_delta: float | None
    uncovered: tuple[str, ...]
    uplink_bytes: float
    seconds: float
    seconds_per_round: float
    adaptive: bool = False
    basis: str = ""
    uploads_basis: str = ""


Place = tuple[str, str, str]
"""Row, column and guarantee of a number."""


@dataclass(frozen=True)
class BlockResult:
    """Results of a block.

    Attributes:
        block: the paper's side.
        settings: those that every run of the block shares.
        substitute_for: the paper's dataset, where another has taken its place; else "".
        numbers: those that at least one finished cell stands behind.
        code: versions of the code that ran them.
        curves: place -> seed -> the measure after every round, where it was measured and is a curve.
    """

    block: Block
    settings: Mapping[str, Any]
    substitute_for: str
    numbers: tuple[Number, ...]
    code: tuple[str, ...] = ()
    curves: Mapping[Place, Mapping[int, Curve]] = field(default_factory=dict)

    @property
    def guarantees(self) -> tuple[str, ...]:
        """Guarantees that there are numbers for, and `NO_NOISE` behind them."""
        found = dict.fromkeys(number.guarantee for number in self.numbers)
        return tuple(sorted(found, key=NO_NOISE.__eq__))

    @property
    def compared(self) -> tuple[str, ...]:
        """Guarantees under which methods are compared: what adds no noise is beside the others under each."""
        return tuple(one for one in self.guarantees if one != NO_NOISE) or self.guarantees

    def at(self, row: str, column: str, guarantee: str) -> Number | None:
        """Find the number at a place; None where there is none."""
        place = (row, column, guarantee)
        return next((one for one in self.numbers if (one.row, one.column, one.guarantee) == place), None)

    def find(self, row: str, column: str, guarantee: str) -> Number | None:
        """Find the number that counts under a guarantee, without noise the only one; None where there is none."""
        return self.at(row, column, guarantee) or self.at(row, column, NO_NOISE)

    def correlations(self, guarantee: str) -> dict[str, float | None]:
        """Correlate our order of the rows with the printed one (Spearman's ρ), per column and for the columns' means.

        None where fewer than two rows have both numbers, or all of a side are equal.
        """
        columns = list(self.block.columns)
        found = {column: rank_correlation(self._pairs(guarantee, [column])) for column in columns}
        return found | {OVERALL: rank_correlation(self._pairs(guarantee, self._common(guarantee)))}

    def column_correlations(self, guarantee: str) -> dict[str, float | None]:
        """Correlate our order of the columns with the printed one within each row: a table may vary one parameter."""
        found = {}
        for row in self.block.rows:
            numbers = [self.find(row, column, guarantee) for column in self.block.columns]
            found[row] = rank_correlation(pair for one in numbers if (pair := _pair(one)))
        return found

    def _common(self, guarantee: str) -> list[str]:
        """Columns in which every row with any of our numbers has both numbers."""
        rows = {one.row for one in self.numbers if one.guarantee in (guarantee, NO_NOISE) and _pair(one)}
        return [c for c in self.block.columns if len(self._rows(guarantee, c)) == len(rows)]

    def _rows(self, guarantee: str, column: str) -> list[Number]:
        found = [self.find(row, column, guarantee) for row in self.block.rows]
        return [one for one in found if one is not None and _pair(one)]

    def _pairs(self, guarantee: str, columns: Sequence[str]) -> list[tuple[float, float]]:
        """Our mean and the printed mean of each row over some columns."""
        pairs = []
        for row in self.block.rows:
            numbers = [self.find(row, column, guarantee) for column in columns]
            both = [pair for one in numbers if (pair := _pair(one))]
            if both and len(both) == len(columns):
                pairs.append((float(np.mean([ours for ours, _ in both])), float(np.mean([p for _, p in both]))))
        return pairs


def _pair(number: Number | None) -> tuple[float, float] | None:
    """Our mean and the printed number; None unless there are both."""
    if number is None or number.mean is None or number.printed is None:
        return None
    return number.mean, number.printed


def rank_correlation(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Spearman's ρ of pairs of numbers; None where it is not defined."""
    known = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if len({one for one, _ in known}) < 2 or len({other for _, other in known}) < 2:
        return None
    found = float(spearmanr([one for one, _ in known], [other for _, other in known]).statistic)
    return round(found, 6)  # without the last digits' noise: equal orders are 1


def gather(table: PaperTable, cells: Sequence[Cell], folder: Path) -> list[BlockResult]:
    """Gather the results of the cells that have a usable record, block by block."""
    found = []
    for block in table.blocks.values():
        own = [cell for cell in cells if cell.block == block.name]
        if not own:
            continue
        numbers, code, curves = [], set(), {}
        for place in dict.fromkeys((cell.row, cell.column, cell.guarantee) for cell in own):
            there = {one.seed: one for one in own if (one.row, one.column, one.guarantee) == place}
            records = {seed: record for seed, one in there.items() if (record := find_record(one, folder)) is not None}
            code |= {str(record["asked"]["code"]) for record in records.values()}
            if records:
                numbers.append(_number(block, place, list(records.values())))
            if records and own[0].setting.spec.evaluate_every_round and MEASURES[block.measure].after:
                curves[place] = {seed: MEASURES[block.measure].curve(record) for seed, record in records.items()}
        found.append(
            BlockResult(
                block=block,
                settings=_shared([cell.settings for cell in own]),
                substitute_for=own[0].substitute_for,
                numbers=tuple(numbers),
                code=tuple(sorted(code)),
                curves=curves,
            )
        )
    return found


def _shared(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings with the same value in all of them."""
    return {name: value for name, value in settings[0].items() if all(one[name] == value for one in settings)}


def _number(block: Block, place: Place, records: Sequence[Mapping[str, Any]]) -> Number:
    row, column, guarantee = place
    target = block.targets.get(column, math.nan)
    readings = [MEASURES[block.measure].read(record, target) for record in records]
    whole, values = mean_of(readings), [one.value for one in readings if one.value is not None]
    privacy = [record["privacy"] for record in records]
    return Number(
        row=row,
        column=column,
        guarantee=guarantee,
        printed=block.number(row, column),
        mean=whole.value,
        spread=float(np.std(values, ddof=1)) if whole.value is not None and len(values) > 1 else None,
        above=whole.above,
        reason=whole.reason,
        seeds=len(records),
        diverged=sum(bool(record["diverged"]) for record in records),
        tests={mode: 100 * float(np.mean([one["tests"][mode] for one in records])) for mode in records[0]["tests"]},
        claimed=max(float(one["spent"]) for one in privacy),
        certified=_largest(one["certified"] for one in privacy),
        updates_only=max(float(one["updates_only"]) for one in privacy),
        uploads_view=_largest(one["uploads_view"] for one in privacy),
        at_small_delta=_largest(one["at_small_delta"] for one in privacy),
        uncovered=tuple(dict.fromkeys(phrase for one in privacy for phrase in one["uncovered"])),
        adaptive=any(one.get("adaptive", False) for one in privacy),
        basis=" / ".join(dict.fromkeys(one.get("basis", "") for one in privacy)),
        uploads_basis=" / ".join(dict.fromkeys(one.get("uploads_basis", "") for one in privacy)),
        uplink_bytes=float(np.mean([record["uplink_bytes"] for record in records])),
        seconds=float(np.mean([record["seconds"] for record in records])),
        seconds_per_round=float(np.mean([record["seconds_per_round"] for record in records])),
    )


def _largest(values: Iterable[Any]) -> float | None:
    """Largest ε of several runs; None if one of them has none."""
    known = list(values)
    return None if any(value is None for value in known) else max(map(float, known))


def write_data(table: PaperTable, results: Sequence[BlockResult], folder: Path) -> None:
    """Write result.json and result.csv, and curves.csv where accuracy was measured after every round."""
    write_json(folder / RESULT, table_json(table, results))
    rows = []
    for result in results:
        for number in result.numbers:
            flat = spelled_out(asdict(number)) | {"uncovered": "; ".join(number.uncovered)}
            tests = {f"accuracy_{mode}": value for mode, value in flat.pop("tests").items()}
            rows.append({"block": result.block.name, "dataset": result.settings.get("dataset", ""), **flat, **tests})
    write_csv(folder / "result.csv", rows)
    lines = [line for result in results for line in _curve_lines(result)]
    if lines:
        write_csv(folder / "curves.csv", lines)


def _curve_lines(result: BlockResult) -> Iterator[dict[str, Any]]:
    """Yield a line for each round of each run that was measured after every round."""
    for (row, column, guarantee), runs in result.curves.items():
        for seed, curve in runs.items():
            for number, value in zip(curve.rounds, curve.values, strict=True):
                place = {"row": row, "column": column, "guarantee": guarantee, "seed": seed}
                yield {"block": result.block.name, **place, "round": number, result.block.measure: value}


def table_json(table: PaperTable, results: Sequence[BlockResult]) -> dict[str, Any]:
    """Collect the results as JSON-able values."""
    blocks = {result.block.name: _block_json(result) for result in results}
    head = {"table": table.name, "paper": table.paper, "where": table.where, "title": table.title}
    return {**head, "blocks": blocks, "open": table.open, "notes": table.notes}


def _block_json(result: BlockResult) -> dict[str, Any]:
    return {
        "measure": MEASURES[result.block.measure].summary,
        "targets": dict(result.block.targets),
        "substitute_for": result.substitute_for,
        "code": list(result.code),
        "settings": spelled_out(result.settings),
        "numbers": [spelled_out(asdict(number)) for number in result.numbers],
        "rank_correlations": {guarantee: result.correlations(guarantee) for guarantee in result.compared},
        "rank_correlations_of_columns": {
            guarantee: result.column_correlations(guarantee) for guarantee in result.compared
        },
    }
