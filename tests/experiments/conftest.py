"""Fixtures that tests of several commands share."""

from __future__ import annotations

import base64

import pytest

from experiments.reports import comparison as report
from experiments.reports import pages


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written without drawing their figures, which have tests of their own and take seconds."""
    monkeypatch.setattr(pages, "svg_base64", lambda figure: base64.b64encode(b"<svg/>").decode())
    monkeypatch.setattr(report, "figure_png", lambda figure: b"")
