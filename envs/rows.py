"""Rows of a batch, each with what a single environment offers, and what all faces of a batch share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.core import EnvCore, make_core
from envs.knobs import Knob
from envs.listing import Listing
from envs.render import render_frame, render_text
from envs.resets import choose_instance, read_instances
from envs.signals import Feature
from fl_core.run.ranges import RUNS


class CoreView:
    """What every face shows of the runs behind it.

    Attributes:
        core: the runs.
    """

    core: EnvCore

    @property
    def knobs(self) -> Listing[Knob]:
        """Knob of each action coordinate; prints as a table."""
        return self.core.knobs

    @property
    def signals(self) -> Listing[Feature]:
        """Feature of each observation entry; prints as a table."""
        return self.core.features

    def references(self, seeds: Sequence[int]) -> list[float]:
        """Return the final accuracy of the default clip norm on each instance, the baseline of rewards."""
        return self.core.references(seeds)


class Row(CoreView):
    """A row of a batch, or the only one: what it offers is the same on every face.

    Attributes:
        core: the runs of the whole batch.
        render_mode: `ansi`, `rgb_array` or None.
        instance: the instance, by seed, that it plays in every episode; None where they are drawn.
        observation_space, action_space: of this row.
    """

    def __init__(self, core: EnvCore, row: int, render_mode: str | None = None):
        """Take a place in a batch."""
        self.core, self._row, self.render_mode = core, row, render_mode
        self.instance: int | None = None
        self.observation_space: spaces.Space[Any] = core.observation_space
        self.action_space: spaces.Space[Any] = core.action_space

    @property
    def features(self) -> Listing[Feature]:
        """The signals, by the name that they have in the core."""
        return self.core.features

    def set_instances(self, seeds: Sequence[int]) -> None:
        """Set the instance, by seed, that it plays again and again from its next reset on: a list of one.

        Raises:
            InputError: there is not exactly one, or it is no seed.
        """
        [self.instance] = read_instances(seeds, 1)

    def render(self) -> Any:
        """Render the episode as a line of text (`ansi`) or a picture (`rgb_array`)."""
        if self.render_mode == "ansi":
            return render_text(self.core, self._row)
        return render_frame(self.core, self._row) if self.render_mode == "rgb_array" else None


class Batch(CoreView):
    """Rows of one core.

    Attributes:
        core: the runs.
        rows: its rows, in order.
    """

    def __init__(self, num_envs: int, render_mode: str | None, settings: Mapping[str, Any]):
        """Build the runs.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        RUNS.check("num_envs", num_envs)
        self.core: EnvCore = make_core(num_envs, **settings)
        self.rows = [Row(self.core, row, render_mode) for row in range(num_envs)]
        self._randoms = [np.random.default_rng() for _ in range(num_envs)]

    def set_instances(self, seeds: Sequence[int]) -> None:
        """Set the instance, by seed, that each row plays again and again from its next reset on.

        Raises:
            InputError: there is not one per row, or one is no seed.
        """
        for row, instance in zip(self.rows, read_instances(seeds, len(self.rows)), strict=True):
            row.instance = instance

    def _begin(self, rows: list[int], seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> None:
        """Start new episodes in some rows, each by its seed and options; a seed seeds what is drawn later, too."""
        self._prepare(rows, seeds, options)()

    def _prepare(
        self, rows: list[int], seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]
    ) -> Callable[[], None]:
        """Make ready what `_begin` starts; what is returned starts it, and until then nothing has changed."""
        randoms = [
            copy.deepcopy(self._randoms[row]) if seed is None else np.random.default_rng(seed)
            for row, seed in zip(rows, seeds, strict=True)
        ]
        settings = [
            choose_instance(self.core.pool, random, seed, chosen, self.rows[row].instance)
            for row, random, seed, chosen in zip(rows, randoms, seeds, options, strict=True)
        ]
        start = self.core.prepare(rows, settings)

        def begin() -> None:
            start()
            for row, random in zip(rows, randoms, strict=True):
                self._randoms[row] = random

        return begin

    def _require_begun(self) -> None:
        """Refuse a step before the first reset of every row."""
        if not self.core.begun.all():
            raise gym.error.ResetNeeded("Cannot call step() before reset(): a row has no episode yet.")
