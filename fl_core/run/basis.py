"""Basis of an ε, printed with every one: unit, adjacency, observer and amplification, in one line."""

from __future__ import annotations

from fl_core.privacy.adjacency import ADJACENCIES
from fl_core.run.config import FederationConfig

UNIT = "one client with all its data"
OBSERVERS = {
    "central": "whoever sees the released models, not the server",
    "distributed": "a server that sees only the sum",
    "local": "a server that sees each upload",
}
"""Placement of the noise -> against whom ε holds."""
UPLOADS = "a server that sees each upload, and so who takes part"


def basis_text(adjacency: str, placement: str, amplified_at: float = 1.0, uploads: bool = False) -> str:
    """State unit, adjacency, observer and amplification of an ε in one line.

    Args:
        adjacency: one of `ADJACENCIES`.
        placement: of the noise.
        amplified_at: Poisson rate whose amplification is counted; 1 for none.
        uploads: whether the ε is that against a server that sees single uploads. It sees who takes part, so that
            add-remove becomes zero-out, and nothing is amplified.
    """
    observer = OBSERVERS.get(placement, f"whoever the placement {placement} holds against")
    if uploads:
        observer, amplified_at = UPLOADS, 1.0
        adjacency = "zero-out" if adjacency == "add-remove" else adjacency
    elif placement == "distributed" and amplified_at < 1:
        observer += " and does not know the cohort"
    sampled = f"amplified by secret sampling at rate {amplified_at:g}" if amplified_at < 1 else "no amplification"
    return f"unit one client, {adjacency} ({ADJACENCIES[adjacency].summary}); against {observer}; {sampled}"


def basis_of(config: FederationConfig) -> str:
    """State the basis of the ε of a configuration's runs."""
    return basis_text(config.neighbours, config.placement, config.accounting_rate)
