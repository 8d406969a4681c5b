"""The command line, comparisons and their statistics, reports and benchmarks.

The names below are imported on first use.
"""

import lazy_loader

from fl_core.base.packages import require_own

require_own("envs", "policies", "agents")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
