"""PPO of RLlib: it makes the environment by its id once `envs` is named in front of it; its policy is compared here."""

from __future__ import annotations

from pathlib import Path

import torch
from ray.rllib.algorithms.ppo import PPOConfig


class Actions(torch.nn.Module):
    """Mean actions of a trained module, without their spread."""

    def __init__(self, trained):
        super().__init__()
        self.trained = trained

    def forward(self, observations):
        """Return the actions [n, knobs] for observations [n, features]."""
        return self.trained.forward_inference({"obs": observations})["action_dist_inputs"].chunk(2, -1)[0]


def train(iterations: int = 3, steps: int = 400, save: Path | None = None, **settings) -> list[float]:
    """Train, and save the policy as TorchScript; returns the mean return of each iteration's episodes."""
    config = (
        PPOConfig()
        .environment("envs:DPilot/Clip-v0", env_config=settings)  # settings are arguments of gym.make
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)  # a cluster's: as many runners as it has cores
        .training(train_batch_size=steps, minibatch_size=min(steps, 64), num_epochs=4)
        .debugging(seed=1)
    )
    algorithm = config.build_algo()
    found = []
    for _ in range(iterations):
        result = algorithm.train()
        found.append(float(result["env_runners"]["episode_return_mean"]))
        print(f"mean return {found[-1]:.3f}")
    if save is not None:
        module = algorithm.get_module()
        example = torch.zeros(1, *module.observation_space.shape)
        torch.jit.trace(Actions(module).eval(), example).save(save)
    algorithm.stop()
    return found


if __name__ == "__main__":
    train(save=Path("rllib.pt"))
