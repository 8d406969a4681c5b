"""Values are read in one way, and the same mistake gets the same sentence wherever it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fl_core.base.errors import InputError
from fl_core.base.values import field_kinds, read_assignment, read_list, read_value


@dataclass(frozen=True)
class _Record:
    name: str = ""
    count: int = 1
    share: float = 0.5
    whole: bool = False
    limit: float | None = None


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("iid", str, "iid"),
        ("", str, ""),
        ("40", int, 40),
        (" 40 ", int, 40),
        (40, int, 40),
        (np.int64(40), int, 40),
        ("2.5", float, 2.5),
        ("1e-5", float, 1e-5),
        (3, float, 3.0),
        (np.float32(0.5), float, 0.5),
        ("inf", float, math.inf),
        (math.inf, float, math.inf),
        ("yes", bool, True),
        ("False", bool, False),
        (True, bool, True),
    ],
)
def test_values_get_the_type_of_their_field(value: Any, kind: type, expected: Any) -> None:
    found = read_value("field", value, kind)
    assert found == expected
    assert type(found) is kind


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, (1,), b"1", object])
@pytest.mark.parametrize("kind", [str, int, float, bool])
def test_lists_mappings_and_the_like_are_of_no_type(value: Any, kind: type) -> None:
    with pytest.raises(InputError, match=r"^rounds is .*, but it must be "):
        read_value("rounds", value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "allowed"),
    [
        (1.5, int, "a whole number"),
        ("1.5", int, "a whole number"),
        (40.0, int, "a whole number"),
        (True, int, "a whole number"),
        (True, float, "a number"),
        (True, str, "text"),
        (3, str, "text"),
        ("two", float, "a number"),
        ("", float, "a number"),
        (math.nan, float, "a number"),
        ("nan", float, "a number"),
        (10**400, float, "a number"),
        (1, bool, "true or false"),
        (0.0, bool, "true or false"),
        ("maybe", bool, "true or false"),
    ],
)
def test_other_types_are_refused_in_one_sentence(value: Any, kind: type, allowed: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_value("vary: rounds", value, kind)
    assert str(refusal.value) == f"vary: rounds is {value!r}, but it must be {allowed}."


@pytest.mark.parametrize("value", ["inf", "-inf", math.inf, "nan", "x"])
def test_infinity_is_refused_where_a_number_must_be_finite(value: Any) -> None:
    with pytest.raises(InputError, match="but it must be a finite number"):
        read_value("clip", value, float, finite=True)


def test_an_assignment_is_split_at_its_first_equals_sign() -> None:
    assert read_assignment("set", " a = b=c ") == ("a", "b=c")


@pytest.mark.parametrize("text", ["", "a", "a=", "=b", "=", None, ["a=b"]])
def test_half_an_assignment_is_refused(text: Any) -> None:
    with pytest.raises(InputError) as refusal:
        read_assignment("set", text, "KEY=VALUE")
    assert str(refusal.value) == f"set is {text!r}, but it must read KEY=VALUE."


def test_a_list_is_split_at_commas_outside_parentheses() -> None:
    assert read_list("set", " a=1, b ,c=2") == ["a=1", "b", "c=2"]
    assert read_list("vary", "shards(2),dirichlet(0.5,3)") == ["shards(2)", "dirichlet(0.5,3)"]
    assert read_list("set", "") == read_list("set", "  ") == []


@pytest.mark.parametrize("text", [",", "a,,b", "a,", ",a", ",,,"])
def test_empty_entries_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="one of its comma-separated entries is empty"):
        read_list("set", text)


def test_kinds_are_those_of_the_fields() -> None:
    assert field_kinds(_Record) == {"name": str, "count": int, "share": float, "whole": bool, "limit": float}
