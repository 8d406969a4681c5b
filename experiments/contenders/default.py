"""Controller of a run for which none is named."""

from __future__ import annotations

import math

from fl_core.run.config import FederationConfig

AUTO = "auto"
"""In place of a controller's name: the one that `default_controller` chooses."""


def default_controller(federation: FederationConfig) -> str:
    """Choose a controller that needs neither training, nor a search, nor updates of a known length.

    Returns:
        `probe`; `fixed` where a paper's guarantee is followed, noise is planned ahead, or there is none; `none` for
        methods without a clip norm.
    """
    if "clip_norm" not in {knob.name for knob in federation.recipe().knobs}:
        return "none"
    planned = federation.noise_schedule == "fixed" or federation.guarantee != "sound"
    return "fixed" if planned or math.isinf(federation.epsilon) else "probe"
