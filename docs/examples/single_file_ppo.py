"""PPO in one file, in the manner of CleanRL: a loop over a vector of environments, with nothing but torch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Make a network of one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


class Agent(nn.Module):
    """Actor and critic."""

    def __init__(self, observations: int, actions: int):
        super().__init__()
        self.actor, self.critic = layers(observations, actions), layers(observations, 1)
        self.log_std = nn.Parameter(torch.full((actions,), -1.0))  # most actions then lie within [-1, 1]

    def policy(self, seen: torch.Tensor) -> Normal:
        """Return the distribution of actions `[..., actions]` for observations."""
        return Normal(self.actor(seen), self.log_std.exp())


def advantages(rewards, values, ends, last_value, decay=0.99, trace=0.95):
    """Generalized advantage estimates `[steps, envs]`; `ends` is 1 where an episode ended with that step."""
    found, running = torch.zeros_like(rewards), torch.zeros_like(last_value)
    for step in reversed(range(len(rewards))):
        following = last_value if step == len(rewards) - 1 else values[step + 1]
        error = rewards[step] + decay * (1 - ends[step]) * following - values[step]
        running = error + decay * trace * (1 - ends[step]) * running
        found[step] = running
    return found


def train(updates: int = 20, rows: int = 8, steps: int = 40, seed: int = 1, **settings) -> list[float]:
    """Train; returns the mean reward of the episodes that ended in each update."""
    torch.manual_seed(seed)
    # An episode that ends starts anew in the same step, so every step counts.
    env = gym.make_vec("DPilot/Clip-v0", rows, autoreset_mode="SameStep", **settings)
    agent = Agent(env.single_observation_space.shape[0], env.single_action_space.shape[0])
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
    observation, _ = env.reset(seed=seed)
    scores = []
    for _ in range(updates):
        kept = {name: [] for name in ("seen", "action", "chance", "value", "reward", "end")}
        for _ in range(steps):
            seen = torch.as_tensor(observation)
            with torch.no_grad():
                policy = agent.policy(seen)
                action = policy.sample()
                value = agent.critic(seen).squeeze(-1)
            observation, reward, terminated, truncated, _ = env.step(action.clamp(-1, 1).numpy())
            end = terminated | truncated
            for name, one in zip(
                kept,
                (seen, action, policy.log_prob(action).sum(-1), value, torch.as_tensor(reward), torch.as_tensor(end)),
                strict=True,
            ):
                kept[name].append(one.float())
        batch = {name: torch.stack(ones) for name, ones in kept.items()}
        with torch.no_grad():
            last_value = agent.critic(torch.as_tensor(observation)).squeeze(-1)
        gains = advantages(batch["reward"], batch["value"], batch["end"], last_value)
        targets = gains + batch["value"]
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        for _ in range(4):
            policy = agent.policy(batch["seen"])
            ratio = (policy.log_prob(batch["action"]).sum(-1) - batch["chance"]).exp()
            gain = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
            error = (agent.critic(batch["seen"]).squeeze(-1) - targets).square().mean()
            optimizer.zero_grad()
            (0.5 * error - gain).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        ended = batch["reward"][batch["end"].bool()]
        scores.append(float(ended.mean()) if len(ended) else np.nan)
        print(f"mean reward of {len(ended)} episodes: {scores[-1]:.3f}")
    env.close()
    return scores


if __name__ == "__main__":
    train()
