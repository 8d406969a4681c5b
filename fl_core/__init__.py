"""Differentially private, personalized federated training: data, models, methods, privacy and the round.

It knows nothing of reinforcement learning. The names below are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
