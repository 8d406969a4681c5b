"""All advice on a setting, put together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from experiments.advice.choices import ROUNDS, Choice, clients_for, epsilon_for, over_rates, over_rounds, recommended
from experiments.advice.evidence import BASELINE, Gain, Nearby, Place, near
from experiments.advice.other_rounds import RoundsFound, rounds_found
from experiments.advice.rule import MARGINAL, USABLE, VERDICTS, Rule, fitted
from experiments.advice.signal import Updates, changed
from fl_core.run.config import FederationConfig


@dataclass(frozen=True)
class Advice:
    """What can be said of a setting before it runs.

    Attributes:
        config: the setting, its budget as an ε.
        updates: length of the clients' updates on random data.
        rule: what is kept in spite of noise.
        own: the setting's own rounds and rate.
        rounds: those that were looked at, its own among them.
        rates: those that were looked at for the rounds that are advised, its own among them; none where all clients
            take part.
        nearby: what controllers gained in settings near it.
        found: rounds that a search took there, and gained by for certain; None where no page tells.
    """

    config: FederationConfig
    updates: Updates
    rule: Rule
    own: Choice
    rounds: tuple[Choice, ...]
    rates: tuple[Choice, ...]
    nearby: Nearby
    found: RoundsFound | None = None

    @property
    def verdict(self) -> str:
        """Usability of client-level privacy in the setting as it is, one of `VERDICTS`."""
        return self.rule.verdict(self.rule.felt(self.own.signal), self.config.rounds)

    @property
    def kept(self) -> float:
        """Share of the gain over chance without noise that its signal to noise leaves, at the best clip norm."""
        return self.rule.kept(self.rule.felt(self.own.signal), self.config.rounds)

    @property
    def best_rounds(self) -> Choice:
        """Rounds that are advised: what a search found goes before the rule, which knows no dataset."""
        searched = [one for one in self.rounds if self.found is not None and one.rounds == self.found.rounds]
        return searched[0] if searched else recommended(self.rounds)

    @property
    def best(self) -> Choice:
        """Rounds and sampling rate that are advised."""
        return recommended(self.rates) if self.rates else self.best_rounds

    @property
    def clip(self) -> float:
        """Clip norm that is advised for those, in the units of the configuration."""
        return self.best.multiple * self.updates.norm

    @property
    def controller(self) -> str:
        """Controller that is advised: at hand, with a certain gain, the largest of the nearest page; else the decay."""
        sure = [one for one in self.nearby.gains if one.free and not one.raw and _is_sure(one)]
        return sure[0].controller if sure else self.decay

    @property
    def fixed(self) -> str:
        """Spec of the fixed clip norm that is advised."""
        return f"fixed:{self.best.multiple:.2g}x"

    @property
    def decay(self) -> str:
        """Spec of a decay from twice to half that clip norm."""
        return f"exponential-decay:{2 * self.best.multiple:.2g}x:{self.best.multiple / 2:.2g}x"

    def wanted(self) -> dict[str, tuple[int, float]]:
        """List what would make privacy usable, and marginal, where it is not: (clients, ε), either alone."""
        found = {}
        for verdict, share in ((VERDICTS[1], MARGINAL), (VERDICTS[2], USABLE)):
            factor = self.rule.needed(share, self.config.rounds) / self.rule.felt(self.own.signal)
            if factor > 1:
                found[verdict] = (clients_for(self.config, self.own.signal, factor), epsilon_for(self.config, factor))
        return found


def _is_sure(gain: Gain) -> bool:
    return gain.difference is not None and gain.difference.sign > 0


def advise(config: FederationConfig) -> Advice:
    """Work out the advice on a setting.

    Raises:
        InputError: its budget cannot be certified, its model does not fit its images, or it uploads nothing.
    """
    if config.noise_multiplier is not None:  # the ε of its rounds is the budget of any other number of them
        config = changed(config, noise_multiplier=None, epsilon=float(config.epsilon))
    updates, rule = Updates.of(config), fitted()
    own = Choice.of(config, updates, rule)
    nearby = near(Place.of(config, updates, own.signal))
    found = rounds_found(nearby.found)
    rounds = tuple(over_rounds(config, updates, rule, (*ROUNDS, *([] if found is None else [found.rounds]))))
    advice = Advice(config, updates, rule, own, rounds, (), nearby, found)
    rates = over_rates(changed(config, rounds=advice.best_rounds.rounds), updates, rule)
    return replace(advice, rates=tuple(rates))


def as_json(advice: Advice) -> dict[str, Any]:
    """Write the advice as JSON values by name."""
    own, best = advice.own, advice.best
    return {
        "epsilon": advice.config.epsilon,
        "delta": advice.config.delta,
        "noise_multiplier": own.signal.noise_multiplier,
        "parameters": advice.updates.size,
        "noised_coordinates": advice.updates.noised,
        "calibrated_norm": advice.updates.norm,
        "calibrated_step": advice.updates.step,
        "agreement": own.signal.agreement,
        "signal_to_noise": {
            "if_all_agree": own.signal.strength,
            "round": own.signal.expected_of_round,
            "run": own.signal.of_run,
            "felt": advice.rule.felt(own.signal),
        },
        "verdict": advice.verdict,
        "kept": advice.kept,
        "thresholds": {"usable": USABLE, "marginal": MARGINAL},
        "would_be": {name: {"clients": n, "epsilon": epsilon} for name, (n, epsilon) in advice.wanted().items()},
        "rounds": [_choice(one, advice) for one in advice.rounds],
        "rounds_found": None if advice.found is None else advice.found.as_json(),
        "sampling_rates": [_choice(one, advice) for one in advice.rates],
        "recommended": {
            "rounds": best.rounds,
            "sampling_rate": best.sampling_rate,
            "clip_norm": advice.clip,
            "clip_norm_in_calibrated_norms": best.multiple,
            "fixed": advice.fixed,
            "decay": advice.decay,
            "controller": advice.controller,
        },
        "controllers": [_gain(one) for one in advice.nearby.gains],
        "baseline": BASELINE,
        "near": {
            "instances": len(advice.nearby.found),
            "nearest": advice.nearby.where,
            "distance": advice.nearby.nearest[0] if advice.nearby.where else None,
        },
    }


def _choice(choice: Choice, advice: Advice) -> dict[str, Any]:
    return {
        "rounds": choice.rounds,
        "sampling_rate": choice.sampling_rate,
        "noise_multiplier": choice.signal.noise_multiplier,
        "signal_to_noise_of_round": choice.signal.expected_of_round,
        "signal_to_noise_of_run": choice.signal.of_run,
        "kept": choice.kept,
        "clip_norm": choice.multiple * advice.updates.norm,
        "clip_norm_in_calibrated_norms": choice.multiple,
        "client_rounds": choice.work,
    }


def _gain(gain: Gain) -> dict[str, Any]:
    found = gain.difference
    return {
        "controller": gain.controller,
        "gain": None if found is None else found.mean,
        "interval": None if found is None else list(found.interval),
        "pairs": 0 if found is None else found.pairs,
        "page": gain.page,
        "needs_search_or_training": not gain.free,
        "raw_signals": gain.raw,
    }
