"""Contenders of a comparison: hand-coded, tuned, learned and online controllers, their preparation and their play."""
