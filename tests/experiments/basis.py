"""A check of pages for people: whatever tells an ε also tells what it rests on."""

from __future__ import annotations

import re

from fl_core.privacy.adjacency import ADJACENCIES

NUMBER = re.compile(r"(epsilon|ε|certified)(\b|_)[^\n.;]*\d", re.IGNORECASE)
"""A line that tells an ε."""
BASIS = re.compile(rf"unit one client, ({'|'.join(ADJACENCIES)}) \(")
"""How `basis_text` begins; a narrow terminal folds what follows."""


def require_basis(page: str) -> str:
    """Fail unless a page tells an ε and its basis; returns the page on one line."""
    assert NUMBER.search(page), f"no epsilon is told here, so that the check says nothing:\n{page}"
    assert BASIS.search(" ".join(page.split())), f"an epsilon is told here without its basis:\n{page}"
    return " ".join(page.split())
