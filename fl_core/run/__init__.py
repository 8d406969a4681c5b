"""The federated run: its settings, its state, one round, what is charged and released, and evaluation."""
