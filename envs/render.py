"""Rendering of an episode: as a line of text, or as a picture of its rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.core import EnvCore

_PANELS = (
    ("clip_norm", "clip norm C"),
    ("epsilon_spent", "epsilon spent"),
    ("release_norm_ratio", "released norm / noise norm"),
    ("global_accuracy", "accuracy, server's model"),
)


def render_text(core: EnvCore, row: int) -> str:
    """Write the last round in one line."""
    info = core.info(row)
    parts = [f"round {info['round']}/{core.federation.config.rounds}"]
    names = ("clip_norm", "noise_multiplier", "epsilon_spent", "global_accuracy", "personal_accuracy")
    parts += [f"{name} {info[name]:.4g}" for name in names if name in info]
    return "  ".join(parts)


def render_frame(core: EnvCore, row: int) -> NDArray[np.uint8]:
    """Draw the episode so far, as uint8 `[height, width, 3]`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, because few episodes are rendered
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        known = [(i + 1, round_[name]) for i, round_ in enumerate(core.history[row]) if name in round_]
        if known:
            axes.plot(*zip(*known, strict=True), marker=".")
        axes.set(title=label, xlabel="round", xlim=(0, core.federation.config.rounds))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
