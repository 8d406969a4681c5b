"""Code blocks of Markdown files, and the catalogues that running them may add to."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

import agents
import envs
import fl_core
import policies
from envs.relative_clip import RELATIVE_KNOBS

CATALOGUES: tuple[MutableMapping[str, Any], ...] = (
    agents.ALGORITHMS,
    agents.CURRICULA,
    envs.GENERATORS,
    envs.REWARDS,
    envs.TASKS,
    fl_core.ACCOUNTANTS,
    fl_core.DATASETS,
    fl_core.METRICS,
    fl_core.MECHANISMS,
    fl_core.METHODS,
    fl_core.MODELS,
    fl_core.PERSONALIZATIONS,
    fl_core.SPARSIFICATIONS,
    fl_core.TELEMETRY,
    fl_core.TERMS,
    policies.CONTROLLERS,
    RELATIVE_KNOBS,
    gym.registry,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the heading above it, and where it stands."""

    language: str
    heading: str
    code: str
    line: int


def blocks(path: Path, language: str) -> list[Block]:
    """Every fenced block of a language in a Markdown file, in order."""
    return [block for block in all_blocks(path) if block.language == language]


def all_blocks(path: Path) -> list[Block]:
    """Every fenced block of a Markdown file, in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text[: match.start()], flags=re.M | re.S), re.M)
        line = text[: match.start()].count("\n") + 1
        found.append(Block(match[1], headings[-1] if headings else "", match[2], line))
    return found


@contextmanager
def script(path: Path) -> Iterator[Callable[[Block], None]]:
    """Execute blocks one after another as parts of one script; tracebacks name the Markdown file and its line."""
    module = types.ModuleType(f"markdown_{path.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        yield lambda block: exec(compile("\n" * block.line + block.code, str(path), "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]


@contextmanager
def restored_catalogues() -> Iterator[None]:
    """Take out of the catalogues whatever is added meanwhile."""
    before = [dict(catalogue) for catalogue in CATALOGUES]
    try:
        yield
    finally:
        for catalogue, entries in zip(CATALOGUES, before, strict=True):
            for name in catalogue.keys() - entries.keys():
                del catalogue[name]
