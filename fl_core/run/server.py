"""Server of a federation whose clients are elsewhere: its state, its releases, and what it sends.

It knows the method, the layout of the model and what clients upload, and no client's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.models.model import Model
from fl_core.privacy.telemetry import TELEMETRY
from fl_core.run.charging import UPDATE
from fl_core.run.config import FederationConfig
from fl_core.run.deployable import require_deployable
from fl_core.run.draws import Draws
from fl_core.run.release import Cohorts, Releaser
from fl_core.run.round_telemetry import released_telemetry
from fl_core.run.server_step import ServerStep
from fl_core.run.state import RunState

_RAN: BoolArray = np.array([True])


class FederatedServer:
    """Server of one run: clips, sums and noises what clients upload, and moves the model.

    Attributes:
        state: of the run; no client's tensors are in it.
        broken: updates of the last round that were missing, not finite or of another shape; each contributed zero.
    """

    def __init__(self, config: FederationConfig, model: Model, seed: int, secret: bytes):
        """Begin a run.

        Args:
            config: settings of the federation.
            model: the model.
            seed: of the run.
            secret: key of the noise; "" draws it from the seed.

        Raises:
            InputError: the method cannot be deployed.
        """
        self.config, self.model, self._seed, self._secret = config, model, seed, secret
        self.recipe = config.recipe()
        require_deployable(config, self.recipe)
        self.state = RunState.allocate(self.recipe, model, 1, config)
        self.state.restart(0, self.recipe, model, model.initial(seed, self.state.server.device))
        self._releaser = Releaser(config, self.recipe, model)
        blocks = self.recipe.mechanism.clipping.blocks(model)
        self._layer_sizes = [block.stop - block.start for block in blocks]
        self.broken = 0

    def broadcast(self) -> dict[str, Tensor]:
        """Return what every client of the next round is sent, by name: the model, and what the method keeps of it."""
        return {"server": self.state.server[0]} | {f"run.{name}": value[0] for name, value in self.state.runs.items()}

    def release(
        self,
        index: int,
        knobs: Mapping[str, Tensor],
        noise: Mapping[str, float],
        updates: Sequence[Tensor | None],
        telemetry: Sequence[Mapping[str, Tensor]],
    ) -> dict[str, float]:
        """Clip, sum and noise the updates of a round, and move the model; returns the public figures of the release.

        Args:
            index: of the round, from 0.
            knobs: values of every knob `[1]` (`[1, layers]`).
            noise: noise multipliers that the ledger was charged for, by release.
            updates: of the clients that were drawn `[size]`; None of those that failed.
            telemetry: what each of them adds to the sums of telemetry `[values]`, by name.
        """
        self.state.rounds[0] = index
        rows = [self._row(one) for one in updates]
        stacked = torch.stack(rows) if rows else torch.zeros(1, self.model.size)
        multipliers = {name: np.array([value]) for name, value in noise.items()}
        draws = Draws([self._seed], self.state.rounds, stacked.device, [self._secret])
        cohorts = self._cohorts(stacked.unsqueeze(0), len(rows), knobs, multipliers)
        size = (self.model.size,)
        released = self._releaser(
            cohorts, lambda uploads: draws.normal("noise", _RAN & (multipliers[UPDATE] > 0), size)
        )
        step = ServerStep(
            self.config, self.recipe, self.model, self.state, knobs, multipliers, torch.from_numpy(_RAN.copy())
        )
        moved = step.moved(released)
        figures = step.figures(released, moved)
        figures |= self._telemetry(multipliers, telemetry, draws)
        self.broken = int((~released.clipped.finite).sum())
        self.state = step.advance(released, moved)
        return {name: float(value[0]) for name, value in figures.items()}

    def _row(self, update: Tensor | None) -> Tensor:
        """Return an update, or NaN throughout where it is missing or of another shape: the clip takes it for absent."""
        fits = update is not None and update.shape == (self.model.size,) and update.is_floating_point()
        return update.to(torch.float32) if fits and update is not None else torch.full((self.model.size,), torch.nan)

    def _cohorts(
        self, updates: Tensor, drawn: int, knobs: Mapping[str, Tensor], noise: Mapping[str, FloatArray]
    ) -> Cohorts:
        weights = self.recipe.mechanism.clipping.run_weights(self.state.runs, dict(knobs))
        return Cohorts(
            updates=updates,
            present=torch.full((1, updates.shape[1]), drawn > 0),
            participants=torch.tensor([float(drawn)]),
            sizes=np.array([drawn]),
            weights=None,
            uploaded=self._mask(),
            clip=knobs["clip_norm"],
            layer_sizes=self._layer_sizes,
            layer_weights=None if weights is None else weights.unsqueeze(1),
            noise_multiplier=torch.from_numpy(noise[UPDATE].astype("float32")),
            clip_ratio=None,
            noise_ratio=None,
        )

    def _mask(self) -> Tensor | None:
        """Make the mask of the coordinates that clients upload `[1, 1, size]`; None for all."""
        part = self.recipe.personalization
        masks = [part.shared(self.state.runs), part.static_mask(self.model, self.state.server.device)]
        found = [one.view(1, 1, -1) for one in masks if one is not None]
        return None if not found else torch.stack([one.expand(1, 1, self.model.size) for one in found]).prod(0)

    def _telemetry(
        self,
        noise: Mapping[str, FloatArray],
        told: Sequence[Mapping[str, Tensor]],
        draws: Draws,
    ) -> dict[str, Tensor]:
        """Release the telemetry that is paid for."""
        bought = {name: noise[name] for name in TELEMETRY if name in noise}
        layers = [span.name for span in self.model.layers]
        sizes = {name: len(layers) if TELEMETRY[name].per_layer else 1 for name in bought}
        contributed = {
            name: torch.stack([torch.zeros(size), *(_bounded(one.get(name), size) for one in told)]).unsqueeze(0)
            for name, size in sizes.items()
        }
        std = {name: torch.from_numpy(value.astype("float32")) for name, value in bought.items()}
        expected = torch.full((1,), self.config.cohort)
        return released_telemetry(contributed, bought, std, expected, draws, _RAN, layers)


def _bounded(value: Tensor | None, size: int) -> Tensor:
    """Return a client's term of a sum `[size]`, of norm at most 1 whatever it sent; zeros for what is none."""
    if value is None or value.shape != (size,) or not bool(torch.isfinite(value).all()):
        return torch.zeros(size)
    value = value.to(torch.float32)
    norm: Tensor = torch.linalg.vector_norm(value)
    return torch.div(value, norm.clamp_min(1.0))
