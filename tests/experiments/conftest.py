"""Fixtures that tests of several commands share."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from experiments.papers import pictures
from experiments.reports import comparison as report
from experiments.reports import pages


@contextmanager
def without_figures() -> Iterator[None]:
    """Write reports without drawing their figures, which have tests of their own and take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "svg_base64", lambda figure: base64.b64encode(b"<svg/>").decode())
        for page in (report, pictures):
            patch.setattr(page, "figure_png", lambda figure, dpi=0: b"")
        patch.setattr(pictures, "figure_svg", lambda figure: "<svg/>")
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    with without_figures():
        yield
