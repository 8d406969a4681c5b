"""One communication round of the runs that were charged for it: begin, train, release, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fl_core.base.streams import torch_generator
from fl_core.privacy.mechanism import noise_std, noised_mean
from fl_core.privacy.noise_model import LEAST_RATIO
from fl_core.privacy.telemetry import PER_LAYER, TELEMETRY, Witness, figures_of
from fl_core.recipes.mechanism import layer_norms, layer_weights
from fl_core.recipes.parts import clamp_size
from fl_core.recipes.personalization import ClientView, Start
from fl_core.recipes.sparsification import Trained
from fl_core.run.charging import RISK, UPDATE
from fl_core.run.cohort import of_clients, of_runs
from fl_core.run.plan import BoolArray, FloatArray, RoundPlan
from fl_core.run.release import Cohorts, Released
from fl_core.run.uplink import uplink_bytes
from fl_core.training.executors import LocalWork
from fl_core.training.information import jacobian_risk

if TYPE_CHECKING:
    from fl_core.run.federation import Federation

RISK_PROBES = 4
"""Random signs by which a client's Jacobian risk is estimated."""
RISK_SPAN = 4.0
"""Decades around 1 within which a risk is told apart; what is released is its logarithm over this, in [-1, 1]."""

Figures = dict[str, Any]
"""Reported figures by name, `[runs]` each."""


class Round:
    """A round in the making.

    Attributes:
        federation: the batch of runs.
        noise: noise multipliers by release, as charged `[runs]`.
        ran: the runs that take part `[runs]`.
        cohort: the clients that do.
        knobs: values of every knob `[runs]`.
    """

    def __init__(self, federation: Federation, plan: RoundPlan, noise: dict[str, FloatArray], ran: BoolArray):
        """Draw the cohort."""
        self.federation, self.noise, self.ran = federation, noise, ran
        self.config, self.recipe, self.model = federation.config, federation.recipe, federation.model
        self.device = federation.device
        self.knobs = federation.knob_values(plan)
        shares = federation.charging.client_shares()
        out = None if shares is None else shares == 0
        self.cohort = federation.draw_cohort(ran, out)
        self._client_shares = None if shares is None else self._shares(shares)
        self._participants = torch.from_numpy(self.cohort.sizes.astype(np.float32)).to(self.device)

    def _shares(self, lasting: FloatArray) -> Tensor:
        """Part of C that each client with a budget of its own uses in this round `[runs, clients]`; 0 if out."""
        shares = torch.from_numpy(lasting.astype(np.float32)).to(self.device)
        used = shares ** self.knobs["client_budget_strength"].unsqueeze(-1)
        return torch.where(shares > 0, used, 0.0)

    def run(self) -> Figures:
        """Do it. The federation has moved on afterwards."""
        federation, recipe, cohort = self.federation, self.recipe, self.cohort
        start = self._begin()
        work = federation.local_work(
            recipe.objective.phases, "minibatch", cohort.run, cohort.client, start.vector, start.context
        )
        trained, loss = federation.executor.train(work, federation.images)
        update, finite = self._update(start, trained)
        rejected = cohort.scatter((~finite).float()).sum(-1)
        used = (self._participants - rejected).clamp_min(1)
        figures: Figures = federation.charging.figures() | {
            "train_loss": cohort.scatter(torch.where(finite, loss, 0.0)).sum(-1) / used,
            "participants": cohort.sizes,
            "rejected_updates": rejected,
        }
        if recipe.exchanges:
            figures |= self._release(start, trained, update, finite)
        self._keep(recipe.personalization.end(self.model, trained, start), finite)
        if recipe.mechanism.uses_risk:
            figures |= self._measure_risk(trained, work, finite)
        return figures

    # ---------------------------------------------------------------- before and after training

    def _begin(self) -> Start:
        """The vectors, masks and contexts that the cohort's round starts from."""
        federation, run, client = self.federation, self.cohort.run, self.cohort.client
        view = ClientView(
            model=self.model,
            server=of_runs(federation.server, run),
            state={name: of_clients(value, run, client) for name, value in federation.clients.items()},
            run={name: of_runs(value, run) for name, value in federation.run_state.items() if name != "average"},
            knobs={name: of_runs(value, run) for name, value in self.knobs.items()},
            fisher=self._fisher,
        )
        start = self.recipe.personalization.begin(view)
        return Start(start.vector, start.reference, self._context(start), start.shared)

    def _fisher(self, models: Tensor, samples: int) -> Tensor:
        """Fisher information of the cohort's models `[rows, size]` on so many of its training samples (0: all)."""
        return self.federation.fisher(models, self.cohort.run, self.cohort.client, samples)

    def _context(self, start: Start) -> dict[str, Tensor]:
        """What the losses, masks and clamps of the clients read."""
        objective, run = self.recipe.objective, self.cohort.run
        context = {name: value for name, value in start.context.items() if name in objective.needs}
        if objective.terms or objective.clamp_count:
            context["start"] = start.vector
        if "clip_norm" in objective.needs:
            context["clip_norm"] = self.knobs["clip_norm"][run]
        if "anchor" in objective.needs:
            context["anchor"] = of_runs(self.federation.server, run)
        if objective.clamp_count:
            size = clamp_size(objective.clamp_count, self.config.cohort)
            context["radius"] = self.knobs["clip_norm"][run] / math.sqrt(size)
        support = self.federation.public_mask(self.knobs)
        if support is not None:
            context["support"] = of_runs(support, run)
        return context

    def _update(self, start: Start, trained: Tensor) -> tuple[Tensor, Tensor]:
        """What clients have to upload `[rows, size]`, all NaN where it is not finite, and where it is `[rows]`."""
        update = trained[:, : self.model.size] - start.reference
        if start.shared is not None:
            update = update * start.shared
        finite = torch.isfinite(torch.linalg.vector_norm(update, dim=-1))  # nor may the norm overflow
        if self.federation.clients:  # a personal part that diverged is no better
            finite &= torch.isfinite(torch.linalg.vector_norm(trained, dim=-1))
            update = torch.where(finite.unsqueeze(-1), update, torch.nan)
        return update, finite

    def _keep(self, state: Mapping[str, Tensor], finite: Tensor) -> None:
        """Store what each client keeps; one whose training diverged keeps what it had."""
        place = (self.cohort.run, self.cohort.client)
        for name, value in state.items():
            stored = self.federation.clients[name]
            stored[place] = torch.where(match(finite, value), value, stored[place])

    # ---------------------------------------------------------------- release

    def _release(self, start: Start, trained: Tensor, update: Tensor, finite: Tensor) -> Figures:
        """Clip, sum, noise and aggregate; the server models of the runs that ran move on."""
        federation, cohort = self.federation, self.cohort
        kept = self.recipe.sparsification.kept(self._trained(start, trained, update))
        if kept is not None:
            update = update * kept
        uploaded = _both(start.shared, kept)
        present, ratio = cohort.present(), self._budget_ratio()
        exact = self.recipe.mechanism.uses_risk and self.recipe.mechanism.exact_risk
        samples = cohort.scatter(federation.tables.train_count[cohort.run, cohort.client].to(torch.float32))
        uniform = self.recipe.aggregation.weights == "uniform"
        cohorts = Cohorts(
            updates=cohort.scatter(update),
            present=present,
            participants=self._participants,
            weights=None if uniform else self.recipe.aggregation.client_weights(samples, present),
            uploaded=self._noised_coordinates(start.shared, uploaded, kept is not None),
            clip=self.knobs["clip_norm"],
            layer_sizes=federation.layer_sizes,
            layer_weights=self._layer_weights(),
            noise_multiplier=self._charged(UPDATE),
            clip_ratio=None if exact else ratio,
            noise_ratio=ratio if exact else None,
        )
        released = federation.releasing(cohorts, self._update_noise)
        moved = federation.server + self.knobs["server_learning_rate"].unsqueeze(-1) * released.mean
        figures = self._release_figures(cohorts, released, moved)
        if self.recipe.private:
            figures |= self._telemetry(update, trained, released, finite)
        everything = update.new_ones(1, self.model.size)
        masks = [everything if mask is None else mask.view(-1, self.model.size) for mask in (uploaded, start.shared)]
        sent = uplink_bytes(self.recipe, federation.noise, *masks)
        figures["uplink_bytes"] = self._mean(sent.expand(len(update)))
        if "personal" in start.context:
            figures["personal_share"] = self._mean(start.context["personal"].mean(-1))
        self._advance(update, released, moved)
        return figures

    def _trained(self, start: Start, trained: Tensor, update: Tensor) -> Trained:
        """What clients choose their coordinates by."""
        sparsity = self.knobs.get("sparsity")
        chosen = update.new_ones(len(update)) if sparsity is None else sparsity[self.cohort.run]
        parameters = trained[:, : self.model.size]
        return Trained(self.model, update, parameters, start.context, chosen, self._fisher)

    def _noised_coordinates(self, shared: Tensor | None, uploaded: Tensor | None, sparse: bool) -> Tensor | None:
        """Which coordinates carry noise, in the shape of `Cohorts.uploaded`."""
        federation, sizes = self.federation, self.cohort.sizes
        if sparse and not self.recipe.sparsification.is_public and not federation.noise.hidden_support:
            uploaded = shared  # a private choice: every coordinate that could have been uploaded is noised
        if uploaded is None:
            return None
        if uploaded.dim() == 1:
            return uploaded.expand(federation.runs, 1, -1)
        if federation.noise.coordinates != "public":
            return self.cohort.scatter(uploaded)
        common = torch.zeros(federation.runs, self.model.size, device=self.device)
        common[self.cohort.run] = uploaded
        if (sizes == 0).any():  # the noise must not tell that nobody took part
            empty = torch.from_numpy(sizes == 0).to(self.device)
            common = torch.where(empty.unsqueeze(-1), federation.common_mask(self.knobs), common)
        return common.unsqueeze(1)

    def _layer_weights(self) -> Tensor | None:
        """Squared shares of C of the layers `[runs, width or 1, layers]`; None for one clip over all."""
        federation, cohort = self.federation, self.cohort
        if self.recipe.mechanism.clip != "layers":
            return None
        if "layer_weights" in self.knobs:
            weights = self.knobs["layer_weights"]
            return (weights / weights.sum(-1, keepdim=True)).unsqueeze(1)
        if "log_odds" in federation.run_state:
            return layer_weights(federation.run_state["log_odds"]).unsqueeze(1)
        weights = cohort.scatter(layer_weights(federation.clients["log_odds"][cohort.run, cohort.client]))
        return torch.where(cohort.present().unsqueeze(-1), weights, 1 / len(self.model.layers))

    def _budget_ratio(self) -> Tensor | None:
        """Part of C that each client uses `[runs, width]`: by its own budget, or by its last known risk.

        None where all use the whole. The risk's is that of ADP-PFL eq. 12.
        """
        mechanism, federation, run = self.recipe.mechanism, self.federation, self.cohort.run
        if self._client_shares is not None:
            return self.cohort.scatter(self._client_shares[run, self.cohort.client])
        if not mechanism.uses_risk:
            return None
        risks, reference = federation.clients["risk"], federation.run_state["risk_reference"]
        if mechanism.exact_risk:
            known = torch.where(risks > 0, risks, torch.inf).amin(-1)
            reference = torch.where(torch.isfinite(known), known, 0.0)
        own = risks[run, self.cohort.client]
        ratio = (reference[run] / own.clamp_min(10**-RISK_SPAN)).clamp(LEAST_RATIO, 1.0)
        ratio = (ratio ** self.knobs["client_budget_strength"][run]).clamp(LEAST_RATIO, 1.0)
        return self.cohort.scatter(torch.where((own > 0) & (reference[run] > 0), ratio, 1.0))

    def _release_figures(self, cohorts: Cohorts, released: Released, moved: Tensor) -> Figures:
        counts = cohorts.participants.clamp_min(1)
        norm = torch.linalg.vector_norm(released.total, dim=-1)
        figures: Figures = {
            "server_learning_rate": self.knobs["server_learning_rate"],
            "server_norm": torch.linalg.vector_norm(moved, dim=-1),
            "update_norm": released.clipped.norms.sum(-1) / counts,
            "release_norm": norm / self.config.cohort,
            "release_noise": released.expected_noise / self.config.cohort,
            "release_norm_ratio": _ratio(norm, released.expected_noise),
            "release_alignment": torch.cosine_similarity(released.total, self.federation.last_release, dim=-1),
        }
        if self.recipe.mechanism.clip == "layers":
            by_layer = layer_norms(self.model, released.total) / self.config.cohort
            names = [f"release_layer_norm{PER_LAYER}{span.name}" for span in self.model.layers]
            figures |= dict(zip(names, by_layer.unbind(-1), strict=True))
        if self.recipe.private:
            figures["clip_norm"] = self.knobs["clip_norm"]
            figures["noise_multiplier"] = self.noise[UPDATE]
            figures["clipped_share"] = (cohorts.present & ~released.clipped.within).sum(-1) / counts
            signal = torch.linalg.vector_norm(released.exact, dim=-1)
            figures["signal_to_noise"] = _ratio(signal, released.expected_noise)
        return figures

    # ---------------------------------------------------------------- telemetry

    def _telemetry(self, update: Tensor, trained: Tensor, released: Released, finite: Tensor) -> Figures:
        """The noised means of what the round pays for, each with noise of its own; who diverged adds nothing."""
        bought = [name for name in TELEMETRY if name in self.noise]
        if not bought:
            return {}
        layers = tuple(span.name for span in self.model.layers)
        sizes = [len(layers) if TELEMETRY[name].per_layer else 1 for name in bought]
        rows = self.ran & np.any([self.noise[name] > 0 for name in bought], axis=0)
        draws = self._draw("telemetry", rows, (sum(sizes),)).split(sizes, dim=-1)
        witness = self._witness(update, trained, released)
        weights, expected = self._weights()
        figures: Figures = {}
        for name, noise in zip(bought, draws, strict=True):
            values = TELEMETRY[name].contributions(witness) * (finite * weights).unsqueeze(-1)
            mean = noised_mean(self.cohort.scatter(values), expected, self._unit_noise(name), noise)
            figures |= figures_of(name, mean, layers)
        return figures

    def _witness(self, update: Tensor, trained: Tensor, released: Released) -> Witness:
        """What the cohort's clients know of this round."""
        federation, cohort, place = self.federation, self.cohort, (self.cohort.run, self.cohort.place)

        def norms() -> Tensor:
            clipped = layer_norms(self.model, torch.nan_to_num(update)) * released.clipped.factors[place]
            return clipped / self.knobs["clip_norm"][cohort.run].unsqueeze(-1)

        @cache
        def scores() -> tuple[Tensor, Tensor]:
            models = torch.nan_to_num(federation.viewed(trained, cohort.run))
            return federation.holdout_scores(models, cohort.run, cohort.client)

        return Witness(released.clipped.within[place], norms, scores)

    def _weights(self) -> tuple[Tensor, Tensor]:
        """Weight of each client in a noised mean `[rows]`, and what a cohort's are expected to sum to `[runs]`."""
        if self._client_shares is None:
            expected = torch.full((self.federation.runs,), self.config.cohort, device=self.device)
            return torch.ones(len(self.cohort.run), device=self.device), expected
        expected = self._client_shares.sum(-1) * self.config.cohort / self.config.clients
        return self._client_shares[self.cohort.run, self.cohort.client], expected

    # ---------------------------------------------------------------- what follows from the release

    def _advance(self, update: Tensor, released: Released, moved: Tensor) -> None:
        """Server models and the state that follows from what was released, of the runs that ran."""
        federation, recipe, model = self.federation, self.recipe, self.model
        ran = torch.from_numpy(self.ran).to(self.device)
        state = recipe.personalization.after_release(
            model, federation.run_state, released.total, self.knobs, uploads=False
        )
        if "log_odds" in federation.run_state:
            state |= recipe.mechanism.next_state(model, federation.run_state, released.total)
        if "sparsity" in federation.run_state:
            state["sparsity"] = self.knobs["sparsity"]
        state["average"] = self._average(moved)
        for name, value in state.items():
            federation.run_state[name] = torch.where(match(ran, value), value, federation.run_state[name])
        federation.server = torch.where(ran.unsqueeze(-1), moved, federation.server)
        federation.last_release = torch.where(ran.unsqueeze(-1), released.total, federation.last_release)
        self._advance_clients(update, released)

    def _average(self, moved: Tensor) -> Tensor:
        """The averaged models after the server models moved `[runs, size]`; at weight 1 exactly those."""
        weight = self.knobs["average_weight"].unsqueeze(-1)
        average = self.federation.run_state["average"]
        return torch.where(weight >= 1, moved, average + weight * (moved - average))

    def _advance_clients(self, update: Tensor, released: Released) -> None:
        """The state that clients derive from their own uploads."""
        clients, place = self.federation.clients, (self.cohort.run, self.cohort.client)
        own = {name: value[place] for name, value in clients.items()}
        state: dict[str, Tensor] = {}
        if released.uploads is not None:
            uploads = released.uploads[self.cohort.run, self.cohort.place]
            knobs = {name: value[self.cohort.run] for name, value in self.knobs.items()}
            state |= self.recipe.personalization.after_release(self.model, own, uploads, knobs, uploads=True)
        if "log_odds" in clients:
            state |= self.recipe.mechanism.next_state(self.model, own, torch.nan_to_num(update))
        for name, value in state.items():
            clients[name][place] = value

    def _measure_risk(self, trained: Tensor, work: LocalWork, finite: Tensor) -> Figures:
        """Every client's risk after training, kept; and the noised mean, where the method compares with it."""
        federation, cohort = self.federation, self.cohort
        if len(trained):
            images, labels = federation.images.read(work.batches[-1][:, -1])
            generator = torch.Generator().manual_seed(0)  # any signs will do, the same for all
            signs = torch.randint(0, 2, (RISK_PROBES, self.model.size), generator=generator).to(self.device) * 2.0 - 1.0
            risk = jacobian_risk(self.model, trained[:, : self.model.size], images, labels, signs)
            finite = finite & torch.isfinite(risk)
            self._keep({"risk": risk.clamp(10**-RISK_SPAN, 10**RISK_SPAN)}, finite)
        if self.recipe.mechanism.exact_risk:
            return {}
        own = federation.clients["risk"][cohort.run, cohort.client]
        scores = torch.where(own > 0, own.clamp_min(10**-RISK_SPAN).log10() / RISK_SPAN, 0.0).clamp(-1, 1)
        draws = self._draw("risk", self.ran & (self.noise[RISK] > 0), (1,)).squeeze(-1)
        total = cohort.scatter(scores).sum(-1) + self._unit_noise(RISK) * draws
        reference = 10 ** (RISK_SPAN * (total / self.config.cohort).clamp(-1, 1))
        ran = torch.from_numpy(self.ran).to(self.device)
        federation.run_state["risk_reference"] = torch.where(ran, reference, federation.run_state["risk_reference"])
        return {"risk_noised": reference}

    # ---------------------------------------------------------------- noise and means

    def _charged(self, release: str) -> Tensor:
        """The noise multipliers of a release on the device `[runs]`."""
        return torch.from_numpy(self.noise[release].astype(np.float32)).to(self.device)

    def _unit_noise(self, release: str) -> Tensor:
        """Std of the noise of a sum of sensitivity 1 `[runs]`."""
        multiplier = self._charged(release)
        return noise_std(self.config.placement, torch.ones_like(multiplier), multiplier, self._participants)

    def _update_noise(self, uploads: bool) -> Tensor:
        """Standard normal draws of this round for the sums `[runs, size]`, or for each upload `[runs, width, size]`."""
        federation, rows = self.federation, self.ran & (self.noise[UPDATE] > 0)
        if not uploads:
            return self._draw("noise", rows, (self.model.size,))
        draws = torch.zeros(federation.runs, self.cohort.width, self.model.size, device=self.device)
        for row in np.flatnonzero(rows):  # a run's draws must not depend on the width of its batch
            count = int(self.cohort.sizes[row])
            draws[row, :count].normal_(generator=self._generator(int(row), "noise"))
        return draws

    def _draw(self, stream: str, rows: BoolArray, shape: tuple[int, ...]) -> Tensor:
        """Standard normal draws `[runs, *shape]` of this round's stream; 0 for the other runs."""
        noise = torch.zeros(self.federation.runs, *shape, device=self.device)
        for row in np.flatnonzero(rows):
            noise[row].normal_(generator=self._generator(int(row), stream))
        return noise

    def _generator(self, row: int, stream: str) -> torch.Generator:
        return torch_generator(self.federation.seeds[row], stream, int(self.federation.rounds[row]), self.device)

    def _mean(self, values: Tensor) -> Tensor:
        """Mean of `[rows]` over each run's cohort `[runs]`."""
        return self.cohort.scatter(values).sum(-1) / self._participants.clamp_min(1)


def match(mask: Tensor, value: Tensor) -> Tensor:
    """A mask `[rows]` shaped to broadcast against `[rows, ...]`."""
    return mask.view(-1, *[1] * (value.dim() - 1))


def _both(shared: Tensor | None, kept: Tensor | None) -> Tensor | None:
    """What is shared and kept, `[rows, size]` or `[size]`; None for everything."""
    if shared is None or kept is None:
        return kept if shared is None else shared
    return shared * kept


def _ratio(value: Tensor, noise_norm: Tensor) -> Tensor:
    """Value over the noise's norm; 0 where there is no noise to compare with."""
    return torch.where(noise_norm > 0, value / noise_norm.clamp_min(torch.finfo(value.dtype).tiny), 0.0)
