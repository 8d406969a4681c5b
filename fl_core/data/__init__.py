"""Datasets, partitions over clients, and per-client index tables."""
