"""Catalogues: parts of one kind by name, whether built in, registered, offered by a package, or in a user's file.

All kinds of parts (datasets, models, methods, controllers, generators) read names alike:

| name | part |
|---|---|
| `digits` | built in, registered, or an installed package's entry point of the group `dpilot.datasets` |
| `mine.py:load` | a name in a Python file |
| `package.module:load` | a name in an installed module |
| `data.npz` | a file, where the kind can be one |

Code is imported when its part is asked for, and never because a record names it.
"""

from __future__ import annotations

import numbers
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from fl_core.base.errors import InputError, require, unknown_name
from fl_core.base.libraries import metadata
from fl_core.base.sources import (
    BUILT_IN,
    Origin,
    file_sha256,
    is_code,
    load_named,
    origin_of_module,
    origin_of_object,
    split_spec,
    told,
)
from fl_core.base.text import short

T = TypeVar("T")
_NAME = re.compile(r"[^\W_][\w.+-]*")
CATALOGUES: list[Catalogue[Any]] = []
"""All that there are in this process."""


@dataclass(frozen=True)
class Listed(Generic[T]):
    """A line of `Catalogue.listed`: a name, its origin, and the part, or the sentence that says why it is broken."""

    name: str
    origin: Origin
    part: T | None = None
    broken: str = ""


class Catalogue(MutableMapping[str, T]):
    """Parts of a kind by name.

    As a mapping it holds the parts that are built in or registered; `find` reads every form of a name.

    Attributes:
        kind: noun of the kind, which is also the setting's name: `dataset`.
        lost: names that the process which started this one could not hand over, with the reason.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, T],
        accept: Callable[[Any, str], T],
        open_path: Callable[[Path, str], T | None] = lambda path, who: None,
    ):
        """Make a catalogue.

        Args:
            kind: noun in the singular.
            built_in: the parts of this project.
            accept: makes a part of what a user gives, (given, who), or raises an `InputError` that begins with who.
            open_path: makes a part of a file or folder, (path, who); None for one of another kind.
        """
        self.kind = kind
        self._accept, self._open_path = accept, open_path
        self._built_in, self._parts = built_in, dict(built_in)
        self._origins = dict.fromkeys(built_in, BUILT_IN)
        self._loaded: dict[tuple[str, str], tuple[T, Origin]] = {}
        self._given: dict[int, tuple[Any, str]] = {}
        self.lost: dict[str, str] = {}
        CATALOGUES.append(self)

    # ---------------------------------------------------------------- the mapping

    def __getitem__(self, name: str) -> T:
        return self._parts[name]

    def __setitem__(self, name: str, part: T) -> None:
        accepted = self._accept(part, self._who(name))
        own = self._built_in.get(name) is part
        self._origins[name] = BUILT_IN if own else origin_of_object(part, "registered")
        self._parts[name] = accepted

    def __delitem__(self, name: str) -> None:
        del self._parts[name], self._origins[name]
        self._given = {key: one for key, one in self._given.items() if one[1] != name}

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    # ---------------------------------------------------------------- reading names

    def _who(self, name: str) -> str:
        return f"{self.kind} '{name}'"

    @property
    def group(self) -> str:
        """Group of the entry points that offer parts of this kind."""
        return f"dpilot.{self.kind}s"

    def find(self, name: Any) -> T:
        """Find the part of a name, or of an object that is one.

        Raises:
            InputError: there is none, its file or module cannot be imported, or it is no part of this kind.
        """
        return self._locate(self.name_of(name))[0]

    def origin(self, name: str) -> Origin:
        """Find the origin of a part; raises as `find`."""
        return self._locate(name)[1]

    def origins_of(self, name: str) -> dict[str, dict[str, str]]:
        """Map the name to the record of its origin; empty for a part that is built in."""
        origin = self.origin(name)
        return {} if origin.built_in else {name: {"kind": self.kind, **origin.record()}}

    def origins_for(self, part: Any) -> dict[str, dict[str, str]]:
        """Return `origins_of` of the name under which a part is known; empty for one that no name stands for."""
        read = {name: one for (name, _), (one, _) in self._loaded.items()}
        return next((self.origins_of(name) for name, one in {**self._parts, **read}.items() if one is part), {})

    def names(self) -> list[str]:
        """List all names that need no file: built in, registered, and offered by installed packages."""
        return [*self._parts, *(name for name in self._offers() if name not in self._parts)]

    def listed(self) -> Iterator[Listed[T]]:
        """Go through all of `names` with parts and origins; a broken package spoils its own line only."""
        for name in self.names():
            try:
                part, origin = self._locate(name)
                yield Listed(name, origin, part)
            except InputError as error:
                yield Listed(name, _package(self._offers()[name][0]), broken=str(error))

    def split(self, text: str) -> tuple[str, str]:
        """Split a name off a text that goes on after a colon: `fixed:0.5`, `mine.py:MyClip:0.5`."""
        name, _, rest = text.strip().partition(":")
        spec = split_spec(text)
        if name in self._parts or name in self._offers() or spec is None or not is_code(spec[0]):
            return name, rest
        place, inner, rest = spec
        return f"{place}:{inner}", rest

    def _locate(self, name: str) -> tuple[T, Origin]:
        if name in self._parts:
            return self._parts[name], self._origins[name]
        key = self._key(name)
        if key not in self._loaded:
            require(name not in self.lost, f"{self._who(name)} {self.lost.get(name)}.")
            self._loaded[key] = self._load(name)
        part, origin = self._loaded[key]
        self._warn_of_change(name, origin)
        return part, origin

    def _key(self, name: str) -> tuple[str, str]:
        """Tell names of files in different folders apart."""
        return name, os.getcwd()

    def _load(self, name: str) -> tuple[T, Origin]:
        who, offers = self._who(name), self._offers().get(name, [])
        if offers:
            return self._load_offer(name, offers)
        spec = split_spec(name)
        if spec is not None and not spec[2]:
            given, origin = load_named(spec[0], spec[1], who)
            return self._accept(given, who), origin
        path = Path(os.path.expanduser(name) if name.strip() else "\0")  # an empty one is not this folder
        opened = self._open_path(path, who)
        if opened is not None:
            return opened, Origin(f"file {name}", name, file_sha256(path))
        require(not name.endswith(".py"), f"{who} names a file, but not what is meant in it; write {name}:NAME.")
        raise unknown_name(self.kind, name, self.names())

    def _warn_of_change(self, name: str, origin: Origin) -> None:
        path = Path(os.path.expanduser(origin.file))
        with suppress(InputError):
            if origin.words.startswith("file ") and path.is_file() and file_sha256(path) != origin.sha256:
                warnings.warn(
                    f"'{origin.file}' has changed since {self._who(name)} was read; this process goes on with what it "
                    "read.",
                    stacklevel=3,
                )

    # ---------------------------------------------------------------- installed packages

    def _offers(self) -> dict[str, list[metadata.EntryPoint]]:
        """Entry points by name; only their names are read."""
        found: dict[str, list[metadata.EntryPoint]] = {}
        for point in _installed(tuple(sys.path)).get(self.group, ()):
            found.setdefault(point.name, []).append(point)
        return found

    def _load_offer(self, name: str, offers: list[metadata.EntryPoint]) -> tuple[T, Origin]:
        who, different = self._who(name), sorted({one.value for one in offers})
        require(len(different) == 1, f"{who} is offered twice, as {' and '.join(different)}; write one of these.")
        try:
            given = offers[0].load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise InputError(f"{who} of {_package(offers[0]).words} cannot be imported: {told(error)}.") from error
        sha256 = origin_of_module(sys.modules[offers[0].module]).sha256
        origin = replace(_package(offers[0]), file=offers[0].value, sha256=sha256)
        return self._accept(given, f"{who} of {origin.words}"), origin

    # ---------------------------------------------------------------- registering

    def put(self, name: str, part: T, origin: Origin) -> None:
        """Enter a part that has been accepted before, with its origin."""
        self._parts[name], self._origins[name] = part, origin

    def register(self, name: str, given: Any) -> str:
        """Enter a part under a name of its own; a part that was registered under it before is replaced.

        Returns:
            The name.

        Raises:
            InputError: the name cannot be one or is built in, or what is given is no part of this kind.
        """
        require(
            isinstance(name, str) and _NAME.fullmatch(name) is not None and not name.endswith((".py", ".npz")),
            f"name of a {self.kind} is {name!r}, but it must be a word of letters, digits and . + - _ only.",
        )
        require(
            not self._origins.get(name, Origin("")).built_in, f"{self._who(name)} is built in; register another name."
        )
        self[name] = given
        return name

    def name_of(self, given: Any) -> str:
        """Return the name of a part; an object that has none yet is entered under one made of its class and content.

        Raises:
            InputError: it is no part of this kind.
        """
        if isinstance(given, str):
            return given
        require(not _is_plain(given), f"{self.kind} is {short(given)}, but it must be text.")
        if id(given) in self._given:
            return self._given[id(given)][1]
        part = self._accept(given, f"the {self.kind} that was given")
        content = str(getattr(part, "content", ""))  # arrays and weights may have changed since they were given last
        origin = origin_of_object(given, "given")
        origin = replace(origin, sha256=content or origin.sha256)
        label = re.sub(r"[^\w.+-]+", "-", str(getattr(given, "__name__", type(given).__name__))).strip("-_.")
        name = f"{label or self.kind}-{origin.sha256[:10]}".rstrip("-")
        if not content:
            taken = [one for _, one in self._given.values()]
            count = next(n for n in range(1, len(taken) + 2) if (name if n == 1 else f"{name}-{n}") not in taken)
            name = name if count == 1 else f"{name}-{count}"
            self._given[id(given)] = given, name  # kept, so that its id is no other object's
        self.put(name, part, origin)
        return name

    # ---------------------------------------------------------------- records

    def require_loaded(self, name: str) -> None:
        """Refuse a name in a record that would import code which this process has not imported for its user.

        Raises:
            InputError: it would.
        """
        spec = split_spec(name)
        code = spec is not None and name not in self._parts and self._key(name) not in self._loaded
        require(not code, f"{self._who(name)} is code that a record names; it is imported only for who names it.")

    def load_recorded(self, name: str, record: Mapping[str, Any], folder: Path) -> None:
        """Import what a record names, for who goes on with it, once it is what the record says.

        Args:
            name: in the record.
            record: of its origin, as `origins_of` makes it.
            folder: that holds the record; code inside it is not imported.

        Raises:
            InputError: the file is another one, or lies in that folder.
        """
        file, known = str(record.get("file", "")), str(record.get("sha256", ""))
        spec = split_spec(name)
        if spec is not None and spec[0].endswith(".py") and self._key(name) not in self._loaded:
            path = Path(spec[0])
            inside = folder.resolve() in path.resolve().parents
            require(not inside, f"{self._who(name)} lies in '{folder}' itself; code beside results is not imported.")
            require(os.path.isfile(path), f"{self._who(name)}: there is no file '{path}'.")
            self._require_same(name, file, known, file_sha256(path))
        self._require_same(name, file, known, self.origin(name).sha256)

    def _require_same(self, name: str, file: str, known: str, here: str) -> None:
        require(
            known == here,
            f"{self._who(name)} was read from {file or 'an object'} with sha256 {known[:12] or 'unknown'}, but here it "
            f"is {here[:12] or 'unknown'}; start anew.",
        )


def _is_plain(given: Any) -> bool:
    """Return True for a value as JSON or YAML may hold it in place of a name, which is no part of any kind."""
    entries = given.values() if isinstance(given, dict) else given if isinstance(given, list) else None
    if entries is not None:
        return all(isinstance(one, str) for one in entries)
    return given is None or isinstance(given, (bool, numbers.Number, bytes))


def _package(point: metadata.EntryPoint) -> Origin:
    """Origin of an entry point, by its package."""
    made = point.dist
    return Origin("package" if made is None else f"package {made.name} {made.version}")


@lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> dict[str, tuple[metadata.EntryPoint, ...]]:
    """Find this project's groups of entry points on an import path, all at once: reading them takes tens of ms."""
    points = metadata.entry_points()
    return {group: tuple(points.select(group=group)) for group in points.groups if group.startswith("dpilot.")}


def forget_read_files() -> None:
    """Have names of files, modules and installed packages read anew, as a new command does."""
    _installed.cache_clear()
    for one in CATALOGUES:
        one._loaded.clear()
