"""Common random numbers: one seed is one episode, whoever acts, so that comparisons pair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import fl_core.run.simulation
from envs import DPilotEnv
from fl_core.run.draws import Draws
from tests.envs.conftest import PLAIN, make_env, play, random_actions


@contextmanager
def recorded_draws() -> Iterator[dict[str, list[Any]]]:
    """Cohorts, minibatches and noise that a federation draws, in order."""
    draws: dict[str, list[Any]] = {"cohort": [], "batches": [], "noise": []}
    draw_cohort, draw_batches = fl_core.run.simulation.draw_cohort, fl_core.run.simulation.draw_batches
    draw_noise = Draws.normal

    def cohort(*args: Any, **kwargs: Any) -> Any:
        drawn = draw_cohort(*args, **kwargs)
        draws["cohort"].append(drawn.client.clone())
        return drawn

    def batches(*args: Any, **kwargs: Any) -> Any:
        drawn = draw_batches(*args, **kwargs)
        phases = drawn if isinstance(drawn, tuple) else (drawn,)
        draws["batches"].append(torch.cat([phase.flatten() for phase in phases]))
        return drawn

    def noise(self: Draws, *args: Any, **kwargs: Any) -> Any:
        drawn = draw_noise(self, *args, **kwargs)
        draws["noise"].append(drawn.clone())
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fl_core.run.simulation, "draw_cohort", cohort)
        patch.setattr(fl_core.run.simulation, "draw_batches", batches)
        patch.setattr(Draws, "normal", noise)
        yield draws


def test_same_seed_and_actions_give_the_same_episode() -> None:
    env = make_env(reward="accuracy-gain")
    actions = random_actions(0, 5, 1)
    first, other = play(env, actions), play(env, random_actions(1, 5, 1), instance=4)
    again, elsewhere = play(env, actions), play(make_env(reward="accuracy-gain"), actions)
    for repeated in (again, elsewhere):
        for one, two in zip(first, repeated, strict=True):
            np.testing.assert_array_equal(one[0], two[0])
            assert one[1:] == two[1:]
    assert not np.array_equal(first[1][0], other[1][0])


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_controllers_on_one_seed_meet_the_same_draws(sampling: str) -> None:
    env = make_env(reward="final-accuracy", signals="accounted", sampling_rate=0.4, sampling=sampling)
    seen = []
    for actions in (np.full((5, 1), -0.5), np.full((5, 1), 0.9), random_actions(2, 5, 1)):
        with recorded_draws() as draws:
            observation, _ = env.reset(seed=6)
            initial = env.core.federation.server.clone()
            for action in actions:
                env.step(action)
        seen.append((observation, initial, draws))
    cohorts = seen[0][2]["cohort"]
    assert len(cohorts) == 5
    assert not torch.equal(cohorts[0], cohorts[1])
    for observation, initial, draws in seen[1:]:
        np.testing.assert_array_equal(observation, seen[0][0])
        assert torch.equal(initial, seen[0][1])
        for name, drawn in draws.items():
            assert len(drawn) == len(seen[0][2][name]) > 0
            assert all(torch.equal(one, two) for one, two in zip(drawn, seen[0][2][name], strict=True)), name


def test_another_seed_changes_every_draw() -> None:
    env = make_env(reward="final-accuracy", sampling_rate=0.4)
    seen = []
    for seed in (6, 7):
        with recorded_draws() as draws:
            play(env, np.zeros((5, 1)), instance=seed)
        seen.append(draws)
    for name in ("cohort", "batches", "noise"):
        assert not torch.equal(seen[0][name][0], seen[1][name][0]), name


def test_instance_sets_are_disjoint_and_frozen() -> None:
    seeds = {}
    for name in ("train", "validation", "test"):
        env = DPilotEnv(**PLAIN, instances=name, instance_count=3)
        env.reset(seed=0)
        seeds[name] = {env.reset()[1]["seed"] for _ in range(12)}
        assert len(seeds[name]) == 3
    assert not seeds["train"] & seeds["validation"]
    assert not (seeds["train"] | seeds["validation"]) & seeds["test"]


def test_a_reset_without_seed_draws_from_the_seeded_generator() -> None:
    env = make_env()
    drawn = []
    for _ in range(2):
        env.reset(seed=5)
        drawn.append([env.reset()[1]["seed"] for _ in range(4)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1
