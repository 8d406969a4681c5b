"""Statistics of comparisons: summaries and bootstrap intervals."""
