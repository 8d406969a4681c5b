"""What everything stands on: one-sentence errors, files written whole, named random streams."""
