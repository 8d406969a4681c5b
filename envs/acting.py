"""Policies of all makes: whatever has a `predict`, or is a function of observations, acts like a controller."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_core.base.arrays import BoolArray
from fl_core.base.errors import InputError
from fl_core.base.signatures import require_call

_KEYWORDS = ("state", "episode_start", "deterministic")


class Policy(Protocol):
    """Protocol of every controller: the `predict` of stable-baselines3 models and policies."""

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Choose actions `[runs, knobs]` for observations `[runs, features]`; returns them and the next state."""


def as_policy(source: Any, knobs: int) -> Policy:
    """Adapt an object to the protocol; one that follows it already is returned as it is.

    Args:
        source: an object with `predict(observation, ...)`, which may take `state`, `episode_start` and `deterministic`
            and return actions, or actions and the next state; or a function from observations to actions. Either may
            take `[n, features]` or single observations `[features]`.
        knobs: coordinates of an action.

    Raises:
        InputError: it is neither, or it asks for other arguments.
    """
    predict = getattr(source, "predict", None)
    if inspect.isclass(source) or not (callable(predict) or callable(source)):
        what = f"the class {source.__name__}" if inspect.isclass(source) else f"of type {type(source).__name__}"
        raise InputError(
            f"A policy is {what}, but it must be an object with predict(observation, deterministic=True), as models of "
            "stable-baselines3 are, or a function from observations to actions."
        )
    if not callable(predict):
        require_call(source, "The policy", "an observation", (None,))
        return _Adapted(source, (), knobs)
    try:
        signature = inspect.signature(predict)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return _Adapted(predict, ("deterministic",), knobs)
    try:
        signature.bind(None, None, None, deterministic=True)
    except TypeError:
        takes = signature.parameters
        every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values())
        keywords = tuple(name for name in _KEYWORDS if every or name in takes)
        expected = "an observation and, by name, any of state, episode_start and deterministic"
        require_call(predict, "The policy", expected, (None,), keywords)
        return _Adapted(predict, keywords, knobs)
    policy: Policy = source
    return policy


class Actor:
    """A policy at work: asked for actions, decision after decision.

    Of a policy that can, actions are taken before it clips them (`predict_unclipped`): those beyond [-1, 1] saturate,
    and are counted.

    Attributes:
        policy: with the `predict` of stable-baselines3.
        memory: state that its last `predict` returned.
    """

    def __init__(self, source: Any, env: Any, knobs: int, memory: Any = None):
        """Prepare a policy, or another object that `as_policy` takes, for an environment.

        Args:
            source: the policy.
            env: what it acts in, for controllers that refuse one that they were not made for.
            knobs: coordinates of an action.
            memory: to go on with.
        """
        self.policy = as_policy(source, knobs)
        check = getattr(self.policy, "check", None)
        if check is not None:
            check(env)
        self.memory = memory
        self._predict = getattr(self.policy, "predict_unclipped", self.policy.predict)

    def act(self, observations: NDArray[Any], start: BoolArray) -> Any:
        """Choose actions `[runs, knobs]`.

        Args:
            observations: `[runs, features]`.
            start: runs that are at their beginning `[runs]`.
        """
        actions, self.memory = self._predict(observations, self.memory, start, deterministic=True)
        return actions


class _Adapted:
    """A function of observations, called with the keywords that it takes."""

    def __init__(self, call: Callable[..., Any], keywords: tuple[str, ...], knobs: int):
        self._call, self._keywords, self._knobs = call, keywords, knobs

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[NDArray[np.float64], Any]:
        """Choose actions `[n, knobs]` for observations `[n, features]`; returns them and the next state."""
        observations = np.asarray(observation)
        given = {"state": state, "episode_start": episode_start, "deterministic": deterministic}
        keywords = {name: given[name] for name in self._keywords}
        shape = (len(observations), self._knobs)
        together, failure = None, None
        try:
            together, state = self._answer(observations, keywords)
        except Exception as error:  # a function of single observations may fail on several in any way
            failure = error
        if together is not None and (together.shape == shape or (self._knobs == 1 and together.shape == shape[:1])):
            return together.reshape(shape), state
        try:
            rows = [self._answer(one, keywords)[0].reshape(self._knobs) for one in observations]
        except Exception as error:  # likewise
            if failure is not None:
                raise failure from error
            answered = None if together is None else together.shape
            raise InputError(
                f"The policy answers {len(observations)} observations with actions of shape {answered}, but it must be "
                f"{shape}: observations and knobs."
            ) from error
        return np.stack(rows), state

    def _answer(self, observation: NDArray[Any], keywords: dict[str, Any]) -> tuple[NDArray[np.float64], Any]:
        answer, state = self._call(observation, **keywords), keywords.get("state")
        if isinstance(answer, tuple) and len(answer) == 2 and (self._keywords or answer[1] is None):
            answer, state = answer
        return np.asarray(answer, dtype=np.float64), state
