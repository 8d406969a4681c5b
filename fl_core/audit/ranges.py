"""Ranges of the numbers that an audit is given."""

from __future__ import annotations

from fl_core.base.bounds import count

CANARIES = count(20, 100_000, "fewer tell nothing, and each has a direction of the model's size")
