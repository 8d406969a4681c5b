"""Records that are written and read back: comparisons, run folders, ledger files, TensorBoard events."""
