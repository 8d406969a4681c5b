"""Bugs to plant into the real rounds; `python -m tests.fl_core.audit.bugs` prints which attack sees which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fl_core.privacy.noise_model
import fl_core.run.release
from fl_core.audit.audit import Audit, audit
from fl_core.base.streams import torch_generator
from fl_core.recipes.aggregation import Aggregation
from fl_core.run.release import Releasing
from fl_core.run.round import Round
from tests.fl_core.plain import config

CLIP = 2.0
ATTACKS = ("sensitivity", "noise", "canaries")


def other_clip(patch: pytest.MonkeyPatch) -> None:
    """Noise for C = 1, whatever was applied."""
    real = fl_core.privacy.noise_model.noise_std
    patch.setattr(
        fl_core.privacy.noise_model, "noise_std", lambda who, clip, *rest: real(who, torch.ones_like(clip), *rest)
    )


def variance_as_std(patch: pytest.MonkeyPatch) -> None:
    """√(σC) in the place of σC."""
    real = fl_core.privacy.noise_model.noise_std
    patch.setattr(fl_core.privacy.noise_model, "noise_std", lambda *arguments: real(*arguments).sqrt())


def divided_twice(patch: pytest.MonkeyPatch) -> None:
    """The noise of the mean, on the sum."""
    real = fl_core.privacy.noise_model.noise_std
    patch.setattr(
        fl_core.privacy.noise_model, "noise_std", lambda *arguments: real(*arguments) / arguments[-1].clamp_min(1)
    )


def clip_by_layer(patch: pytest.MonkeyPatch) -> None:
    """Each layer clipped to C, and the noise as for one clip."""
    real = Releasing.__init__

    def init(self: Releasing, made: Any, recipe: Any, model: Any) -> None:
        real(self, made, recipe, model)
        self._blocks = tuple(span.slice for span in model.layers)

    patch.setattr(Releasing, "__init__", init)


def weights_after_clip(patch: pytest.MonkeyPatch) -> None:
    """Every clipped update counts three times."""
    real = fl_core.run.release.scaled_sum
    patch.setattr(fl_core.run.release, "scaled_sum", lambda *arguments: 3 * real(*arguments))


def same_noise(patch: pytest.MonkeyPatch) -> None:
    """The first round's noise in every round."""

    def generator(self: Round, row: int, stream: str) -> torch.Generator:
        return torch_generator(self.federation.seeds[row], stream, 0, self.device)

    patch.setattr(Round, "_generator", generator)


def survivors(patch: pytest.MonkeyPatch) -> None:
    """The mean over those who showed up."""

    def mean(self: Aggregation, released: torch.Tensor, expected: float, participants: torch.Tensor, _: Any) -> Any:
        return released / participants.clamp_min(1).unsqueeze(-1)

    patch.setattr(Aggregation, "mean", mean)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "noise scaled to another C": (other_clip, {"noise", "canaries"}),
    "√(σC) taken as the std": (variance_as_std, {"noise", "canaries"}),
    "noise divided by the cohort twice": (divided_twice, {"noise", "canaries"}),
    "clip per layer with global noise": (clip_by_layer, {"sensitivity", "canaries"}),
    "weights × 3 after the clip": (weights_after_clip, {"sensitivity", "canaries"}),
    "the same noise every round": (same_noise, {"noise", "canaries"}),
    "denominator of survivors": (survivors, {"sensitivity"}),
}
"""How each is planted, and the attacks that must see it."""


def small_audit(seed: int = 0, canaries: int = 120, **changes: Any) -> Audit:
    """An audit of half a second: a small mlp, thirty clients, eight rounds."""
    made = config(clients=30, rounds=8, partition="iid", **changes)
    return audit(made, CLIP, canaries, seed)


def main() -> None:
    """Print the table."""
    width = max(map(len, BUGS))
    print(f"{'planted':<{width}}  {'  '.join(ATTACKS)}  verdict")
    for name in ("nothing", *BUGS):
        with pytest.MonkeyPatch.context() as patch:
            if name in BUGS:
                BUGS[name][0](patch)
            result = small_audit()
        seen = {one.attack for one in result.findings}
        marks = "  ".join(f"{'x' if attack in seen else '-':<{len(attack)}}" for attack in ATTACKS)
        print(f"{name:<{width}}  {marks}  {result.verdict}")


if __name__ == "__main__":
    main()
