"""Differential privacy: accounting, the ledger that cannot be overspent, and the clip-and-noise mechanism."""
