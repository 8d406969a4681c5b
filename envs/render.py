"""Rendering of an episode: as a line of text, or as a picture of its rounds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from envs.core import EnvCore
from fl_core.run.basis import basis_of

_PANELS = (
    ("clip_norm", "clip norm C"),
    ("epsilon_spent", "epsilon spent"),
    ("release_norm_ratio", "released norm / noise norm"),
    ("global_accuracy", "accuracy, server's model"),
)


def render_text(core: EnvCore, row: int) -> str:
    """Write the last round in one line, and what its ε rests on."""
    figures, config = core.last_figures(row), core.federation.config
    parts = [f"round {core.rounds[row]}/{config.rounds}"]
    names = ("clip_norm", "noise_multiplier", "epsilon_spent", "global_accuracy", "personal_accuracy")
    parts += [f"{name} {figures[name]:.4g}" for name in names if math.isfinite(figures.get(name, math.nan))]
    if "epsilon_spent" in figures:
        parts.append(f"(epsilon for {basis_of(config)})")
    return "  ".join(parts)


def render_frame(core: EnvCore, row: int) -> NDArray[np.uint8]:
    """Draw the episode so far, as uint8 `[height, width, 3]`."""
    from envs.picture import picture  # here, because few episodes are rendered, and matplotlib takes its time

    rounds = list(enumerate(core.history[row], start=1))
    panels = {label: [(i, one[name]) for i, one in rounds if name in one] for name, label in _PANELS}
    config = core.federation.config
    return picture(config.rounds, tuple(panels), f"epsilon for {basis_of(config)}").draw(panels)
