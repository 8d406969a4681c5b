"""What takes part in a comparison: hand-coded, tuned, learned and online controllers, and how they are played."""
