"""The command line, comparisons and their statistics, reports and benchmarks."""
