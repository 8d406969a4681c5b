"""Summaries and intervals of comparisons."""
