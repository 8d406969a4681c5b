"""Audit: attacks on a federation's real rounds that test its claimed privacy."""
