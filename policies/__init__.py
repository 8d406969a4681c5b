"""Hand-coded controllers; each speaks the `predict` of stable-baselines3. The names below are imported on first use."""

import lazy_loader

from fl_core.base.packages import require_own

require_own("envs")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
