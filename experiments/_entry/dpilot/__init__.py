"""The name that no folder beside a script hides: importing it registers `DPilot/*`, as importing envs does.

`gym.make("dpilot:DPilot/Clip-v0")` imports it by itself. Where another package hides one of DPilot's, either says
which. It is installed at the top of site-packages, beside the five packages, whose names are common.
"""

from importlib import import_module

try:
    from fl_core.base.packages import require_own
except ImportError as error:
    raise ImportError(
        f"Another package hides DPilot's fl_core ({error}); keep folders of that name off Python's path (PYTHONPATH, "
        "the folder of the script)."
    ) from None

require_own("envs")
import_module("envs")  # it registers the ids
