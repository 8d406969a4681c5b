"""TorchRL wraps single and vector environments, makes them by id, and trains on what it collects."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import nn

import envs  # registers the ids
from tests.libraries.conftest import TINY

pytestmark = pytest.mark.long
NAME = "DPilot/Clip-v0"


def made(kind: str) -> Any:
    torchrl = pytest.importorskip("torchrl.envs")
    if kind == "GymEnv":  # batch_size and device are TorchRL's own there, so settings of these names need GymWrapper
        return torchrl.GymEnv(NAME, device="cpu", **TINY)
    if kind == "vector":
        return torchrl.GymWrapper(gym.make_vec(NAME, 2, autoreset_mode="SameStep", **TINY), device="cpu")
    return torchrl.GymWrapper(gym.make(NAME, batch_size=4, **TINY), device="cpu")


@pytest.mark.parametrize("kind", ["single", "vector", "GymEnv"])
def test_rollouts_keep_rewards_and_ends(kind: str) -> None:
    env = made(kind)
    rolled = env.rollout(6, break_when_any_done=False)
    assert rolled.shape == ((2, 6) if kind == "vector" else (6,))
    ends = rolled["next", "terminated"].squeeze(-1).reshape(-1, 6)
    assert ends[0].tolist() == [False, False, True] * 2
    assert (rolled["next", "reward"].squeeze(-1).reshape(-1, 6)[0] > 0).tolist() == ends[0].tolist()
    env.close()


def test_ppo_trains() -> None:
    env = made("single")
    from tensordict.nn import TensorDictModule
    from tensordict.nn.distributions import NormalParamExtractor
    from torchrl.collectors import Collector
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(0)
    size = env.observation_spec["observation"].shape[-1]
    network = nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
        spec=env.action_spec,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"])
    advantage, loss = GAE(gamma=0.99, lmbda=0.95, value_network=critic), ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    before = network[0].weight.detach().clone()
    for batch in Collector(env, actor, frames_per_batch=12, total_frames=24):
        advantage(batch)
        found = loss(batch)
        optimizer.zero_grad()
        sum(value for name, value in found.items() if name.startswith("loss_")).backward()
        optimizer.step()
    assert not torch.equal(network[0].weight, before)
    assert torch.isfinite(network[0].weight).all()
    assert envs.DPilotEnv
