"""Values of a method's knobs in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fl_core.recipes.recipe import Recipe
from fl_core.run.plan import FloatArray, RoundPlan


def knob_values(
    plan: RoundPlan, defaults: Sequence[Mapping[str, float]], recipe: Recipe, scales: FloatArray
) -> dict[str, FloatArray]:
    """Gather the values of every knob: the plan's, or each run's default `[runs]` (`[runs, layers]`).

    C is among them also where nothing is clipped, if updates are exchanged or a loss reads it.

    Args:
        plan: the controllers' decisions.
        defaults: of each run, by knob.
        recipe: the method.
        scales: units of the plan's norms over the model's own `[runs]`; C is converted to the latter.
    """
    values = {name: np.array([own[name] for own in defaults]) for name in defaults[0]}
    values.pop("layer_weights", None)  # the method's own, unless the plan has them
    objective = recipe.objective
    if recipe.exchanges or "clip_norm" in objective.needs or objective.clamp_count:
        values["clip_norm"] = plan.clip_norm / scales
    if recipe.exchanges:
        values["server_learning_rate"] = plan.server_learning_rate
    return {**values, **plan.settings}


def knob_tensors(values: Mapping[str, float | FloatArray]) -> dict[str, Tensor]:
    """Convert the values of one run's knobs to tensors `[1]`, or `[1, layers]` of those with one per layer."""
    return {name: torch.from_numpy(np.asarray(value, dtype=np.float32)[np.newaxis]) for name, value in values.items()}
