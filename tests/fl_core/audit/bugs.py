"""Bugs to plant into the real rounds; `python -m tests.fl_core.audit.bugs` prints which attack sees which."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import fl_core.privacy.noise_model
import fl_core.run.cohort
import fl_core.run.draws
import fl_core.run.release
from fl_core.audit.audit import ATTACKS, Audit, audit
from fl_core.audit.canaries import attack_canaries, canary_findings
from fl_core.audit.charges import attack_charges
from fl_core.audit.cohorts import attack_cohorts
from fl_core.audit.findings import Finding
from fl_core.audit.noise import attack_noise
from fl_core.audit.public import attack_public
from fl_core.audit.sensitivity import attack_sensitivity
from fl_core.audit.telemetry import attack_telemetry
from fl_core.base.streams import normal_draws, numpy_generator
from fl_core.privacy import accounting
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.noise_model import Amount, NoiseModel
from fl_core.privacy.releases import Release
from fl_core.privacy.telemetry import Telemetry
from fl_core.recipes.aggregation import Aggregation
from fl_core.recipes.sparsification import Reparameterized
from fl_core.run.charging import RISK, UPDATE
from fl_core.run.config import FederationConfig
from fl_core.run.release import Releaser, RoundRelease
from fl_core.run.round import Round
from fl_core.run.server_step import ServerStep
from tests.fl_core.plain import config

CLIP = 2.0


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
    real = Releaser.__init__

    def init(self: Releaser, made: Any, recipe: Any, model: Any) -> None:
        real(self, made, recipe, model)
        self._blocks = tuple(span.slice for span in model.layers)

    patch.setattr(Releaser, "__init__", init)


def weights_after_clip(patch: pytest.MonkeyPatch) -> None:
    """Every clipped update counts three times."""
    real = fl_core.run.release.scaled_sum
    patch.setattr(fl_core.run.release, "scaled_sum", lambda *arguments: 3 * real(*arguments))


def same_noise(patch: pytest.MonkeyPatch) -> None:
    """The first round's noise in every round."""

    def first(
        shape: tuple[int, ...], seed: int, stream: str, _: int, device: torch.device, secret: bytes = b""
    ) -> torch.Tensor:
        return normal_draws(shape, seed, stream, 0, device, secret)

    patch.setattr(fl_core.run.draws, "normal_draws", first)


def survivors(patch: pytest.MonkeyPatch) -> None:
    """The mean over those who showed up."""

    def mean(self: Aggregation, released: torch.Tensor, expected: float, participants: torch.Tensor, _: Any) -> Any:
        return released / participants.clamp_min(1).unsqueeze(-1)

    patch.setattr(Aggregation, "mean", mean)


def everywhere(patch: pytest.MonkeyPatch, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function in every module of the rounds that has imported it."""
    for key, module in list(sys.modules.items()):
        if key.startswith("fl_core.run.") and hasattr(module, name):
            patch.setattr(module, name, make(getattr(module, name)))


# --- Sums and their noise -------------------------------------------------------------------------------------------


def ten_coordinates(patch: pytest.MonkeyPatch) -> None:
    """No noise on ten coordinates."""
    real = Amount.of

    def of(self: Amount, draws: torch.Tensor) -> torch.Tensor:
        noise = real(self, draws).clone()
        noise[..., 100:110] = 0
        return noise

    patch.setattr(Amount, "of", of)


def tiled_noise(patch: pytest.MonkeyPatch) -> None:
    """Two coordinates in a row share their draw."""
    real = Amount.of
    patch.setattr(Amount, "of", lambda self, draws: real(self, draws[..., ::2].repeat_interleave(2, -1)))


def last_clip(patch: pytest.MonkeyPatch) -> None:
    """Noise for the clip of the round before."""
    real, seen = NoiseModel.of_sum, dict[int, torch.Tensor]()

    def of_sum(self: NoiseModel, who: Any) -> Amount:
        before = seen.get(id(self), who.clip)
        seen[id(self)] = who.clip
        return real(self, replace(who, clip=before))

    patch.setattr(NoiseModel, "of_sum", of_sum)


def clipped_to_last(patch: pytest.MonkeyPatch) -> None:
    """Updates clipped to the clip norm of the round before."""
    seen: dict[tuple[int, ...], torch.Tensor] = {}

    def make(real: Any) -> Any:
        def factors(updates: Any, present: Any, norms: torch.Tensor, *rest: Any) -> Any:
            before = seen.get(tuple(norms.shape), norms)
            seen[tuple(norms.shape)] = norms
            return real(updates, present, before, *rest)

        return factors

    everywhere(patch, "clip_factors", make)


def exact_mean(patch: pytest.MonkeyPatch) -> None:
    """The server moves by the mean without noise."""
    real = Releaser.__call__

    def call(self: Releaser, cohorts: Any, draw: Any) -> RoundRelease:
        released = real(self, cohorts, draw)
        return replace(released, mean=released.exact / self._config.cohort)

    patch.setattr(Releaser, "__call__", call)


# --- Telemetry ------------------------------------------------------------------------------------------------------


def unnoised_telemetry(patch: pytest.MonkeyPatch) -> None:
    """Telemetry without noise."""
    everywhere(
        patch, "noised_mean", lambda real: lambda values, expected, std, noise: real(values, expected, std, 0 * noise)
    )


def unbounded_telemetry(patch: pytest.MonkeyPatch) -> None:
    """Values beyond their range are not cut off."""

    def contributions(self: Telemetry, witness: Any) -> torch.Tensor:
        values = self.measure(witness).nan_to_num(self._neutral, 1e9, -1e9)
        return (values - self._neutral) / self._reach

    patch.setattr(Telemetry, "contributions", contributions)


def mean_of_those_who_came(patch: pytest.MonkeyPatch) -> None:
    """Noised means over the cohort that came."""

    def make(real: Any) -> Any:
        def mean(values: torch.Tensor, expected: torch.Tensor, *rest: Any) -> Any:
            return real(values, torch.full_like(expected, values.shape[1]), *rest)

        return mean

    everywhere(patch, "noised_mean", make)


def same_telemetry_noise(patch: pytest.MonkeyPatch) -> None:
    """The first round's noise on every round's telemetry."""
    seen: dict[tuple[int, ...], torch.Tensor] = {}

    def make(real: Any) -> Any:
        def mean(values: Any, expected: Any, std: Any, noise: torch.Tensor) -> Any:
            if bool((noise != 0).any()):
                noise = seen.setdefault(tuple(noise.shape), noise)
            return real(values, expected, std, noise)

        return mean

    everywhere(patch, "noised_mean", make)


def one_draw_for_all(patch: pytest.MonkeyPatch) -> None:
    """All telemetry of a round has the same draw."""

    def make(real: Any) -> Any:
        return lambda values, expected, std, noise: real(values, expected, std, noise[:, :1].expand_as(noise))

    everywhere(patch, "noised_mean", make)


def _told(patch: pytest.MonkeyPatch, change: Callable[[Release], Release | None]) -> None:
    """Tell the books something else."""
    real = Ledger.charge

    def charge(self: Ledger, index: int, releases: Any) -> Any:
        return real(self, index, [one for one in map(change, releases) if one is not None])

    patch.setattr(Ledger, "charge", charge)


def uncharged_telemetry(patch: pytest.MonkeyPatch) -> None:
    """Only the update is charged."""
    _told(patch, lambda one: one if one.name == UPDATE else None)


def telemetry_told_noisier(patch: pytest.MonkeyPatch) -> None:
    """Telemetry is charged with twice the noise that it has."""
    _told(patch, lambda one: one if one.name == UPDATE else replace(one, noise_multiplier=2 * one.noise_multiplier))


def exact_risk(patch: pytest.MonkeyPatch) -> None:
    """The mean risk is released without noise."""
    real = Round._unit_noise
    patch.setattr(Round, "_unit_noise", lambda self, name: real(self, name) * (0 if name == RISK else 1))


# --- Cohorts --------------------------------------------------------------------------------------------------------


def _cohort(patch: pytest.MonkeyPatch, members: Callable[[FederationConfig, int, int], Any]) -> None:
    patch.setattr(
        fl_core.run.cohort,
        "draw_members",
        lambda made, seed, index: np.sort(members(made, seed, index)).astype(np.int64),
    )


def _coins(made: FederationConfig, seed: int, index: int, rate: float) -> Any:
    return np.flatnonzero(numpy_generator(seed, "cohort", index).random(made.clients) < rate)


def fixed_cohort(patch: pytest.MonkeyPatch) -> None:
    """A cohort of fixed size that is called Poisson."""

    def members(made: FederationConfig, seed: int, index: int) -> Any:
        return numpy_generator(seed, "cohort", index).permutation(made.clients)[: round(made.cohort)]

    _cohort(patch, members)


def higher_rate(patch: pytest.MonkeyPatch) -> None:
    """Clients take part more often than is counted."""
    _cohort(patch, lambda made, seed, index: _coins(made, seed, index, 1.2 * made.sampling_rate))


def always_in(patch: pytest.MonkeyPatch) -> None:
    """One client takes part in every round."""
    _cohort(patch, lambda made, seed, index: np.union1d([3], _coins(made, seed, index, made.sampling_rate)))


def two_rounds_long(patch: pytest.MonkeyPatch) -> None:
    """A cohort serves two rounds."""
    _cohort(patch, lambda made, seed, index: _coins(made, seed, index // 2, made.sampling_rate))


def shuffled_batches(patch: pytest.MonkeyPatch) -> None:
    """Clients are shuffled and dealt out in turn, which is called Poisson."""

    def members(made: FederationConfig, seed: int, index: int) -> Any:
        size = round(made.cohort)
        epoch, place = divmod(index, made.clients // size)
        return numpy_generator(seed, "cohort", epoch).permutation(made.clients)[place * size : (place + 1) * size]

    _cohort(patch, members)


def in_pairs(patch: pytest.MonkeyPatch) -> None:
    """Two clients share a coin."""

    def members(made: FederationConfig, seed: int, index: int) -> Any:
        coins = numpy_generator(seed, "cohort", index).random(made.clients)
        coins[11] = coins[4]
        return np.flatnonzero(coins < made.sampling_rate)

    _cohort(patch, members)


def seedless_cohorts(patch: pytest.MonkeyPatch) -> None:
    """Runs of different seeds meet the same cohorts."""
    _cohort(patch, lambda made, seed, index: _coins(made, 0, index, made.sampling_rate))


def lower_rate_told(patch: pytest.MonkeyPatch) -> None:
    """The books count with half of the sampling rate."""
    real = FederationConfig.accounting_rate.fget
    assert real is not None
    patch.setattr(FederationConfig, "accounting_rate", property(lambda self: real(self) / 2))


# --- What is public -------------------------------------------------------------------------------------------------


def _exact(arguments: tuple[Any, ...]) -> list[Any]:
    """The same arguments, with the exact sums in the place of the released ones."""
    return [replace(one, total=one.exact) if isinstance(one, RoundRelease) else one for one in arguments]


def figures_of_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """Norm and alignment of the exact sums are told as public."""
    real = ServerStep.figures
    patch.setattr(ServerStep, "figures", lambda self, *arguments: real(self, *_exact(arguments)))


def state_of_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """Masks and layer weights follow from the exact sums."""
    real = ServerStep.advance
    patch.setattr(ServerStep, "advance", lambda self, *arguments: real(self, *_exact(arguments)))


def noise_by_who_came(patch: pytest.MonkeyPatch) -> None:
    """The expected noise is that of the cohort that came."""
    real = NoiseModel.expected_norm

    def norm(self: NoiseModel, who: Any, size: int, cohort: float) -> torch.Tensor:
        return real(self, who, size, cohort) * (who.participants / cohort).sqrt()

    patch.setattr(NoiseModel, "expected_norm", norm)


def mask_of_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """The public mask is that of the model that the exact sum would give."""
    call, mask, last = Releaser.__call__, Reparameterized.public_mask, dict[int, torch.Tensor]()
    worlds: list[int] = []

    def released(self: Releaser, cohorts: Any, draw: Any) -> RoundRelease:
        out = call(self, cohorts, draw)
        last[id(self._model)] = out.exact
        return out

    def public(self: Reparameterized, model: Any, server: torch.Tensor, sparsity: Any, draws: Any) -> Any:
        worlds.append(id(model))
        exact = last.get(id(model))
        return mask(self, model, server if exact is None else server + exact, sparsity, draws)

    patch.setattr(Releaser, "__call__", released)
    patch.setattr(Reparameterized, "public_mask", public)


# --- The books ------------------------------------------------------------------------------------------------------


def told_noisier(patch: pytest.MonkeyPatch) -> None:
    """The update is charged with a quarter more noise than it has."""
    _told(patch, lambda one: replace(one, noise_multiplier=1.25 * one.noise_multiplier))


def every_second_round(patch: pytest.MonkeyPatch) -> None:
    """Every second round is released without a charge."""
    real = Ledger.charge
    patch.setattr(Ledger, "charge", lambda self, index, releases: None if index % 2 else real(self, index, releases))


def costliest_only(patch: pytest.MonkeyPatch) -> None:
    """Of a round's releases only the one with the least noise counts."""
    patch.setattr(accounting, "joint_noise_multiplier", lambda multipliers: min(multipliers))


def endless_budget(patch: pytest.MonkeyPatch) -> None:
    """Nothing that is charged leaves the budget."""
    patch.setattr(Ledger, "_remaining", lambda self, cost=0.0: self._filter.budget)


def endless_plan(patch: pytest.MonkeyPatch) -> None:
    """A plan goes on after its last round."""
    patch.setattr(Ledger, "_fits", lambda self, cost: True)


def any_share(patch: pytest.MonkeyPatch) -> None:
    """A plan gives out and accepts whatever share of the budget is asked for."""
    real = Ledger.noise_multiplier_for_share

    def of_share(self: Ledger, share: float) -> float:
        planned, self.adaptive = self.adaptive, True
        sigma = real(self, share)
        self.adaptive = planned
        return sigma

    patch.setattr(Ledger, "noise_multiplier_for_share", of_share)
    patch.setattr(Ledger, "_cost", lambda self, joint: self._filter.cost(joint / self.sensitivity))


def as_if_all_noised(patch: pytest.MonkeyPatch) -> None:
    """Noise is certified as if every client noised every coordinate."""
    patch.setattr(NoiseModel, "effective_factor", lambda self, who: torch.ones(()))


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        plant: puts it into the rounds.
        seen_by: attacks that must see it.
        settings: of the federation that has it.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    seen_by: frozenset[str]
    settings: dict[str, Any] = field(default_factory=dict)


def _bug(plant: Callable[[pytest.MonkeyPatch], None], seen_by: str, **settings: Any) -> Bug:
    return Bug(plant, frozenset(seen_by.split()), settings)


_TELEMETRY = {"telemetry_share": 0.3, "telemetry": "clip-bit,loss"}
_LAYERS = {"telemetry_share": 0.3, "telemetry": "layer-norms"}
_MASKED = {"method": "fedglp-adp", "guarantee": "as-published", "without": "adaptive-clipping", "clients": 10}
_RISK = {"method": "adp-pfl", "set": "sparsification.samples=4", "clients": 12}
_SAMPLED = {"sampling_rate": 0.2}

BUGS: dict[str, Bug] = {
    "noise scaled to another C": _bug(other_clip, "noise canaries charges"),
    "√(σC) taken as the std": _bug(variance_as_std, "noise canaries charges"),
    "noise divided by the cohort twice": _bug(divided_twice, "noise canaries charges"),
    "clip per layer with global noise": _bug(clip_by_layer, "sensitivity canaries"),
    "weights × 3 after the clip": _bug(weights_after_clip, "sensitivity canaries"),
    "the same noise every round": _bug(same_noise, "noise canaries"),
    "denominator of survivors": _bug(survivors, "sensitivity"),
    "no noise on ten coordinates": _bug(ten_coordinates, "noise"),
    "neighbouring coordinates share their noise": _bug(tiled_noise, "noise"),
    "noise for the last round's clip": _bug(last_clip, "noise charges"),
    "updates clipped to the last round's clip": _bug(clipped_to_last, "sensitivity"),
    "server moves by the exact mean": _bug(exact_mean, "public"),
    "telemetry without noise": _bug(unnoised_telemetry, "telemetry", **_TELEMETRY),
    "telemetry without bounds": _bug(unbounded_telemetry, "telemetry", **_TELEMETRY),
    "telemetry over those who came": _bug(mean_of_those_who_came, "telemetry", **_TELEMETRY),
    "the same telemetry noise every round": _bug(same_telemetry_noise, "telemetry", **_TELEMETRY),
    "one draw for all values of telemetry": _bug(
        one_draw_for_all, "telemetry", telemetry_share=0.3, telemetry="layer-norms"
    ),
    "telemetry without a charge": _bug(uncharged_telemetry, "telemetry charges", **_TELEMETRY),
    "telemetry charged with twice its noise": _bug(telemetry_told_noisier, "telemetry", **_TELEMETRY),
    "mean risk without noise": _bug(exact_risk, "telemetry", **_RISK),
    "a fixed cohort said to be Poisson": _bug(fixed_cohort, "cohorts", **_SAMPLED),
    "clients drawn too often": _bug(higher_rate, "cohorts", **_SAMPLED),
    "a client always in": _bug(always_in, "cohorts", **_SAMPLED),
    "a cohort for two rounds": _bug(two_rounds_long, "cohorts", **_SAMPLED),
    "shuffled batches said to be Poisson": _bug(shuffled_batches, "cohorts", **_SAMPLED),
    "two clients share a coin": _bug(in_pairs, "cohorts", **_SAMPLED),
    "runs share their cohorts": _bug(seedless_cohorts, "cohorts", **_SAMPLED),
    "half of the sampling rate told": _bug(lower_rate_told, "cohorts charges", **_SAMPLED),
    "public figures of the exact sum": _bug(figures_of_exact_sums, "public"),
    "layer weights and masks of the exact sum": _bug(state_of_exact_sums, "public", method="fedglp-adp"),
    "sparsity mask of the exact sum": _bug(mask_of_exact_sums, "public", method="dp-pfeddsu"),
    "expected noise by who came": _bug(noise_by_who_came, "public", **_SAMPLED),
    "more noise told than there is": _bug(told_noisier, "charges"),
    "every second round without a charge": _bug(every_second_round, "charges"),
    "only the costliest release counted": _bug(costliest_only, "charges", **_TELEMETRY),
    "a budget without end": _bug(endless_budget, "charges"),
    "a plan without end": _bug(endless_plan, "charges", noise_schedule="fixed"),
    "a plan that is not kept": _bug(any_share, "charges", noise_schedule="fixed"),
    "masked noise certified in full": _bug(as_if_all_noised, "charges", **_MASKED),
}
"""How each is planted, the attacks that must see it, and where."""


def settings_of(bug: str) -> FederationConfig:
    """Thirty clients, eight rounds, and what else the bug needs."""
    changes = {"clients": 30, "rounds": 8, "partition": "iid"} | (BUGS[bug].settings if bug in BUGS else {})
    return config(changes.pop("method", "dp-fedavg"), **changes)


def attack(name: str, made: FederationConfig, seed: int = 0) -> tuple[Finding, ...]:
    """Findings of one attack alone."""
    if name == "canaries":
        scores, federation = attack_canaries(made, CLIP, 200, seed)
        return tuple(canary_findings(scores, federation.charging.budgets[0].epsilon_spent()))
    if name == "cohorts":
        drawn = attack_cohorts(made, seed)
        return () if drawn is None else drawn.findings
    attacks: dict[str, Any] = {
        "sensitivity": attack_sensitivity,
        "noise": attack_noise,
        "telemetry": attack_telemetry,
        "public": attack_public,
        "charges": attack_charges,
    }
    found = attacks[name](made, CLIP, seed)
    return () if found is None else tuple(found.findings)


def small_audit(seed: int = 0, canaries: int = 120, **changes: Any) -> Audit:
    """An audit of seconds: a small mlp, thirty clients, eight rounds."""
    return audit(config(clients=30, rounds=8, partition="iid", **changes), CLIP, canaries, seed)


def main() -> None:
    """Print the table."""
    width = max(map(len, BUGS))
    print(f"{'planted':<{width}}  {'  '.join(ATTACKS)}  verdict")
    for name in ("nothing", *BUGS):
        with pytest.MonkeyPatch.context() as patch:
            if name in BUGS:
                BUGS[name].plant(patch)
            result = audit(settings_of(name), CLIP, 120, 0)
        seen = {one.attack for one in result.findings}
        marks = "  ".join(f"{'x' if attack in seen else '-':<{len(attack)}}" for attack in ATTACKS)
        print(f"{name:<{width}}  {marks}  {result.verdict}", flush=True)


if __name__ == "__main__":
    main()
