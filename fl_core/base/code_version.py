"""The version of the code that a result comes from, by which a record is reused or not.

It is a digest of the source of every package that can change a result, so nobody has to remember to raise a number:
a default, a formula or a random stream that is changed gives another version by itself. Comments, docstrings and layout
leave it as it is, because what is digested is the syntax tree. Any other edit counts, however harmless it looks: a
message, a method added beside the others. Rerunning costs time; a table mixed from two programs is wrong, and nobody
sees it. Who knows better says so (`dpilot paper --keep-code`). Libraries and the Python version's own arithmetic are
left out, as devices are: they change roundings.
"""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

RESULT_PACKAGES = ("fl_core", "envs", "policies", "agents")
"""Packages whose code can change the result of a run or a training."""


@lru_cache(maxsize=16)
def code_version(*modules: str) -> str:
    """Digest the source of `RESULT_PACKAGES` to twelve hexadecimal digits.

    Args:
        *modules: names of further packages or modules whose source is part of it.
    """
    digest = _result_digest(RESULT_PACKAGES).copy()
    for name in modules:
        _add_sources(digest, name)
    return digest.hexdigest()[:12]


@lru_cache(maxsize=1)
def _result_digest(packages: tuple[str, ...]) -> hashlib._Hash:
    """Digest the source of packages, once in a process: it takes a second."""
    digest = hashlib.sha256()
    for name in packages:
        _add_sources(digest, name)
    return digest


def _add_sources(digest: hashlib._Hash, name: str) -> None:
    for place, path in _sources(name):
        digest.update(f"{place}: {program_text(path.read_bytes())}\n".encode())


def program_text(source: bytes | str) -> str:
    """Dump the syntax tree of a module without docstrings; equal for sources with the same statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            # Docstrings, and the strings below attributes, which are documentation as well.
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    constant = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def _sources(name: str) -> list[tuple[str, Path]]:
    """List the source files of a package or module by their place in it, in an order that is the same everywhere."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no source of '{name}'")
    if spec.submodule_search_locations is None:
        return [(name, Path(spec.origin))]
    root = Path(spec.origin).parent
    return sorted((f"{name}/{path.relative_to(root).as_posix()}", path) for path in root.rglob("*.py"))
