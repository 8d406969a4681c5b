"""Federated training under differential privacy as Gymnasium environments; importing this registers `DPilot/*`.

The names below are imported on first use: whoever does without stable-baselines3 need not wait for it.
"""

import lazy_loader

from envs.kinds import register_environments

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_environments()
