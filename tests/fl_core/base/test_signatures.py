"""Users' functions that take other arguments are refused in a sentence that names file, function and arguments."""

from __future__ import annotations

from functools import partial

import pytest

from envs import as_policy
from fl_core.base.errors import InputError
from fl_core.base.signatures import require_call
from policies import Controller
from policies.catalog import controller_class


def two(first, second):
    return first, second


class Callable:
    def __call__(self, first, second):
        return first, second


class Predicts:
    def predict(self):
        return 0.0


class Deaf(Controller):
    name, summary, label_format = "deaf", "sees nothing", "deaf"

    def decide(self):
        return {}


class Made(Controller):
    name, summary, label_format = "made", "made of nothing", "made"

    def __init__(self):
        pass

    def decide(self, seen):
        return {}


def test_a_function_that_takes_what_it_is_given_is_let_through():
    for fits in (two, partial(two, 1), lambda *several: several, lambda first, second=0, **more: first, print, max):
        require_call(fits, "It", "two numbers", (1, 2) if fits is two else (1,))


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: as_policy(two, 1), ["The policy: two(first, second) of '", "test_signatures.py'", "an observation"]),
        (lambda: as_policy(Callable(), 1), ["The policy: Callable(first, second) of '", "test_signatures.py'"]),
        (lambda: as_policy(Predicts(), 1), ["The policy: Predicts.predict() of '", "any of state, episode_start"]),
        (lambda: controller_class(Deaf, "controller 'x'"), ["controller 'x': Deaf.decide(self) of '", "what it sees"]),
        (lambda: controller_class(Made, "controller 'x'"), ["controller 'x': Made.__init__(self) of '", "a view and"]),
    ],
)
def test_a_wrong_signature_is_one_sentence(refused, words):
    with pytest.raises(InputError) as error:
        refused()
    sentence = str(error.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
