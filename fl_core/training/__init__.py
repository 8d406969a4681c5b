"""Local training of many clients: executors, traced programs, optimizers and information measures."""
