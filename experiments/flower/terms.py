"""Terms that server and clients of a federation must share, as a line that both compute from their own settings."""

from __future__ import annotations

from dataclasses import asdict

from fl_core.base.files import digest, spelled_out
from fl_core.base.sealed import dpilot_version
from fl_core.run.config import FederationConfig
from fl_core.run.saved_state import FREE

_SERVERS = (
    *("epsilon", "noise_multiplier", "delta", "adjacency", "noise_schedule", "placement", "noise", "rounds"),
    *("telemetry", "telemetry_share", "bit_noise", "evaluation_samples", "evaluation_clients", "evaluation"),
)
"""Settings that are the server's alone: a client learns from each round what it must know of them."""


def terms(config: FederationConfig) -> str:
    """Describe a federation by version, method, model, dataset and a digest of what clients depend on."""
    shared = {name: value for name, value in asdict(config).items() if name not in (*FREE, *_SERVERS)}
    mark = digest(spelled_out(shared))[:12]
    return f"dpilot {dpilot_version()}, {config.method} with {config.model} on {config.dataset}, settings {mark}"
