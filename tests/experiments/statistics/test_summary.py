"""The summary of a comparison, against plain recomputations from its records."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.records.comparison import Comparison, ControllerResult, Instance
from experiments.records.costs import PriorRounds, composed_epsilon
from experiments.reports.verdict import verdict
from experiments.statistics.summary import default_baseline, regrets, statistics_record, summarise
from fl_core.base.errors import InputError
from tests.experiments.records.test_comparison import make_comparison, make_controller, make_episode


def table(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(size=shape)


def played(name: str, values: Any, epsilon: float = 8.0, **changes: Any) -> ControllerResult:
    """A controller with accuracies [trainings, instances, seeds] on the instances i0, i1, …, and the ε it spent."""
    array = np.asarray(values)
    episodes = tuple(
        make_episode(
            100 * i + s,
            float(array[t, i, s]),
            instance=f"i{i}",
            training=t,
            trajectory={},
            epsilon_spent=epsilon,
            epsilon_pld=epsilon,
        )
        for t in range(array.shape[0])
        for i in range(array.shape[1])
        for s in range(array.shape[2])
    )
    trainings = tuple(f"seed {t}" for t in range(len(array))) if len(array) > 1 else ()
    return make_controller(name, [], episodes=episodes, trainings=trainings, **changes)


def on_instances(count: int, *controllers: ControllerResult, **changes: Any) -> Comparison:
    """A comparison on so many instances, with targets 8, 4, 2, …"""
    instances = tuple(Instance(f"i{i}", 8.0 / 2**i, {"epsilon": 8.0 / 2**i}) for i in range(count))
    return make_comparison(*controllers, instances=instances, **changes)


def test_summary_holds_every_figure() -> None:
    base = make_controller("best-fixed", [0.5, 0.6, 0.7, 0.8], search_rounds=320)
    episodes = tuple(
        make_episode(
            seed, accuracy, epsilon_spent=7.96 + 0.01 * seed, epsilon_pld=7.9 + 0.01 * seed, diverged=seed == 2
        )
        for seed, accuracy in enumerate([0.6, 0.6, 0.8, 0.8])
    )
    learned = make_controller("ppo:x", [], episodes=episodes, training_rounds=640)
    first, second = summarise(make_comparison(base, learned))
    assert (first.difference, first.improvement, first.learned) == (None, None, False)
    assert first.search_rounds == 320
    assert (second.pairs, second.trainings, second.runs) == (4, 1, 4)
    assert second.global_accuracy.value == pytest.approx(0.7)
    assert second.personal_accuracy.value == pytest.approx(0.75)
    assert second.difference is not None
    assert second.difference.mean == pytest.approx(0.05)
    assert second.improvement is not None
    assert second.improvement.value == 0.75
    [at_target] = second.spent
    assert dataclasses.astuple(at_target) == pytest.approx((8.0, 7.975, 7.99, 7.93))
    assert second.crash_rate == 0.25
    assert (second.training_rounds, second.diverged, second.learned, second.unequal) == (640, 1, True, False)


def test_the_order_of_episodes_does_not_matter() -> None:
    base = make_controller("best-fixed", list(table(9)))
    values = {seed: float(x) for seed, x in enumerate(table(9, seed=1))}
    turned = dict(reversed(values.items()))
    first = summarise(make_comparison(base, make_controller("aqc", values)))
    assert summarise(make_comparison(base, make_controller("aqc", turned))) == first


def test_summary_refuses_other_seeds_and_unknown_baselines() -> None:
    with pytest.raises(InputError, match="same seeds"):
        summarise(make_comparison(make_controller("fixed:1", {1: 0.1}), make_controller("aqc", {2: 0.1})))
    with pytest.raises(InputError, match="did you mean best-fixed"):
        summarise(make_comparison(), "best-fixd")


def test_default_baseline() -> None:
    def names(*given: str) -> str:
        return default_baseline(make_comparison(*(make_controller(name, [0.1]) for name in given)))

    assert names("aqc", "fixed:0.5", "best-fixed") == "best-fixed"
    assert names("aqc", "fixed:0.5") == "fixed:0.5"
    assert names("aqc", "decay") == "aqc"


def spent(name: str, values: list[float], epsilon: float, pld: float | None = None) -> ControllerResult:
    pld = epsilon if pld is None else pld
    episodes = tuple(make_episode(s, v, epsilon_spent=epsilon, epsilon_pld=pld) for s, v in enumerate(values))
    return make_controller(name, [], episodes=episodes)


@pytest.mark.parametrize(
    ("controller", "unequal", "words"),
    [
        (spent("x", [0.9, 0.9], 8.0), False, ""),
        (spent("x", [0.9, 0.9], 8.05), False, ""),
        (spent("x", [0.9, 0.9], 8.2), True, "spent up to ε = 8.2, above the target of 8"),
        (spent("x", [0.9, 0.9], 7.9, 8.5), True, "spent up to ε = 8.5"),
        (spent("x", [0.9, 0.9], 4.0), False, "spent less than the target of 8 on 2 of 2 seeds (least 4)"),
        (make_controller("x", [0.9, 0.9], epsilon_target=4.0), True, "another target, ε = 4 instead of 8"),
        (make_controller("x", [0.9, 0.9], epsilon_target=8.0), False, ""),
        (spent("x", [0.9, 0.9], math.inf), True, "above the target"),
    ],
)
def test_unequal_privacy_is_flagged_and_left_out_of_the_verdict(
    controller: ControllerResult, unequal: bool, words: str
) -> None:
    comparison = make_comparison(make_controller("best-fixed", [0.5, 0.5]), controller)
    row = summarise(comparison)[1]
    assert row.unequal is unequal
    assert words in row.budget_note
    assert bool(row.budget_note) == bool(words)
    text = verdict(comparison)
    assert ("x is left out of this verdict" in text) is unequal
    assert text.startswith("Only best fixed" if unequal else "x has the highest")


def test_no_privacy_at_all_is_no_inequality() -> None:
    comparison = make_comparison(spent("a", [0.5], math.inf), spent("b", [0.6], math.inf), epsilon=math.inf)
    assert not any(row.unequal or row.budget_note for row in summarise(comparison))
    assert "no privacy limit" in verdict(comparison)


def test_every_number_of_the_record_is_a_plain_recomputation() -> None:
    """From the JSON alone: loops, scipy's trimmed mean, and counting."""
    base, mine = table(1, 2, 6, seed=1), table(3, 2, 6, seed=2).round(1)
    made = (PriorRounds(400, 40, 4.0, 6.9, 1.0),)
    comparison = on_instances(
        2,
        played("best-fixed", base, 4.0, search_rounds=80),
        played("ppo", mine, 4.0, training_rounds=400, releases=made),
        hindsight=(played("fixed:1", table(1, 2, 6, seed=3), 4.0), played("fixed:2", table(1, 2, 6, seed=4), 4.0)),
    )
    data = json.loads(json.dumps(comparison.to_json()))
    record = statistics_record(comparison)
    assert record["baseline"] == "best-fixed"
    first, second = record["controllers"]

    def runs(controller: Any) -> dict[tuple[int, str, int], float]:
        return {(e["training"], e["instance"], e["seed"]): e["global_accuracy"] for e in controller["episodes"]}

    own, reference = runs(data["controllers"][1]), runs(data["controllers"][0])
    values = list(own.values())
    assert second["global_accuracy"]["value"] == pytest.approx(scipy.stats.trim_mean(values, 0.25))
    pairs = [(value, reference[0, instance, seed]) for (_, instance, seed), value in own.items()]
    assert second["difference"]["mean"] == pytest.approx(math.fsum(a - b for a, b in pairs) / len(pairs))
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    assert second["improvement"]["value"] == pytest.approx(wins / len(pairs))
    assert (second["runs"], second["pairs"], second["trainings"], second["crash_rate"]) == (36, 12, 3, 0.0)
    thresholds, shares = second["profile"]["thresholds"], second["profile"]["shares"]
    for threshold, share in zip(thresholds, shares, strict=True):
        assert share == pytest.approx(sum(value > threshold for value in values) / len(values))
    assert shares[0] == 1.0
    for regret in second["hindsight_regret"]:
        fixed = [*data["hindsight"], data["controllers"][0]]
        here = [
            [v for (_, i, _), v in runs(one).items() if i == regret["instance"]]
            for one in [*fixed, data["controllers"][1]]
        ]
        means = [math.fsum(values) / len(values) for values in here]
        assert regret["behind"]["mean"] == pytest.approx(max(means[:-1]) - means[-1])
        assert regret["best"] == fixed[int(np.argmax(means[:-1]))]["label"]
    assert [one["best"] for one in first["tuned_regret"]] == ["best fixed"] * 2
    assert [one["behind"]["mean"] for one in first["tuned_regret"]] == [0.0, 0.0]
    assert second["search_epsilon"] == composed_epsilon(made, comparison.delta)
    assert first["search_epsilon"] is None  # its 80 rounds are not recorded


def test_regret_needs_others_that_kept_to_their_epsilon() -> None:
    over = make_controller("server-lr-decay", [], search_rounds=9, episodes=(make_episode(0, 0.9, epsilon_spent=9.0),))
    kept = make_controller("exponential-decay", [0.6], search_rounds=9)
    plain, learned = make_controller("aqc", [0.7]), make_controller("ppo", [0.8], training_rounds=1, search_rounds=9)
    rows = summarise(make_comparison(plain, over, kept, learned))
    assert [row.hindsight_regret for row in rows] == [()] * 4
    assert [row.tuned_regret[0].best for row in rows] == ["exponential decay"] * 4
    assert [row.tuned_regret[0].behind.mean for row in rows] == pytest.approx([-0.1, -0.3, 0.0, -0.2])
    assert summarise(make_comparison(plain, over))[0].tuned_regret == ()
    assert regrets(make_comparison(plain), plain, ()) == ()


def test_regrets_are_in_the_order_of_the_instances() -> None:
    """Which is not that of their names: 10 comes after 9."""
    instances = tuple(Instance(f"{i}: epsilon 8", 8.0, {}) for i in range(1, 12))
    episodes = tuple(make_episode(i, 0.05 * i, instance=one.name) for i, one in enumerate(instances))
    searched = make_controller("best-fixed", [], episodes=episodes, search_rounds=1)
    [row] = summarise(make_comparison(searched, instances=instances))
    assert [one.instance for one in row.tuned_regret] == [one.name for one in instances]


def test_equal_bests_are_named_by_the_first() -> None:
    equal = [make_controller(name, [0.6, 0.4], search_rounds=1) for name in ("linear-decay", "best-fixed")]
    assert summarise(make_comparison(*equal))[1].tuned_regret[0].best == "linear decay"


def test_targets_are_never_averaged_over() -> None:
    comparison = on_instances(2, played("x", np.full((1, 2, 3), 0.5)))
    [row] = summarise(comparison)
    assert [spent.target for spent in row.spent] == [4.0, 8.0]
    assert [spent.mean for spent in row.spent] == [8.0, 8.0]
    assert row.unequal
    assert row.budget_note == "spent up to ε = 8, above the target of 4"


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_no_figure_and_no_verdict_is_ever_nan(columns: list[list[float]]) -> None:
    comparison = make_comparison(*(make_controller(f"c{i}", column) for i, column in enumerate(columns)))
    for row in summarise(comparison):
        intervals = (*row.global_accuracy.interval, *row.personal_accuracy.interval)
        assert all(math.isfinite(value) for value in (*intervals, row.spent[0].mean))
        assert 0 <= row.global_accuracy.value <= 1
    assert "nan" not in verdict(comparison)
    json.dumps(statistics_record(comparison), allow_nan=False)
