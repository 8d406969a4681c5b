"""Ranges of the numbers among the settings of a federation."""

from __future__ import annotations

from collections.abc import Mapping

from fl_core.base.bounds import Bounds, count
from fl_core.privacy.curves import DELTA, SAMPLING_RATE

SEED = count(0, 2**63 - 1, "seeds have 63 bits")
RUNS = count(1, 100_000, "more do not run side by side")
"""Runs of a batch, and rows of a batch of environments."""
MOST_ROUNDS = 1_000_000
_FLOAT32 = "more is beyond the numbers that training computes with"
BOUNDS: Mapping[str, Bounds] = {
    "clients": count(1, 1_000_000, "no dataset has samples for more"),
    "rounds": count(1, MOST_ROUNDS, "the ledger counts no more"),
    "local_steps": count(1, 10_000, "more in a round is a training of its own"),
    "batch_size": count(1, 100_000, "no client has more samples"),
    "evaluation_samples": count(0, 10_000_000, "no dataset has more"),
    "evaluation_clients": count(0, 1_000_000, "there are no more clients"),
    "client_memory_mib": count(0, 1 << 24, "no machine has more"),
    "image_memory_mib": count(0, 1 << 24, "no machine has more"),
    "memory_limit_mib": count(0, 1 << 24, "no machine has more"),
    "test_fraction": Bounds(0.001, 0.5, "a client keeps at least half of its samples to train on"),
    "sampling_rate": SAMPLING_RATE,
    "local_epochs": Bounds(1e-6, 1000, "more in a round is a training of its own", also=(0,)),
    "learning_rate": Bounds(1e-30, 1e30, _FLOAT32),
    "update_scale": Bounds(1e-3, 1e3),
    "momentum": Bounds(0, 1, below=True),
    "weight_decay": Bounds(0, 1e30, _FLOAT32),
    "delta": DELTA,
    "telemetry_share": Bounds(1e-6, 0.99, "less tells nothing, and more leaves nothing to the updates", also=(0,)),
    "bit_noise": Bounds(0, 1e6, "more would hide any cohort"),
}
"""Ranges of the numbers, by field; that of epsilon depends on the method, see `FederationConfig.check_epsilon`."""
