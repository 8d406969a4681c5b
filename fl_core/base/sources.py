"""Code of users: the Python files and installed modules that parts are named in, and digests of what was read."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fl_core.base.errors import InputError, first_line, require, unknown_name

OUR_PACKAGES = ("fl_core", "envs", "policies", "agents", "experiments")
_SPEC = re.compile(r"(?P<place>.+?\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)(:(?P<rest>.*))?")


@dataclass(frozen=True)
class Origin:
    """Origin of a part.

    Attributes:
        words: for lists: `built in`, `file mine.py`, `package NAME 1.0`, `registered` or `given`.
        file: the file that it was read from, as it was named; empty where there is none.
        sha256: digest of that file, or of the given arrays or weights; empty where there is neither.
    """

    words: str
    file: str = ""
    sha256: str = ""

    @property
    def built_in(self) -> bool:
        """True for a part of this project."""
        return self.words == "built in"

    def record(self) -> dict[str, str]:
        """Return it as JSON-able values: `from`, and `file` and `sha256` where it has them."""
        entries = {"from": self.words, "file": self.file, "sha256": self.sha256}
        return {name: value for name, value in entries.items() if value}


BUILT_IN = Origin("built in")


def split_spec(text: str) -> tuple[str, str, str] | None:
    """Split `mine.py:Name`, `package.module:Name` or either with `:REST`; None for a text of another form.

    Examples:
        >>> split_spec("mine.py:MyClip:0.5")
        ('mine.py', 'MyClip', '0.5')
        >>> split_spec("digits")
    """
    match = _SPEC.fullmatch(text.strip())
    return None if match is None else (match["place"], match["name"], match["rest"] or "")


def is_code(place: str) -> bool:
    """Return True for a file's path, a dotted name or that of an installed module; nothing is imported."""
    return place.endswith(".py") or "." in place or place in sys.modules or importlib.util.find_spec(place) is not None


def file_sha256(path: Path) -> str:
    """Digest a file's bytes, or a folder's files with their names; kept until a file's time or size changes.

    Raises:
        InputError: it cannot be read.
    """
    try:
        if not path.is_dir():
            status = path.stat()
            return _digest(path.absolute(), status.st_mtime_ns, status.st_size)
        files = sorted(one for one in path.rglob("*") if one.is_file())
        whole = hashlib.sha256()
        for one in files:
            whole.update(f"{one.relative_to(path).as_posix()}: {file_sha256(one)}\n".encode())
        return whole.hexdigest()
    except OSError as error:
        raise InputError(f"The file '{path}' could not be read: {error.strerror or error}.") from error


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_named(place: str, name: str, who: str) -> tuple[Any, Origin]:
    """Import a file or module, and find a name in it.

    Args:
        place: path of a file that ends in .py, or a module's dotted name.
        name: of what is wanted in it, with dots for what is inside a class.
        who: what asks, for error messages: "model 'mine.py:Net'".

    Raises:
        InputError: there is no such file, module or name, or importing it raises.
    """
    module, origin = _load_file(Path(place), who) if place.endswith(".py") else _load_module(place, who)
    found: Any = module
    for part in name.split("."):
        names = [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
        if not hasattr(found, part):
            raise InputError(f"{who}: {place} has no such name; {_hint(part, names)}")
        found = getattr(found, part)
    return found, origin


def _hint(name: str, names: list[str]) -> str:
    if not names:
        return "it defines no name at all."
    return str(unknown_name("name", name, names)).partition("; ")[2]


_files: dict[tuple[Path, str], ModuleType] = {}


def file_modules() -> list[ModuleType]:
    """Return the modules that were made of users' files; another process cannot import them by their names."""
    return list(_files.values())


def _load_file(path: Path, who: str) -> tuple[ModuleType, Origin]:
    """Import a Python file by its path; the digest is that of the very bytes that are executed."""
    require(os.path.isfile(path), f"{who}: there is no file '{path}'.")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"{who}: '{path}' could not be read: {error.strerror or error}.") from error
    sha256 = hashlib.sha256(source).hexdigest()
    key = (path.resolve(), sha256)
    if key not in _files:
        _files[key] = _execute(path, source, sha256, who)
    return _files[key], Origin(f"file {path}", str(path), sha256)


def _execute(path: Path, source: bytes, sha256: str, who: str) -> ModuleType:
    module = ModuleType(f"dpilot_own_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}_{sha256[:12]}")
    module.__file__ = str(path.resolve())
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # for what it imports from beside it; last, so that it hides nothing
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a script that ends itself is no module
        del sys.modules[module.__name__]
        raise InputError(f"{who} cannot be imported: {told(error, path)}.") from error
    return module


def _load_module(name: str, who: str) -> tuple[ModuleType, Origin]:
    """Import an installed module."""
    try:
        found = importlib.util.find_spec(name) is not None
        module = importlib.import_module(name) if found else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(f"{who} cannot be imported: {told(error)}.") from error
    if module is None:
        raise InputError(f"{who}: there is no module '{name}'.")
    return module, origin_of_module(module)


def origin_of_module(module: ModuleType) -> Origin:
    """Find the file that an installed module was imported from."""
    file = getattr(module, "__file__", None)
    sha256 = file_sha256(Path(file)) if file and Path(file).is_file() else ""
    return Origin(f"module {module.__name__}", module.__name__, sha256)


def origin_of_object(given: Any, words: str) -> Origin:
    """Find the file in which a class or function, or else the class of an object, is written."""
    while isinstance(given, functools.partial):
        given = given.func
    named = given if isinstance(getattr(given, "__module__", None), str) else type(given)
    owner = sys.modules.get(named.__module__)
    file = getattr(owner, "__file__", None)
    if owner is None or not file or named.__module__.partition(".")[0] in OUR_PACKAGES or not Path(file).is_file():
        return Origin(words)
    return Origin(words, Path(file).name, file_sha256(Path(file)))


def told(error: BaseException, path: Path | None = None) -> str:
    """Tell an error in one line: the place in the file, its type and the first line of its message."""
    place = ""
    if isinstance(error, SyntaxError) and error.lineno:
        place = f"line {error.lineno}"
    elif path is not None:
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path.resolve())]
        place = f"line {lines[-1]}" if lines and lines[-1] else ""
    message = error.msg if isinstance(error, SyntaxError) else first_line(error)
    kind = type(error).__name__
    return f"{place + ' raises ' if place else ''}{kind}{'' if message == kind else f': {message}'}"
