"""Federated training under differential privacy as Gymnasium environments; importing this registers `DPilot/*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from envs.core import EnvCore, EnvSpec, make_core
from envs.single import DPilotEnv
from envs.tasks import TASKS
from envs.vector import DPilotVectorEnv

if TYPE_CHECKING:
    from envs.processes import DPilotProcessVecEnv
    from envs.sb3 import DPilotVecEnv

__all__ = [
    "KINDS",
    "DPilotEnv",
    "DPilotProcessVecEnv",
    "DPilotVecEnv",
    "DPilotVectorEnv",
    "EnvCore",
    "EnvSpec",
    "make_core",
]


KINDS: dict[str, dict[str, str]] = {
    "Clip": {},
    "LayerClip": {"method": "fedglp-adp", "knobs": "clip_norm,layer_weights"},
    "Budget": {"knobs": "budget_pace"},
    "Personalize": {"method": "fedglp-adp", "knobs": "personalization"},
    "Joint": {"method": "fedglp-adp", "knobs": "all"},
}
"""What each kind of control sets, and with which method unless `method=` names another that has the knobs."""


def _register() -> None:
    """One id per kind of control, and one per kind and built-in task for tools that take nothing but an id."""
    ids = {
        f"DPilot/{kind}{suffix}-v0": settings | task
        for kind, settings in KINDS.items()
        for suffix, task in [("", {}), *((f"-{name}", {"task": name}) for name in TASKS)]
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
    """The `VecEnv`s, imported on first use: whoever does without stable-baselines3 need not wait for it."""
    if name == "DPilotVecEnv":
        from envs.sb3 import DPilotVecEnv

        return DPilotVecEnv
    if name == "DPilotProcessVecEnv":
        from envs.processes import DPilotProcessVecEnv

        return DPilotProcessVecEnv
    raise AttributeError(f"module 'envs' has no attribute '{name}'")


_register()
