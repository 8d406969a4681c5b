"""SAC and TD3, each a loop in one file with nothing but torch, in the manner of CleanRL, train on rows of one core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from tests.libraries.conftest import ID, TINY

pytestmark = pytest.mark.long
DECAY, SLOW, BATCH, WARMUP = 0.99, 0.05, 16, 12


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


class Critics(nn.Module):
    """Two estimates of an action's value; the lower one is believed."""

    def __init__(self, features: int, knobs: int):
        super().__init__()
        self.both = nn.ModuleList(network(features + knobs, 1) for _ in range(2))

    def forward(self, seen: Tensor, action: Tensor) -> Tensor:
        return torch.cat([one(torch.cat([seen, action], -1)) for one in self.both], -1)


class Replay:
    """Transitions of all rows, oldest first."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, ...]] = []

    def add(self, *parts: Any) -> None:
        columns = [torch.as_tensor(np.asarray(part), dtype=torch.float32) for part in parts]
        self.kept += list(zip(*columns, strict=True))

    def sample(self) -> tuple[Tensor, ...]:
        chosen = torch.randint(len(self.kept), (BATCH,)).tolist()
        return tuple(torch.stack(column) for column in zip(*(self.kept[one] for one in chosen), strict=True))


def follow(slow: nn.Module, fast: nn.Module) -> None:
    with torch.no_grad():
        for own, other in zip(slow.parameters(), fast.parameters(), strict=True):
            own.lerp_(other, SLOW)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Sac:
    """Soft actor-critic: a squashed Gaussian whose entropy is held at minus the number of knobs."""

    def __init__(self, features: int, knobs: int):
        self.actor, self.critics = network(features, 2 * knobs), Critics(features, knobs)
        self.slow, self.log_weight = Critics(features, knobs), torch.zeros(1, requires_grad=True)
        self.slow.load_state_dict(self.critics.state_dict())
        self.knobs = knobs
        self.steps = [torch.optim.Adam(one, 1e-3) for one in (self.actor.parameters(), self.critics.parameters())]
        self.weight_step = torch.optim.Adam([self.log_weight], 1e-3)

    def draw(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.actor(seen).chunk(2, -1)
        gaussian = Normal(mean, spread.clamp(-5, 2).exp())
        raw = gaussian.rsample()
        action = torch.tanh(raw)
        return action, (gaussian.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(-1)

    def act(self, seen: Tensor) -> Tensor:
        return self.draw(seen)[0]

    def learn(self, batch: tuple[Tensor, ...]) -> None:
        seen, action, reward, following, end = batch
        weight = self.log_weight.exp().detach()
        with torch.no_grad():
            later, chance = self.draw(following)
            value = self.slow(following, later).min(-1).values - weight * chance
            target = reward + DECAY * (1 - end) * value
        descend(self.steps[1], (self.critics(seen, action) - target[:, None]).square().mean())
        own, chance = self.draw(seen)
        descend(self.steps[0], (weight * chance - self.critics(seen, own).min(-1).values).mean())
        descend(self.weight_step, (-self.log_weight.exp() * (chance.detach() - self.knobs)).mean())
        follow(self.slow, self.critics)


class Td3:
    """Twin delayed deterministic policy gradient: smoothed targets, an actor that moves every second time."""

    def __init__(self, features: int, knobs: int):
        self.actor, self.critics = network(features, knobs), Critics(features, knobs)
        self.slow_actor, self.slow = network(features, knobs), Critics(features, knobs)
        self.slow_actor.load_state_dict(self.actor.state_dict())
        self.slow.load_state_dict(self.critics.state_dict())
        self.steps = [torch.optim.Adam(one, 1e-3) for one in (self.actor.parameters(), self.critics.parameters())]
        self.learned = 0

    def act(self, seen: Tensor) -> Tensor:
        action = torch.tanh(self.actor(seen))
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    def learn(self, batch: tuple[Tensor, ...]) -> None:
        seen, action, reward, following, end = batch
        with torch.no_grad():
            later = torch.tanh(self.slow_actor(following))
            later = (later + (0.2 * torch.randn_like(later)).clamp(-0.5, 0.5)).clamp(-1, 1)
            target = reward + DECAY * (1 - end) * self.slow(following, later).min(-1).values
        descend(self.steps[1], (self.critics(seen, action) - target[:, None]).square().mean())
        self.learned += 1
        if self.learned % 2 == 0:
            descend(self.steps[0], -self.critics(seen, torch.tanh(self.actor(seen)))[:, 0].mean())
            follow(self.slow_actor, self.actor)
            follow(self.slow, self.critics)


def train(make: Callable[[int, int], Any], steps: int, rows: int = 2, seed: int = 1) -> tuple[Any, list[float]]:
    """Train on a vector of environments; returns the agent and the rewards of the episodes that ended."""
    torch.manual_seed(seed)
    env = gym.make_vec(ID, rows, autoreset_mode="SameStep", **TINY)
    agent = make(env.single_observation_space.shape[0], env.single_action_space.shape[0])
    replay, scores = Replay(), []
    seen, _ = env.reset(seed=seed)
    for _ in range(steps):
        with torch.no_grad():
            action = agent.act(torch.as_tensor(seen)).numpy()
        following, reward, terminated, truncated, info = env.step(action)
        after = following.copy()  # what was seen last, in place of the next episode's first
        for row in np.flatnonzero(info.get("_final_obs", [])):
            after[row] = info["final_obs"][row]
        replay.add(seen, action, reward, after, terminated)
        scores += reward[terminated | truncated].tolist()
        seen = following
        if len(replay.kept) >= WARMUP:
            agent.learn(replay.sample())
    env.close()
    return agent, scores


@pytest.mark.parametrize("make", [Sac, Td3])
def test_it_trains_and_repeats_itself(make: type) -> None:
    untrained, _ = train(make, 0)
    agent, scores = train(make, 24)
    again, repeated = train(make, 24)
    assert len(scores) == 16  # of two rows, an episode every three steps
    assert all(0 <= score < 1 for score in scores)  # accuracies on 50 samples of ten classes
    assert sum(scores) > 0.5
    assert repeated == scores
    for name in ("actor", "critics", "slow"):
        before, after, other = (
            torch.cat([one.detach().ravel() for one in getattr(each, name).parameters()])
            for each in (untrained, agent, again)
        )
        assert torch.isfinite(after).all(), name
        assert not torch.equal(before, after), name
        assert torch.equal(after, other), name
