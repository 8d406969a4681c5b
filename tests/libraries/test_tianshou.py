"""PPO of Tianshou trains on its vector of environments, with the infos of whole episodes in its buffer."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch
from torch.distributions import Independent, Normal

from tests.libraries.conftest import ID, TINY

pytestmark = pytest.mark.long


def test_ppo_trains() -> None:
    pytest.importorskip("tianshou")
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    torch.manual_seed(0)
    rows = DummyVectorEnv([lambda: gym.make(ID, **TINY) for _ in range(2)])
    space, actions = rows.observation_space[0], rows.action_space[0]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=space.shape, hidden_sizes=[16]), action_shape=actions.shape, unbounded=True
    )
    policy = ProbabilisticActorPolicy(
        actor=actor, dist_fn=lambda parts: Independent(Normal(*parts), 1), action_space=actions
    )
    critic = ContinuousCritic(preprocess_net=Net(state_shape=space.shape, hidden_sizes=[16]))
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3))
    buffer = VectorReplayBuffer(24, 2)
    collector = Collector(algorithm, rows, buffer)
    collector.reset()
    before = [weight.detach().clone() for weight in actor.parameters()]
    for _ in range(2):
        found = collector.collect(n_step=12)
        assert found.n_collected_episodes == 4
        assert (found.returns > 0).all()
        with policy_within_training_step(policy):
            algorithm.update(buffer=buffer, batch_size=6, repeat=2)
        collector.reset_buffer()
    assert any(not torch.equal(old, new) for old, new in zip(before, actor.parameters(), strict=True))
