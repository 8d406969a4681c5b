"""Modules of rich that are imported on first use, as those of `fl_core.base.libraries` are."""

from __future__ import annotations

from fl_core.base.libraries import Library

box = Library("rich.box")
consoles = Library("rich.console")
table = Library("rich.table")
text = Library("rich.text")
