"""Foundations: errors of one sentence, files written whole, named random streams, array types."""
