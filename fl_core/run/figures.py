"""Names of the figures that the rounds of a federation report, known before the first."""

from __future__ import annotations

from collections.abc import Collection

from fl_core.privacy.telemetry import PER_LAYER, TELEMETRY
from fl_core.run.evaluation import EVALUATED
from fl_core.run.federation import Federation

_ALWAYS = ("train_loss", "participants", "rejected_updates", "epsilon_spent", "epsilon_left", "budget_left")
_EXCHANGED = (
    "server_learning_rate",
    "server_norm",
    "update_norm",
    "release_norm",
    "release_noise",
    "release_norm_ratio",
    "release_alignment",
    "uplink_bytes",
)
_NOISED = ("clip_norm", "noise_multiplier", "clipped_share", "signal_to_noise")


def figure_names(federation: Federation, knobs: Collection[str] = ()) -> list[str]:
    """List the names of all figures that a round may report, evaluation included.

    Args:
        federation: the runs.
        knobs: settings of the round's plan, by name.
    """
    recipe, config = federation.recipe, federation.config
    layers = [span.name for span in federation.model.layers]
    names = [*_ALWAYS, *sorted(EVALUATED)]
    if recipe.exchanges:
        names += _EXCHANGED
        if recipe.mechanism.clipping.by_layer:
            names += [f"release_layer_norm{PER_LAYER}{layer}" for layer in layers]
        if "personal" in recipe.objective.needs and "personal" in recipe.personalization.provides:
            names.append("personal_share")
    if recipe.exchanges and recipe.private:
        names += _NOISED
        releases = federation.charging.release_names(knobs)
        names += [name for key, one in TELEMETRY.items() if key in releases for name in one.figures(layers)]
    if recipe.private and config.guarantee != "sound":
        names.append("epsilon_of_updates")
    if recipe.mechanism.budgeting.measures_risk and recipe.mechanism.budgeting.releases:
        names.append("risk_noised")
    return names
