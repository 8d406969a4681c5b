"""Arguments are held against their annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_core.base.arguments import check_argument, checked
from fl_core.base.errors import InputError

ARRAY = np.zeros(2)
GOOD: list[tuple[Any, Any]] = [
    *((int, 3), (int, np.int64(3)), (float, 3), (float, np.float32(0.5)), (float, float("inf")), (bool, np.True_)),
    *((str, "x"), (Path, Path("x")), (Path | str, "x"), (int | None, None), (Any, object()), (Literal["a", 1], 1)),
    *((Sequence[int], [1, 2]), (Sequence[int], range(3)), (Sequence[float], ARRAY), (Iterable[str], (x for x in "ab"))),
    *((Mapping[str, float], {"a": 1}), (NDArray[np.float64], ARRAY), (tuple[int, int], (1, 2)), (list[str], [])),
    *((Sequence[tuple[float, int]], [(0.5, 1)]), (type[Exception], ValueError)),
]
BAD: list[tuple[Any, Any, str]] = [
    *((int, 0.5, "a whole number"), (int, True, "a whole number"), (int, "3", "a whole number")),
    *((int, 10**400, "a whole number"), (float, 10**400, "a number"), (float, "0.5", "a number")),
    *((bool, 1, "true or false"), (str, b"x", "text"), (Path | str, 3, "a Path or text"), (int | None, "x", "or None")),
    *((Literal["a", "b"], "c", "'a' or 'b'"), (Sequence[int], "12", "a list of whole numbers")),
    *(
        (Sequence[int], [1, "x"], "a list of whole numbers"),
        (Sequence[int], {1: 2}, "a list"),
        (Sequence[int], 3, "a list"),
    ),
    *(
        (Mapping[str, float], [("a", 1)], "a mapping of texts to numbers"),
        (Mapping[str, float], {"a": "x"}, "a mapping"),
    ),
    *((NDArray[np.float64], [1.0], "an array"), (NDArray[np.float64], np.array(["x"]), "an array of numbers")),
    *((tuple[int, int], (1, 2, 3), r"\(a whole number, a whole number\)"), (type[Exception], 3, "a type")),
    (InputError, "x", "an InputError"),
]


@pytest.mark.parametrize(("hint", "value"), GOOD)
def test_a_value_of_the_type_passes(hint: Any, value: Any) -> None:
    check_argument("x", value, hint)


@pytest.mark.parametrize(("hint", "value", "words"), BAD)
def test_another_value_is_refused_in_a_sentence(hint: Any, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"^x is .*, but it must be .*{words}") as caught:
        check_argument("x", value, hint)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@checked
def scaled(values: Sequence[float], factor: float = 1.0, *more: int, **named: str) -> list[float]:
    return [factor * value for value in values]


def test_a_checked_function_does_what_it_did() -> None:
    assert scaled([1, 2], factor=2) == [2, 4]
    assert scaled([1], 1.0, "not checked", x=3) == [1]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="factor is None"):
        scaled([1], None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'values'"):
        scaled()  # type: ignore[call-arg]


def test_entries_of_an_iterator_are_left_to_the_function() -> None:
    @checked
    def total(values: Iterable[int]) -> int:
        return sum(values)

    assert total(iter([1, 2])) == 3
