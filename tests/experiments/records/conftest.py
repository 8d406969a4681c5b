"""Comparisons in here are run for what they record: their reports are written without figures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.experiments.conftest import without_figures


@pytest.fixture(autouse=True, scope="module")
def _undrawn() -> Iterator[None]:
    with without_figures():
        yield
