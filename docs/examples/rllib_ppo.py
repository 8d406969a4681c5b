"""PPO of RLlib: it makes the environment by its id once `envs` is named in front of it."""

from __future__ import annotations

from ray.rllib.algorithms.ppo import PPOConfig


def train(iterations: int = 3, steps: int = 400, **settings) -> list[float]:
    """Train; returns the mean return of each iteration's episodes."""
    config = (
        PPOConfig()
        .environment("envs:DPilot/Clip-v0", env_config=settings)  # settings are arguments of gym.make
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .training(train_batch_size=steps, minibatch_size=min(steps, 64), num_epochs=4)
        .debugging(seed=1)
    )
    algorithm = config.build_algo()
    found = []
    for _ in range(iterations):
        result = algorithm.train()
        found.append(float(result["env_runners"]["episode_return_mean"]))
        print(f"mean return {found[-1]:.3f}")
    algorithm.stop()
    return found


if __name__ == "__main__":
    train()
