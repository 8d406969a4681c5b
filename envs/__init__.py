"""Federated training under differential privacy as Gymnasium environments; importing this registers `DPilot/*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from envs.core import EnvCore, EnvSpec, make_core
from envs.single import DPilotEnv
from envs.tasks import TASKS
from envs.vector import DPilotVectorEnv

if TYPE_CHECKING:
    from envs.sb3 import DPilotVecEnv

__all__ = ["DPilotEnv", "DPilotVecEnv", "DPilotVectorEnv", "EnvCore", "EnvSpec", "make_core"]


def _register() -> None:
    """One id per kind of control, and one per built-in task for tools that take nothing but an id."""
    ids: dict[str, dict[str, str]] = {"DPilot/Clip-v0": {}} | {
        f"DPilot/Clip-{task}-v0": {"task": task} for task in TASKS
    }
    for name, settings in ids.items():
        if name not in gym.registry:
            gym.register(
                name,
                entry_point="envs.single:DPilotEnv",
                vector_entry_point="envs.vector:DPilotVectorEnv",
                kwargs=settings,
            )


def __getattr__(name: str) -> Any:
    """`DPilotVecEnv`, imported on first use: whoever does without stable-baselines3 need not wait for it."""
    if name == "DPilotVecEnv":
        from envs.sb3 import DPilotVecEnv

        return DPilotVecEnv
    raise AttributeError(f"module 'envs' has no attribute '{name}'")


_register()
