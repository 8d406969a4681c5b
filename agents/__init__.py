"""Learned controllers: training with stable-baselines3, checkpoints without pickles, saved controllers.

The names below are imported on first use.
"""

import lazy_loader

from fl_core.base.packages import require_own

require_own("envs", "policies")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
