"""Networks, their parameters as flat vectors, and layers that run faster on CPUs."""
