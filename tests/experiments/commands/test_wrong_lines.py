"""Whatever is typed wrong is refused in one sentence that names it, before any work, and leaves nothing."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.commands.catalog import COMMANDS
from fl_core.run.federation import Federation
from tests.experiments.commands.wrong_lines import Line, laid_out, lines

EVERY_LINE = list(lines())
EACH = 16


class WorkBegan(BaseException):
    """A round was asked for, though the command line is wrong."""


def _some() -> list[Line]:
    """Draw a few lines of each command."""
    draw, by_command = random.Random(7), defaultdict[str, list[Line]](list)
    for line in EVERY_LINE:
        by_command[line.words[0]].append(line)
    return [line for own in by_command.values() for line in draw.sample(own, EACH)]


def _state(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


def _fault(line: Line, capsys: pytest.CaptureFixture[str]) -> str:
    """Type a wrong line; returns what is wrong with the answer, "" for nothing."""
    try:
        status: Any = main(line.words)
    except (Exception, SystemExit, WorkBegan) as error:  # whatever is not caught would be a traceback
        status = f"{type(error).__name__}: {error}"
    out, err = capsys.readouterr()
    told = [one for one in err.strip().splitlines() if not one.startswith("dpilot: warning: ")]
    wrong = {
        f"status {status}": status != 2,
        f"output {out[:100]!r}": bool(out),
        "not one sentence": len(told) != 1 or not told[0].startswith("dpilot: ") or not told[0].endswith((".", "?")),
        "letters that a terminal obeys": not all(one.isprintable() for one in told),
        f"none of {line.names} is named": not any(name.lower() in err.lower() for name in line.names),
    }
    found = "; ".join(name for name, is_so in wrong.items() if is_so)
    return f"{[word[:80] for word in line.words]}: {found}: {err[:300]}" if found else ""


@pytest.mark.parametrize("tried", [_some(), pytest.param(EVERY_LINE, marks=pytest.mark.long)], ids=["some", "all"])
def test_wrong_command_lines_are_refused_in_one_sentence_before_any_work(
    tried: list[Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun(*_: Any, **__: Any) -> None:
        raise WorkBegan

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Federation, "run_round", begun)
    laid_out(tmp_path)
    before, faults = _state(tmp_path), []
    for line in tried:
        fault = _fault(line, capsys)
        if _state(tmp_path) != before:
            fault, before = f"{fault} {list(line.words)} has left something behind", _state(tmp_path)
        faults += [fault] if fault else []
    assert not faults, "\n".join(faults)


def test_every_command_and_thousands_of_lines_are_tried() -> None:
    assert {line.words[0] for line in EVERY_LINE} == set(COMMANDS)
    assert len(EVERY_LINE) > 3000
    assert len(_some()) == EACH * len(COMMANDS)
