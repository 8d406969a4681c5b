"""One communication round of the runs that were charged for it: begin, train, release, and the state that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_core.base.arrays import FloatArray
from fl_core.base.transfers import to_device
from fl_core.privacy.mechanism import Clipped, noise_std
from fl_core.privacy.telemetry import TELEMETRY
from fl_core.recipes.client_budgets import BudgetView, kept_risk, risk_reference, risk_scores
from fl_core.recipes.parts import clamp_size
from fl_core.recipes.personalization import ClientView, Start
from fl_core.recipes.sparsification import Trained
from fl_core.run.charging import RISK, UPDATE
from fl_core.run.cohort import of_runs
from fl_core.run.draws import Draws
from fl_core.run.release import Cohorts, RoundRelease
from fl_core.run.release_figures import over_noise
from fl_core.run.round_parts import Charged, LocalTraining
from fl_core.run.round_telemetry import RoundTelemetry, released_telemetry
from fl_core.run.server_step import ServerStep, match
from fl_core.run.simulation import Simulation
from fl_core.run.state import RunState
from fl_core.run.uplink import uplink_bytes
from fl_core.training.information import client_risk

Figures = dict[str, Any]
"""Metrics by name, `[runs]` each."""


def play_round(
    simulation: Simulation, state: RunState, knobs: Mapping[str, Tensor], charged: Charged
) -> tuple[RunState, Figures]:
    """Run one round; the state that it starts from must not be used again.

    Args:
        simulation: data, models and training of the batch.
        state: server models and everything else that the round starts from.
        knobs: values of every knob `[runs]` (`[runs, layers]` where it has one per layer).
        charged: runs and noise multipliers that the ledgers were charged for.

    Returns:
        The state that the next round starts from, and metrics by name `[runs]`, norms in the model's own units.
    """
    return Round(simulation, state, knobs, charged).run()


class Round:
    """One round of a batch: its cohort, its knobs, and the state that it starts from."""

    def __init__(self, simulation: Simulation, state: RunState, knobs: Mapping[str, Tensor], charged: Charged):
        """Draw the cohort; arguments as of `play_round`."""
        self._simulation, self._state, self._knobs, self._charged = simulation, state, dict(knobs), charged
        self._config, self._recipe, self._model = simulation.config, simulation.recipe, simulation.model
        self._device, self._noise = simulation.device, simulation.noise
        self._clipping = self._recipe.mechanism.clipping
        self._draws = Draws(simulation.seeds, state.rounds, simulation.device, simulation.secrets)
        lasting = charged.lasting
        out = None if lasting is None else lasting == 0
        self._cohort = simulation.draw_cohort(state.rounds, charged.ran, out)
        self._client_shares = None if lasting is None else self._shares(lasting)
        state.clients.seat(self._cohort.members)
        self._participants = self._host(self._cohort.sizes.astype("float32"))
        self._ran = self._host(charged.ran)

    def _host(self, values: Any) -> Tensor:
        return to_device(values, self._device)

    def _shares(self, lasting: FloatArray) -> Tensor:
        """Compute the factor on C that each client's budget allows in this round `[runs, clients]`; 0 once spent."""
        shares = self._host(lasting.astype("float32"))
        used = shares ** self._knobs["client_budget_strength"].unsqueeze(-1)
        return torch.where(shares > 0, used, 0.0)

    def run(self) -> tuple[RunState, Figures]:
        """Train the cohort, release its updates, and derive the next state and the figures."""
        recipe, cohort, local = self._recipe, self._cohort, self.train()
        rejected = cohort.scatter((~local.finite).float()).sum(-1)
        used = (self._participants - rejected).clamp_min(1)
        figures: Figures = {
            "train_loss": cohort.scatter(torch.where(local.finite, local.loss, 0.0)).sum(-1) / used,
            "participants": cohort.sizes,
            "rejected_updates": rejected,
        }
        if recipe.exchanges:
            figures |= self._release(local)
        self.keep(local)
        if recipe.mechanism.budgeting.measures_risk:
            figures |= self._measure_risk(local)
        return self._state, figures

    def train(self) -> LocalTraining:
        """Train the cohort; nothing is kept or released yet."""
        simulation, cohort, start = self._simulation, self._cohort, self._begin()
        rows = (cohort.run, cohort.client, start.vector, start.context, cohort.on_host)
        work = simulation.local_work(self._recipe.objective.phases, "minibatch", self._state.rounds, *rows)
        trained, loss = simulation.executor.train(work, simulation.images)
        update, finite = self._update(start, trained)
        return LocalTraining(start, work, trained, update, finite, loss)

    def keep(self, local: LocalTraining) -> None:
        """Store what the clients keep of their training; diverged ones keep what they had."""
        self._keep(self._recipe.personalization.end(self._model, local.trained, local.start), local.finite)

    # ---------------------------------------------------------------- before and after training

    def _begin(self) -> Start:
        """Make the vectors `[rows, ...]`, masks and loss contexts that the cohort's training starts from."""
        run = self._cohort.run
        view = ClientView(
            model=self._model,
            server=of_runs(self._state.server, run),
            state=self._kept(),
            run={name: of_runs(value, run) for name, value in self._state.runs.items()},
            knobs={name: of_runs(value, run) for name, value in self._knobs.items()},
            fisher=self._fisher,
        )
        start = self._recipe.personalization.begin(view)
        return Start(start.vector, start.reference, self._context(start), start.shared)

    def _fisher(self, models: Tensor, samples: int) -> Tensor:
        """Measure the Fisher information of the cohort's models `[rows, size]` on so many of its samples (0: all)."""
        return self._simulation.fisher(models, self._cohort.run, self._cohort.client, samples, self._cohort.on_host)

    def _context(self, start: Start) -> dict[str, Tensor]:
        """Gather the tensors that loss terms, masks and clamps read, by name."""
        objective, run = self._recipe.objective, self._cohort.run
        context = {name: value for name, value in start.context.items() if name in objective.needs}
        if objective.terms or objective.clamp_count:
            context["start"] = start.vector
        if "clip_norm" in objective.needs:
            context["clip_norm"] = self._knobs["clip_norm"][run]
        if "anchor" in objective.needs:
            context["anchor"] = of_runs(self._state.server, run)
        if objective.clamp_count:
            size = clamp_size(objective.clamp_count, self._config.cohort)
            context["radius"] = self._knobs["clip_norm"][run] / math.sqrt(size)
        if self._recipe.sparsification.is_public:
            support = self._simulation.public_mask(self._state, self._knobs["sparsity"])
            if support is not None:
                context["support"] = of_runs(support, run)
        return context

    def _update(self, start: Start, trained: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the updates `[rows, size]` and which of them are finite `[rows]`; the others are NaN throughout."""
        update = trained[:, : self._model.size] - start.reference
        if start.shared is not None:
            update = update * start.shared
        finite = torch.isfinite(torch.linalg.vector_norm(update, dim=-1))  # nor may the norm overflow
        if self._state.clients.names:  # a personal part that diverged is no better
            finite &= torch.isfinite(torch.linalg.vector_norm(trained, dim=-1))
            update = torch.where(finite.unsqueeze(-1), update, torch.nan)
        return update, finite

    def _keep(self, kept: Mapping[str, Tensor], finite: Tensor) -> None:
        """Store the clients' persistent tensors `[rows, ...]` by name; diverged clients keep their previous ones."""
        place, before = (self._cohort.run, self._cohort.client), self._kept()
        for name, value in kept.items():
            self._state.clients.put(name, *place, torch.where(match(finite, value), value, before[name]))

    def _kept(self) -> Mapping[str, Tensor]:
        """Look up the persistent tensors of the cohort `[rows, ...]` by name."""
        return self._state.clients.rows(self._cohort.run, self._cohort.client)

    # ---------------------------------------------------------------- release

    def _release(self, local: LocalTraining) -> Figures:
        """Clip, sum, noise and aggregate the updates `[rows, size]`, move the server models, and return the metrics."""
        start, update = local.start, local.update
        kept = self._recipe.sparsification.kept(self._trained(start, local.trained, update))
        if kept is not None:
            update = update * kept
        uploaded = _both(start.shared, kept)
        cohorts = self._cohorts(update, self._noised_coordinates(start.shared, uploaded, kept is not None))
        released = self._simulation.releaser(cohorts, self._update_noise)
        step = self._step()
        moved = step.moved(released)
        figures = step.figures(released, moved) | self._exact_figures(cohorts, released)
        if self._recipe.private:
            figures |= self._telemetry(update, local, released)
        everything = update.new_ones(1, self._model.size)
        masks = [everything if mask is None else mask.view(-1, self._model.size) for mask in (uploaded, start.shared)]
        figures["uplink_bytes"] = self._mean(uplink_bytes(self._recipe, self._noise, *masks).expand(len(update)))
        if "personal" in start.context:
            figures["personal_share"] = self._mean(start.context["personal"].mean(-1))
        self._state = step.advance(released, moved)
        self._advance_clients(update, released)
        return figures

    def _step(self) -> ServerStep:
        return ServerStep(
            self._config, self._recipe, self._model, self._state, self._knobs, self._charged.noise, self._ran
        )

    def _trained(self, start: Start, trained: Tensor, update: Tensor) -> Trained:
        """Gather the inputs of the sparsification, by which clients choose their coordinates."""
        sparsity = self._knobs.get("sparsity")
        chosen = update.new_ones(len(update)) if sparsity is None else sparsity[self._cohort.run]
        parameters = trained[:, : self._model.size]
        draws = partial(self._simulation.client_draws, self._state, self._cohort.run, self._cohort.client)
        return Trained(self._model, update, parameters, start.context, chosen, self._fisher, draws)

    def _cohorts(self, update: Tensor, uploaded: Tensor | None) -> Cohorts:
        """Collect the updates `[rows, size]` by cohort, with all that their clip and noise depend on."""
        cohort, budgeting = self._cohort, self._recipe.mechanism.budgeting
        place, present = (cohort.run, cohort.client), cohort.present()
        samples = cohort.scatter(self._simulation.tables.train.count[place].to(torch.float32))
        kept = (self._kept(), self._state.clients.everybody)
        view = BudgetView(*place, self._state.runs, *kept, self._knobs, self._client_shares)
        by_row = budgeting.ratio(view)
        ratio = None if by_row is None else cohort.scatter(by_row)
        return Cohorts(
            updates=cohort.scatter(update),
            present=present,
            participants=self._participants,
            weights=self._recipe.aggregation.factors(samples, present),
            uploaded=uploaded,
            clip=self._knobs["clip_norm"],
            layer_sizes=self._simulation.layer_sizes,
            layer_weights=self._layer_weights(present),
            noise_multiplier=self._on_device(UPDATE),
            clip_ratio=None if budgeting.scales_noise else ratio,
            sizes=cohort.sizes,
            noise_ratio=ratio if budgeting.scales_noise else None,
        )

    def _noised_coordinates(self, shared: Tensor | None, uploaded: Tensor | None, sparse: bool) -> Tensor | None:
        """Compute the mask of coordinates that carry noise, in the shape of `Contributors.uploaded`."""
        sizes = self._cohort.sizes
        if sparse and not self._recipe.sparsification.is_public and not self._noise.hidden_support:
            uploaded = shared  # a private choice: every coordinate that could have been uploaded is noised
        if uploaded is None:
            return None
        if uploaded.dim() == 1:
            return uploaded.expand(len(sizes), 1, -1)
        if self._noise.coordinates != "public":
            return self._cohort.scatter(uploaded)
        common = torch.zeros(len(sizes), self._model.size, device=self._device)
        common[self._cohort.run] = uploaded
        if (sizes == 0).any():  # the noise must not tell that nobody took part
            whoever = self._simulation.common_mask(self._state, self._knobs)
            common = torch.where(self._host(sizes == 0).unsqueeze(-1), whoever, common)
        return common.unsqueeze(1)

    def _layer_weights(self, present: Tensor) -> Tensor | None:
        """Compute the squared shares of C of the layers `[runs, width or 1, layers]`; None for one clip over all."""
        weights = self._clipping.run_weights(self._state.runs, self._knobs)
        if weights is not None:
            return weights.unsqueeze(1)
        weights = self._clipping.client_weights(self._kept())
        if weights is None:
            return None
        return torch.where(present.unsqueeze(-1), self._cohort.scatter(weights), 1 / len(self._model.layers))

    def _exact_figures(self, cohorts: Cohorts, released: RoundRelease) -> Figures:
        """Compute the metrics of the updates that no noise covers, by name `[runs]`."""
        counts = cohorts.participants.clamp_min(1)
        figures: Figures = {"update_norm": released.clipped.norms.sum(-1) / counts}
        if self._recipe.private:
            figures["clipped_share"] = (cohorts.present & ~released.clipped.within).sum(-1) / counts
            signal = torch.linalg.vector_norm(released.exact, dim=-1)
            figures["signal_to_noise"] = over_noise(signal, released.expected_noise)
        return figures

    def _telemetry(self, update: Tensor, local: LocalTraining, released: RoundRelease) -> Figures:
        """Release the telemetry that the round was charged for, as metrics by name `[runs]`."""
        bought = {name: self._charged.noise[name] for name in TELEMETRY if name in self._charged.noise}
        weights, expected = self._weights()
        contributed = self.contributions(bought, update, local, released.clipped, weights)
        return released_telemetry(
            {name: self._cohort.scatter(value) for name, value in contributed.items()},
            bought,
            {name: self._unit_noise(name) for name in bought},
            expected,
            self._draws,
            self._charged.ran,
            [span.name for span in self._model.layers],
        )

    def contributions(
        self, names: Iterable[str], update: Tensor, local: LocalTraining, clipped: Clipped, weights: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute what each client adds to the sums of telemetry, by name `[rows, values]`; weights of None are 1."""
        telemetry = RoundTelemetry(self._simulation, self._state, self._cohort, self._knobs["clip_norm"])
        counted = local.finite if weights is None else local.finite * weights
        return telemetry.contributions(names, update, local.trained, clipped, counted)

    def _weights(self) -> tuple[Tensor | None, Tensor]:
        """Weight of each client in a noised mean `[rows]`, and what a cohort's are expected to sum to `[runs]`."""
        config, shares = self._config, self._client_shares
        if shares is None:
            return None, torch.full((self._simulation.runs,), config.cohort, device=self._device)
        expected = shares.sum(-1) * config.cohort / config.clients
        return shares[self._cohort.run, self._cohort.client], expected

    def _advance_clients(self, update: Tensor, released: RoundRelease) -> None:
        """Update the clients' tensors that follow from their own uploads."""
        own = self._kept()
        kept = self._clipping.next_client_state(self._model, own, update)
        if released.uploads is not None:
            uploads = released.uploads[self._cohort.run, self._cohort.place]
            knobs = {name: value[self._cohort.run] for name, value in self._knobs.items()}
            kept |= self._recipe.personalization.after_release(self._model, own, uploads, knobs, uploads=True)
        for name, value in kept.items():
            self._state.clients.put(name, self._cohort.run, self._cohort.client, value)

    def _measure_risk(self, local: LocalTraining) -> Figures:
        """Measure and store every client's Jacobian risk after training; release their noised mean if needed."""
        cohort, budgeting = self._cohort, self._recipe.mechanism.budgeting
        if len(local.trained):
            images, labels = self._simulation.images.read(local.work.batches[-1][:, -1])
            models, order = local.trained[:, : self._model.size], self._recipe.mechanism.risk_order
            risk = client_risk(self._model, models, images, labels, order)
            self._keep(kept_risk(risk), local.finite & torch.isfinite(risk))
        if not budgeting.releases:
            return {}
        scores = risk_scores(self._kept())
        draws = self._draws.normal("risk", self._charged.ran & (self._charged.noise[RISK] > 0), (1,)).squeeze(-1)
        total = cohort.scatter(scores).sum(-1) + self._unit_noise(RISK) * draws
        reference = risk_reference(total / self._config.cohort).to(scores.dtype)
        runs = self._state.runs
        kept = {"risk_reference": self._step().where_ran(reference, runs["risk_reference"])}
        self._state = replace(self._state, runs=runs | kept)
        return {"risk_noised": reference}

    # ---------------------------------------------------------------- noise and means

    def _on_device(self, release: str) -> Tensor:
        """Move the noise multipliers of a release to the device `[runs]`."""
        return self._host(self._charged.noise[release].astype("float32"))

    def _unit_noise(self, release: str) -> Tensor:
        """Compute the std of the noise of a sum of sensitivity 1 `[runs]`."""
        multiplier = self._on_device(release)
        return noise_std(self._config.placement, torch.ones_like(multiplier), multiplier, self._participants)

    def _update_noise(self, uploads: bool) -> Tensor:
        """Draw the noise of the sums `[runs, size]`, or that of each upload `[runs, width, size]`."""
        rows, size = self._charged.ran & (self._charged.noise[UPDATE] > 0), self._model.size
        if not uploads:
            return self._draws.normal("noise", rows, (size,))
        return self._draws.uploads("noise", rows, self._cohort.sizes, self._cohort.width, size)

    def _mean(self, values: Tensor) -> Tensor:
        """Average `[rows]` over each run's cohort `[runs]`."""
        return self._cohort.scatter(values).sum(-1) / self._participants.clamp_min(1)


def _both(shared: Tensor | None, kept: Tensor | None) -> Tensor | None:
    """Intersect the masks of what is shared and kept, `[rows, size]` or `[size]`; None for everything."""
    if shared is None or kept is None:
        return kept if shared is None else shared
    return shared * kept
