"""PPO of skrl trains on a single environment and on rows of one core."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch
from torch import nn

from tests.libraries.conftest import TINY

pytestmark = pytest.mark.long


@pytest.mark.parametrize("rows", [1, 2])
def test_ppo_trains(rows: int, tmp_path: Path) -> None:
    pytest.importorskip("skrl")
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    import envs  # noqa: F401  registers the ids

    class Actor(GaussianMixin, Model):
        def __init__(self, **spaces):
            Model.__init__(self, **spaces)
            GaussianMixin.__init__(self)
            self.net = nn.Linear(self.num_observations, self.num_actions)
            self.log_std = nn.Parameter(torch.full((self.num_actions,), -1.0))

        def compute(self, inputs, role=""):
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Critic(DeterministicMixin, Model):
        def __init__(self, **spaces):
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = nn.Linear(self.num_observations, 1)

        def compute(self, inputs, role=""):
            return self.net(inputs["observations"]), {}

    made = gym.make("DPilot/Clip-v0", **TINY) if rows == 1 else gym.make_vec("DPilot/Clip-v0", rows, **TINY)
    env = wrap_env(made, wrapper="gymnasium")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    models = {"policy": Actor(**spaces), "value": Critic(**spaces)}
    before = models["policy"].net.weight.detach().clone()
    settings = PPO_CFG(rollouts=6, learning_epochs=2, mini_batches=2)
    settings.experiment.directory, settings.experiment.write_interval = str(tmp_path), 0
    agent = PPO(models=models, memory=RandomMemory(memory_size=6, num_envs=env.num_envs), cfg=settings, **spaces)
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 24, "headless": True}).train()
    assert not torch.equal(models["policy"].net.weight, before)
    assert torch.isfinite(models["policy"].net.weight).all()
