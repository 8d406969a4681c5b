"""Folders of runs and comparisons with a damaged file: read as far as they can be, or refused by its name."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from tests.experiments.records.stopped import interrupted_after
from tests.fuzz import edited, reseal

SMALL = ["--clients", "8", "--executor", "vectorized", "--quiet"]
COMMANDS = {
    "run": (["ledger", "{}"], ["export", "{}", "--to", "out"], ["run", "--resume", "{}"]),
    "stopped": (["ledger", "{}"], ["run", "--resume", "{}"]),
    "compared": (["export", "{}", "--to", "out"], ["compare", "--resume", "{}"]),
}
"""Folder -> commands that read it."""
FILES = {
    "run": ("charges.jsonl", "config.yaml", "ledger.json", "order.json", "rounds.csv", "summary.json"),
    "stopped": ("charges.jsonl", "ledger.json", "order.json", "state.json", "state-00002.safetensors"),
    "compared": ("comparison.json", "config.yaml", "order.json"),
}
EACH = 1
"""Damages of each file that are tried with each command; all of them in a long test."""
Damage = Callable[[bytes, random.Random], bytes | None]


def _put(content: bytes) -> Damage:
    return lambda _, __: content


def _edit(content: bytes, draw: random.Random, seal: bool = False) -> bytes:
    changed = edited(json.loads(content), draw)[1]
    return json.dumps(reseal(changed) if seal else changed).encode("utf-8", "surrogatepass")


def _byte(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    return lambda content, _: b"".join(change(content.splitlines(keepends=True)))


ANY: dict[str, Damage] = {
    "missing": lambda *_: None,
    "empty": _put(b""),
    "cut": lambda content, draw: content[: draw.randrange(1, len(content) - 1)],
    "doubled": lambda content, _: content * 2,
    "a byte": _byte,
    "no text": lambda content, _: content[:9] + b"\xff\xfe\0" + content[12:],
    **{repr(one): _put(one) for one in (b"null", b"[]", b"3", b'"x"', b"{}", b"NaN", b"- a\n", b"a: &x 1\nb: *x\n")},
}
OWN: dict[str, dict[str, Damage]] = {
    ".json": {
        "edited": _edit,
        "edited and sealed": lambda content, draw: _edit(content, draw, seal=True),
        "NaN": lambda content, _: content.replace(b": 1", b": NaN", 1),
        "named twice": lambda content, _: content.replace(b"{\n", b'{\n  "format": 1,\n  "format": 1,\n', 1),
    },
    ".yaml": {
        "a tab": lambda content, _: b"\t" + content,
        "a list": lambda content, _: content.replace(b": 8\n", b": [8]\n", 1),
        "named twice": _lines(lambda lines: [*lines, *lines[-1:]]),
    },
    ".jsonl": {},
    ".csv": {
        "a column twice": lambda content, _: content.replace(b"epsilon_left", b"epsilon_spent", 1),
        "a column less": _lines(lambda lines: [lines[0].rpartition(b",")[0] + b"\n", *lines[1:]]),
        "no number": lambda content, _: content.replace(b"\n1,", b"\n1,many", 1),
    },
    ".safetensors": {},
}
for _table in (OWN[".jsonl"], OWN[".csv"]):
    _table["a line twice"] = _lines(lambda lines: [*lines, lines[-1]])
    _table["a line less"] = _lines(lambda lines: [lines[0], *lines[2:]])
    _table["another order"] = _lines(lambda lines: [lines[0], *lines[:0:-1]])
    _table["no first line"] = _lines(lambda lines: lines[1:])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a run, of one that was interrupted, and of a comparison."""
    root = tmp_path_factory.mktemp("folders")

    def made(name: str, status: int, *command: str) -> None:
        assert main([*command, *SMALL, "--runs", str(root / "made")]) == status
        (folder,) = (root / "made").iterdir()
        folder.rename(root / name)

    made("run", 0, "run", "--rounds", "3", "--controller", "fixed:0.5")
    made("compared", 0, "compare", "--controllers", "fixed:0.5", "fixed:1", "--seeds", "2", "--rounds", "2")
    with interrupted_after(2):
        made("stopped", 130, "run", "--rounds", "5", "--controller", "random")
    return root


@dataclass(frozen=True)
class Trial:
    """A file of a folder, its damage, and the command that meets it."""

    folder: str
    file: str
    damage: str
    command: tuple[str, ...]


def _trials(each: int | None) -> Iterator[Trial]:
    draw = random.Random(11)
    for folder, files in FILES.items():
        for file in files:
            for command in COMMANDS[folder]:
                names = [*ANY, *OWN[Path(file).suffix]]
                for name in names if each is None else draw.sample(names, each):
                    yield Trial(folder, file, name, tuple(word.format("bad") for word in command))


def _content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _fault(trial: Trial, folders: Path, draw: random.Random, capsys: pytest.CaptureFixture[str]) -> str:
    """Damage a copy of a folder and have the command read it; returns what is wrong with the answer, "" for nothing."""
    for name in ("bad", "out"):
        shutil.rmtree(name, ignore_errors=True)
    bad = Path(shutil.copytree(folders / trial.folder, "bad"))
    content = {**ANY, **OWN[Path(trial.file).suffix]}[trial.damage]((bad / trial.file).read_bytes(), draw)
    if content is None:
        (bad / trial.file).unlink()
    else:
        (bad / trial.file).write_bytes(content)
    before = _content(bad)
    try:
        status: Any = main(list(trial.command))
    except (Exception, SystemExit) as error:  # whatever is not caught would be a traceback
        status = f"{type(error).__name__}: {error}"
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("dpilot: warning: ")]
    one_sentence = len(told) == 1 and told[0].startswith("dpilot: ") and told[0].endswith((".", "?"))
    wrong = {
        f"status {status}": status not in (0, 2),
        "half-written files are left": any(path.name.endswith(".tmp") for path in Path().rglob(".*")),
        "not one sentence": status == 2 and not one_sentence,
        "letters that a terminal obeys": not "".join(told).isprintable(),
        "it does not say where": status == 2 and "bad" not in "".join(told),
        "something was written": status == 2 and (_content(bad) != before or Path("out").exists()),
    }
    found = "; ".join(name for name, is_so in wrong.items() if is_so)
    return f"{trial}: {found}: {told}" if found else ""


@pytest.mark.parametrize("each", [EACH, pytest.param(None, marks=pytest.mark.long)], ids=["some", "all"])
def test_a_damaged_file_is_refused_in_one_sentence_or_does_no_harm(
    each: int | None,
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(5)
    faults = [fault for trial in _trials(each) if (fault := _fault(trial, folders, draw, capsys))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_put(b""), "holds 0 rounds, but summary.json beside it tells of 3."),
        (lambda content, _: content[:-1], "its last line is cut off."),
        (_put(b"null\n"), "its first line does not name the columns of rounds."),
        (OWN[".csv"]["a line twice"], "round 4 is not in line 5."),
        (OWN[".csv"]["a line less"], "round 1 is not in line 2."),
        (OWN[".csv"]["another order"], "round 1 is not in line 2."),
        (OWN[".csv"]["no first line"], "its first line does not name the columns of rounds."),
        (OWN[".csv"]["a column twice"], "its first line does not name the columns of rounds."),
        (OWN[".csv"]["a column less"], "round 1 is not in line 2."),
        (OWN[".csv"]["no number"], "could not convert string to float"),
        (_lines(lambda lines: lines[:-1]), "holds 2 rounds, but summary.json beside it tells of 3."),
    ],
)
def test_rounds_that_no_run_wrote_are_not_exported(
    damage: Damage,
    sentence: str,
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copytree(folders / "run", "bad")) / "rounds.csv"
    content = damage(path.read_bytes(), random.Random(0))
    assert content is not None
    path.write_bytes(content)
    assert main(["export", str(folders / "compared"), "bad", "--to", "out"]) == 2
    told = capsys.readouterr().err
    assert "The file 'bad/rounds.csv' " in told
    assert sentence in told
    assert not Path("out").exists()  # nothing of the sound folder either
