"""Federated training under differential privacy as Gymnasium environments; importing this registers `DPilot/*`.

The ids are registered as soon as Gymnasium is imported too, whichever comes first. The names below are imported on
first use: whoever asks for ids alone need not wait for torch, nor for stable-baselines3.
"""

import lazy_loader

from envs.kinds import register_environments
from fl_core.base.libraries import after_import

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

after_import("gymnasium", register_environments)
