"""A picture of figures over the rounds of an episode, drawn anew for every frame in a fraction of a figure's time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

_WIDE_LABELS = (0.0, 0.005)
"""Range whose tick labels take the room that most figures' labels need."""


class Picture:
    """Panels of points over rounds, of which only what changes from frame to frame is drawn again.

    Layout, titles and the axes of rounds are most of the work and stay, so a frame adds vertical axes and lines alone.
    """

    def __init__(self, rounds: int, titles: Sequence[str], foot: str):
        """Lay out a panel for each of four titles, a line of text at the foot, and draw what stays."""
        figure = Figure(figsize=(8, 5), dpi=80, layout="constrained")
        self._canvas = FigureCanvasAgg(figure)
        self._axes = dict(zip(titles, figure.subplots(2, 2).flat, strict=True))
        for title, axes in self._axes.items():
            axes.set(title=title, xlabel="round", xlim=(0, rounds), ylim=_WIDE_LABELS)
        figure.supxlabel(textwrap.fill(foot, 120), x=0.01, ha="left", fontsize="x-small")
        self._canvas.draw()
        figure.set_layout_engine("none")
        self._lines = {title: axes.plot([], [], marker=".", animated=True)[0] for title, axes in self._axes.items()}
        for axes in self._axes.values():
            axes.set_autoscaley_on(True)
            axes.yaxis.set_animated(True)
            axes.yaxis.set_label_coords(0, 0.5)  # it has no label, whose place would be sought in every frame
        self._canvas.draw()
        self._background = self._canvas.copy_from_bbox(figure.bbox)
        self._lock = Lock()

    def draw(self, panels: Mapping[str, Sequence[tuple[int, float]]]) -> NDArray[np.uint8]:
        """Draw the points (round, value) of every panel, by title, as uint8 `[height, width, 3]`."""
        with self._lock:
            self._canvas.restore_region(self._background)
            renderer = self._canvas.get_renderer()
            for title, axes in self._axes.items():
                line, points = self._lines[title], np.reshape(panels[title], (-1, 2))
                line.set_data(points[:, 0], points[:, 1])
                axes.set_ylim(0, 1, auto=True)  # where there is nothing yet
                axes.relim()
                axes.autoscale_view(scalex=False)
                axes.yaxis.draw(renderer)
                line.draw(renderer)
            return np.asarray(self._canvas.buffer_rgba())[..., :3].copy()


@lru_cache(maxsize=4)
def picture(rounds: int, titles: tuple[str, ...], foot: str) -> Picture:
    """Make the picture of episodes of so many rounds, or take the one that exists."""
    return Picture(rounds, titles, foot)
