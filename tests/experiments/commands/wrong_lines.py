"""Wrong command lines: for every option of every command, values that it cannot take, made from its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import tyro

from experiments.commands.catalog import COMMANDS
from experiments.commands.options import typed_name, with_extras
from experiments.commands.owners import AMBIGUOUS
from fl_core.base.text import printable

NEEDED = {
    "ledger": ["a-run"],
    "rank": ["a-run"],
    "export": ["a-run"],
    "import": ["model.onnx"],
    "paper": ["fedglp-adp-table1", "--dataset=digits", "--model=mlp", "--rounds=2"],
}
"""What a command needs before its other options are looked at; `laid_out` makes the files."""
HUGE = "9" * 400
NO_NUMBER = ("abc", "", ",,,", "nan", "1,5", "0x10", "[1]", "{a: b}", "1e", "\x1b[31m1", "½")
WRONG: Mapping[Any, tuple[str, ...]] = {
    int: (*NO_NUMBER, "1.5", "inf", "-inf", "1e308", "-1", "-1e308", HUGE, f"-{HUGE}", "0"),
    float: (*NO_NUMBER, "inf", "-inf", "1e308", "-1", "-1e-300", "-1e308", "1e-320", HUGE, "0"),
    bool: ("maybe", "", "1e308", "nan"),
    str: ("nosuchname", "", ",,,", "-1", "nan", "mine.py:", "nowhere.py:Thing", "a-file:x", "{}", "[/x]", "\x1b]0;x"),
    Path: ("a-file", "a-file/below", "x" * 5000),
}
"""By type of an option."""
UNTEXT = ("bad\udcff", "nul\0byte")
"""Values that no option takes."""
NO_FOLDER = ("nowhere", "a-file", "a-folder", "a-file/below", "x" * 5000, "broken.yaml")
OWN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("resume", "config", "file", "folders", "run"), NO_FOLDER),
    "page": ("a-folder", "a-file/below", "x" * 5000),
    "data-root": ("~nosuchuser/x",),
    "normalization": ("nowhere", "a-folder", "a-file"),
    "output": (),
    "keep-code": (),
    "name": ("../x", "a/b", ".", "..", "/x", "nosuchname/"),
    "paper.name": ("nosuchname", ",,,", "nan", "../x"),
    "paper.folder": ("a-file", "a-file/below", "x" * 5000),
    "clip-norm": tuple(one for one in (*NO_NUMBER, "inf", "1e308", "-1", "1e-320")),
}
"""Wrong values of options that take more, or less, than others of their type; some by command."""
TAKES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("seed", "first-seed", "first-draw", "local-epochs", "momentum", "telemetry-share", "bit-noise"),
            *(
                "evaluation-samples",
                "memory-limit-mib",
                "image-memory-mib",
                "timesteps",
                "learning-starts",
                "paper.rounds",
            ),
        ),
        ("0",),
    ),
    **dict.fromkeys(("gae-lambda", "ent-coef", "vf-coef", "exploration-noise"), ("0", "1e-320")),
    "momentum": ("0", "1e-320"),
    "weight-decay": ("0", "1e-320"),
    "log-std-init": ("0", "-1", "-1e-300", "1e-320"),
    "epsilon": ("inf", HUGE),
}
"""Values among the wrong ones that an option takes all the same."""


@dataclass(frozen=True)
class Line:
    """A wrong command line.

    Attributes:
        words: after `dpilot`.
        names: what its sentence has to name, one of them.
    """

    words: tuple[str, ...]
    names: tuple[str, ...]


def laid_out(folder: Path) -> None:
    """Make the files that the lines name."""
    (folder / "a-file").write_text("text\n")
    (folder / "a-folder").mkdir()
    (folder / "broken.yaml").write_text("a: [\n")
    (folder / "a-run").mkdir()


def lines() -> Iterator[Line]:
    """Make all wrong lines."""
    for command, entry in COMMANDS.items():
        for option, kind, default, by_position in options(with_extras(entry.load())):
            own = option.rpartition(".")[2]
            names = (own, own.replace("-", "_"), own.removesuffix("s"))
            if not by_position and kind is not bool and get_origin(kind) is not tuple:
                yield Line((command, *NEEDED.get(command, []), f"--{_whole(command, option)}"), names)
            for value in _wrong(command, option, kind, default):
                words = [value] if by_position else [f"--{_whole(command, option)}={value}"]
                needed = [] if by_position else NEEDED.get(command, [])
                yield Line((command, *needed, *words), (*names, printable(value)[:20]) if value else names)


def _wrong(command: str, option: str, kind: Any, default: Any) -> Iterator[str]:
    """List wrong values of an option."""
    own = option.rpartition(".")[2]
    plain = next((one for one in (kind, *get_args(kind)) if one in WRONG), str)
    found = next((OWN[name] for name in (f"{command}.{own}", own) if name in OWN), WRONG[plain])
    taken = next((TAKES[name] for name in (f"{command}.{own}", own) if name in TAKES), ())
    yield from (one for one in (*found, *UNTEXT) if one not in taken and not (one == "" and default in ("", ())))


def _whole(command: str, option: str) -> str:
    return f"federation.{option}" if command in ("train",) and option in AMBIGUOUS else option


def options(cls: type[Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """List the options of a command as (name, type, default, whether it is given by its position)."""
    hints, plain = get_type_hints(cls, include_extras=True), get_type_hints(cls)
    for one in fields(cls):
        kind = plain[one.name]
        if is_dataclass(kind):
            yield from options(kind)  # type: ignore[arg-type]
        else:
            by_position = tyro.conf.Positional in get_args(hints[one.name])
            yield typed_name(one.name, hints), kind, one.default, by_position
