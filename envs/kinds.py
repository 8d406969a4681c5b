"""The kinds of control, and the ids under which Gymnasium knows them."""

from __future__ import annotations

from collections.abc import Iterable

from fl_core.base.libraries import gymnasium

TASK_NAMES = ("digits", "mnist5k", "fashion-mnist")
"""Built-in tasks, by name: those of `envs.tasks`, whose settings need torch, which ids do not."""
KINDS: dict[str, dict[str, str]] = {
    "Clip": {},
    "LayerClip": {"method": "fedglp-adp", "knobs": "clip_norm,layer_weights"},
    "Budget": {"knobs": "budget_pace"},
    "Personalize": {"method": "fedglp-adp", "knobs": "personalization"},
    "Joint": {"method": "fedglp-adp", "knobs": "all"},
}
"""Kind of control -> its knobs, and its method unless `method=` names another that has the knobs."""


def register_environments(tasks: Iterable[str] = TASK_NAMES) -> None:
    """Register one id per kind of control, and one per kind and task for tools that take nothing but an id."""
    ids = {
        f"DPilot/{kind}{suffix}-v0": settings | task
        for kind, settings in KINDS.items()
        for suffix, task in [("", {}), *((f"-{name}", {"task": name}) for name in tasks)]
    }
    for name, settings in ids.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point="envs.single:DPilotEnv",
                vector_entry_point="envs.vector:DPilotVectorEnv",
                kwargs=settings,
            )
