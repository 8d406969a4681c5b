"""One reading of names serves every kind of part: built in, registered, a package's, a file's, an object."""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from fl_core.base import catalogue as module
from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError
from fl_core.base.handover import pack_parts, unpack_parts
from fl_core.base.sources import split_spec


def accept(given: Any, who: str) -> int:
    given = getattr(given, "value", given)
    if not isinstance(given, int):
        raise InputError(f"{who} is of type {type(given).__name__}, but a number is an int.")
    return given


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue[int]:
    """A catalogue of numbers, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "CATALOGUES", [])
    monkeypatch.setattr("fl_core.base.handover.CATALOGUES", module.CATALOGUES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Catalogue("number", {"one": 1, "two": 2}, accept)


def sentence(numbers: Catalogue[int], name: Any) -> str:
    with pytest.raises(InputError) as caught:
        numbers.find(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_name_is_that_of_a_part_a_file_or_a_module(numbers: Catalogue[int]) -> None:
    Path("mine.py").write_text("class Box:\n    three = 3\n")
    assert [numbers.find(name) for name in ("one", "mine.py:Box.three", "socket:AF_UNSPEC")] == [1, 3, 0]
    origin = numbers.origin("mine.py:Box.three")
    assert (origin.words, origin.file) == ("file mine.py", "mine.py")
    assert origin.sha256 == hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()
    assert numbers.origins_of("one") == {}
    assert list(numbers) == ["one", "two"]  # what a file holds is no line of the list


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (None, "mine.py:x", "number 'mine.py:x': there is no file 'mine.py'."),
        ("three = 3", "mine.py:tree", "number 'mine.py:tree': mine.py has no such name; did you mean three"),
        ("three = 3", "mine.py", "names a file, but not what is meant in it; write mine.py:NAME."),
        ("x = 1\n\n1 / 0", "mine.py:x", "cannot be imported: line 3 raises ZeroDivisionError: division by zero."),
        ("x = (", "mine.py:x", "cannot be imported: line 1 raises SyntaxError: '(' was never closed."),
        ("raise SystemExit(3)", "mine.py:x", "cannot be imported: line 1 raises SystemExit: 3."),
        ("import no_such_thing", "mine.py:x", "line 1 raises ModuleNotFoundError: No module named 'no_such_thing'."),
        ("x = 'text'", "mine.py:x", "number 'mine.py:x' is of type str, but a number is an int."),
        ("", "no_module_of_this_name:x", "there is no module 'no_module_of_this_name'."),
        ("", "socket:AF_UNSPECC", "socket has no such name; did you mean AF_UNSPEC"),
        ("", "onee", "number 'onee' is unknown; did you mean one"),
        ("", "", "number '' is unknown; known are one, two."),
        ("", "\x00", "is unknown"),
    ],
)
def test_what_cannot_be_found_is_one_sentence(
    numbers: Catalogue[int], source: str | None, name: str, said: str
) -> None:
    if source is not None:
        Path("mine.py").write_text(source)
    assert said in sentence(numbers, name)


def test_a_file_imports_what_lies_beside_it_and_hides_nothing(numbers: Catalogue[int]) -> None:
    Path("own").mkdir()
    Path("own/beside.py").write_text("four = 4")
    Path("own/json.py").write_text("raise RuntimeError")
    Path("own/mine.py").write_text("import json\nfrom beside import four")
    assert numbers.find("own/mine.py:four") == 4


def test_a_process_goes_on_with_the_file_that_it_read_and_says_so(numbers: Catalogue[int]) -> None:
    Path("mine.py").write_text("x = 1")
    assert numbers.find("mine.py:x") == 1
    Path("mine.py").write_text("x = 22")
    with pytest.warns(UserWarning, match=r"'mine.py' has changed since number 'mine.py:x' was read"):
        assert numbers.find("mine.py:x") == 1
    module.forget_read_files()
    assert numbers.find("mine.py:x") == 22


@pytest.mark.parametrize("name", ["two words", "mine.py", "a:b", "", "x,y", "a|b", "data.npz", 7])
def test_a_name_that_a_spec_could_not_hold_is_refused(numbers: Catalogue[int], name: Any) -> None:
    with pytest.raises(InputError, match="must be a word"):
        numbers.register(name, 3)


def test_a_registered_part_may_be_replaced_and_a_built_in_one_not(numbers: Catalogue[int]) -> None:
    assert numbers.register("three", 3) == "three"
    numbers.register("three", 33)
    assert numbers.find("three") == 33
    with pytest.raises(InputError, match="number 'one' is built in; register another name"):
        numbers.register("one", 3)
    with pytest.raises(InputError, match="number 'four' is of type str"):
        numbers.register("four", "four")
    assert numbers.origin("three").words == "registered"


def test_an_object_has_one_name_and_two_objects_have_two(numbers: Catalogue[int]) -> None:
    class Number:
        value = 5

    first, second = Number(), Number()
    names = [numbers.name_of(one) for one in (first, second, first)]
    assert names[0] == names[2] != names[1]
    assert numbers.name_of("as it is") == "as it is"
    assert numbers.find(names[1]) == 5
    with pytest.raises(InputError, match="the number that was given is of type object"):
        numbers.name_of(object())


@pytest.mark.parametrize("given", [3, None, True, 1.5, ["x"], {"a": "b"}, [], b"x"])
def test_what_a_file_may_hold_in_a_names_place_is_refused(numbers: Catalogue[int], given: Any) -> None:
    assert sentence(numbers, given) == f"number is {given!r}, but it must be text."


# ---------------------------------------------------------------- packages


def install(folder: Path, name: str, points: str, source: str, group: str = "dpilot.numbers") -> None:
    """Write an installed package: a module, and the metadata that offers names of it."""
    (folder / f"{name}.py").write_text(source)
    about = folder / f"{name}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{points}\n")


def test_packages_offer_parts_by_name_and_a_broken_one_spoils_nothing_else(
    numbers: Catalogue[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "sound_numbers", "seven = sound_numbers:seven\none = sound_numbers:seven", "seven = 7")
    install(tmp_path, "broken_numbers", "eight = broken_numbers:eight", "raise RuntimeError('no luck')")
    assert "sound_numbers" not in sys.modules
    assert set(numbers.names()) == {"one", "two", "seven", "eight"}
    assert "sound_numbers" not in sys.modules  # names are read without importing
    assert (numbers.find("seven"), numbers.find("one")) == (7, 1)
    assert numbers.origins_of("seven")["seven"] == {
        "kind": "number",
        "from": "package sound_numbers 1.2",
        "file": "sound_numbers:seven",
        "sha256": hashlib.sha256(b"seven = 7").hexdigest(),
    }
    assert (
        sentence(numbers, "eight")
        == "number 'eight' of package broken_numbers 1.2 cannot be imported: RuntimeError: no luck."
    )
    lines = {one.name: (one.part, one.origin.words, bool(one.broken)) for one in numbers.listed()}
    assert lines["one"] == (1, "built in", False)
    assert lines["seven"] == (7, "package sound_numbers 1.2", False)
    assert lines["eight"] == (None, "package broken_numbers 1.2", True)


def test_a_name_that_two_packages_offer_is_refused(
    numbers: Catalogue[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first_numbers", "second_numbers"):
        install(tmp_path, name, f"nine = {name}:nine", "nine = 9")
    assert "is offered twice, as first_numbers:nine and second_numbers:nine" in sentence(numbers, "nine")


# ---------------------------------------------------------------- records


def test_code_that_a_record_names_is_not_imported(numbers: Catalogue[int]) -> None:
    Path("mine.py").write_text("open('ran', 'w').close()\nx = 1")
    with pytest.raises(InputError, match="it is imported only for who names it"):
        numbers.require_loaded("mine.py:x")
    numbers.require_loaded("one")
    numbers.require_loaded("unknown")
    assert not Path("ran").exists()
    numbers.find("mine.py:x")
    numbers.require_loaded("mine.py:x")


def test_who_goes_on_with_a_record_imports_the_file_only_if_it_is_the_same(numbers: Catalogue[int]) -> None:
    Path("mine.py").write_text("x = 1")
    record = numbers.origins_of("mine.py:x")["mine.py:x"]
    module.forget_read_files()
    Path("mine.py").write_text("open('ran', 'w').close()\nx = 2")
    with pytest.raises(InputError, match=rf"was read from mine.py with sha256 {record['sha256'][:12]}, but here it is"):
        numbers.load_recorded("mine.py:x", record, Path("runs/one"))
    assert not Path("ran").exists()
    Path("mine.py").write_text("x = 1")
    numbers.load_recorded("mine.py:x", record, Path("runs/one"))
    numbers.require_loaded("mine.py:x")


def test_code_inside_the_folder_of_a_record_is_not_imported(numbers: Catalogue[int]) -> None:
    Path("runs").mkdir()
    Path("runs/evil.py").write_text("open('ran', 'w').close()\nx = 1")
    record = {"file": "runs/evil.py", "sha256": hashlib.sha256(Path("runs/evil.py").read_bytes()).hexdigest()}
    with pytest.raises(InputError, match="code beside results is not imported"):
        numbers.load_recorded("runs/evil.py:x", record, Path("runs"))
    assert not Path("ran").exists()


# ---------------------------------------------------------------- other processes


def test_another_process_has_the_parts_of_the_one_that_started_it(numbers: Catalogue[int]) -> None:
    class Local(int):
        pass

    numbers.register("three", 3)
    numbers.register("local", Local(4))
    packed = pickle.loads(pickle.dumps(pack_parts()))
    del numbers["three"], numbers["local"]
    unpack_parts(packed)
    assert numbers.find("three") == 3
    assert "number 'local' cannot be handed to another process (" in sentence(numbers, "local")


def test_a_name_is_split_off_what_follows_it(numbers: Catalogue[int]) -> None:
    texts = ("one:0.5", "mine.py:x:0.5:2", "socket:x", "oen:fixed", "one")
    assert [numbers.split(text) for text in texts] == [
        ("one", "0.5"),
        ("mine.py:x", "0.5:2"),
        ("socket:x", ""),
        ("oen", "fixed"),
        ("one", ""),
    ]


def test_specs_are_split_at_the_name() -> None:
    assert split_spec("a/b.c/mine.py:Net") == ("a/b.c/mine.py", "Net", "")
    assert split_spec("package.module:Clip:0.5:2") == ("package.module", "Clip", "0.5:2")
    assert [split_spec(text) for text in ("digits", "aqc:0.5", "constant:clip_norm=1", "", ":")] == [None] * 5
