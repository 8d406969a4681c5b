"""Bad settings are refused in one sentence that names the field, the value and what is allowed."""

import math
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.plain import config

torch.set_num_threads(1)
NAN, INF = math.nan, math.inf


def refusal(make, *arguments, **settings) -> str:
    """The sentence with which something is refused."""
    with pytest.raises(InputError) as caught:
        make(*arguments, **settings)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


BAD_NUMBERS = {
    "clients": [0, -1, 2.0, "5", True, NAN, None],
    "rounds": [0, -3, 1.5, "1", False, INF],
    "batch_size": [0, -1, 1.0, "16", True],
    "local_steps": [0, -1, 4.0, "4", True],
    "evaluation_samples": [-1, 0.5, "0", False],
    "evaluation_clients": [-1, 0.5, "0", False],
    "client_memory_mib": [-1, 0.5, "0", True],
    "memory_limit_mib": [-1, 0.5, "0", True],
    "image_memory_mib": [-1, 0.5, "0", True],
    "sampling_rate": [0, 0.0, -0.1, 1.0001, 2, NAN, INF, "0.5", True, None],
    "test_fraction": [0, 0.51, 1, -0.2, NAN, "0.2", True, None],
    "local_epochs": [-1, -0.001, NAN, INF, "1", True, None],
    "learning_rate": [0, -1, NAN, INF, "0.1", True, None],
    "momentum": [-0.1, 1, 1.5, NAN, "0.9", True],
    "weight_decay": [-0.1, NAN, INF, "0", True],
    "update_scale": [0, 1e-4, 1e4, -1, NAN, INF, "1", True, None],
    "epsilon": [0, -1, 0.0, -INF, NAN, "8", True, None],
    "noise_multiplier": [0, -1, 0.0, 1e9, -INF, INF, NAN, "2", True],
    "delta": [0, 1, 1.0, -1e-5, 2, NAN, INF, "1e-5", True, None],
    "telemetry_share": [-0.1, 1, 1.0, NAN, "0", True, None],
    "bit_noise": [-0.1, NAN, INF, "1", True, None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, bad in BAD_NUMBERS.items() for value in bad])
def test_numbers_out_of_range_or_of_another_kind_are_refused(field, value):
    sentence = refusal(FederationConfig, **{field: value})
    assert sentence.startswith(f"{field} is {value!r}") or sentence.startswith(f"{field} is {value}")
    assert "must be" in sentence
    assert any(word in sentence for word in ("number", "above 0"))


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [
        ("method", "fedavgg", "fedavg"),
        ("method", "dp_fedavg", "dp-fedavg"),
        ("model", "cnn-2", "cnn2"),
        ("model", "cnnn2-groupnorm", "cnn2"),
        ("dataset", "digit", "digits"),
        ("dataset", "fashionmnist", "fashion-mnist"),
        ("sampling", "poison", "poisson"),
        ("placement", "centre", "central"),
        ("population", "targets", "target"),
        ("executor", "vectorised", "vectorized"),
        ("optimizer", "adamm", "adam"),
        ("device", "cudda", "cuda"),
        ("partition", "dirichlett(1)", "dirichlet"),
        ("guarantee", "as published", "as-published"),
        ("evaluation", "hold-out", "holdout"),
    ],
)
def test_unknown_names_come_with_near_ones(field, value, near):
    sentence = refusal(FederationConfig, **{field: value})
    assert sentence.startswith(f"{field} '{value.partition('(')[0]}' is unknown; ")
    assert near in sentence


NAMED = (
    "method",
    "model",
    "dataset",
    "sampling",
    "adjacency",
    "noise_schedule",
    "noise",
    "placement",
    "population",
    "executor",
    "optimizer",
    "device",
    "partition",
    "guarantee",
    "evaluation",
)
FREE = ("augmentation", "input_normalization", "data_root", "set", "without", "client_epsilon", "telemetry")


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", [None, 3, True, ["mlp"], {}, ""])
def test_names_of_another_type_are_refused(field, value):
    assert field in refusal(FederationConfig, **{field: value})


@pytest.mark.parametrize(
    "partition", ["dirichlet", "dirichlet(0)", "dirichlet(nan)", "shards(1.5)", "classes(0)", "iid(3)"]
)
def test_partitions_are_read_when_the_object_is_made(partition):
    assert "partition" in refusal(FederationConfig, partition=partition)
    assert "partition" in refusal(RunSettings, seed=0, partition=partition)


def test_every_field_is_either_tested_here_or_free_text():
    assert {field.name for field in fields(FederationConfig)} == set(NAMED) | set(BAD_NUMBERS) | set(FREE)
    for field in FREE:
        for value in (3, None, True, ["x"]):
            assert refusal(FederationConfig, **{field: value}) == f"{field} is {value!r}, but it must be text."


def test_what_the_data_or_the_machine_cannot_give_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(Federation, config(clients=1000)).startswith("clients is 1000, but 1437 samples are enough for 718")
    assert "classes(11)" in refusal(Federation, config(partition="classes(11)"))
    assert "natural" in refusal(Federation, config(partition="natural"))
    assert "device is 'cuda', but this machine has no usable CUDA device" in refusal(FederationConfig, device="cuda")
    assert "epsilon is 0.001" in refusal(Federation, config(epsilon=0.001, sampling_rate=0.3))  # beyond the filter
    for runs in (0, -1, 1.5, True):
        assert refusal(Federation, config(), runs).startswith(f"runs is {runs}")


def test_a_method_without_noise_certifies_no_epsilon():
    sentence = refusal(FederationConfig, method="fedavg", epsilon=8.0)
    assert sentence.startswith("epsilon is 8.0, but method 'fedavg' adds no noise")
    federation = Federation(config("fedavg"))
    sentence = refusal(federation.start, [0], [RunSettings(seed=1, epsilon=8.0)])
    assert sentence.startswith("epsilon is 8.0, but method 'fedavg' adds no noise")
    report = federation.run_round(RoundPlan.constant(1))
    assert report.figures["epsilon_spent"] == INF
    FederationConfig(method="local-only", epsilon=8.0)  # releases nothing, so every epsilon holds


@pytest.mark.parametrize("method", ["fedavg", "local-only", "frozen-extractor"])
def test_a_bit_about_the_clip_is_sold_only_where_something_is_clipped(method):
    sentence = refusal(config, method, telemetry_share=0.1)
    assert sentence.startswith(f"telemetry_share is 0.1, but method '{method}' clips nothing")


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": -1},
        {"seed": 1.0},
        {"seed": True},
        {"seed": "1"},
        {"seed": 0, "learning_rate": 0},
        {"seed": 0, "learning_rate": NAN},
        {"seed": 0, "learning_rate": "0.1"},
        {"seed": 0, "learning_rate": True},
    ],
)
def test_settings_of_a_run_are_checked_when_made(settings):
    field, value = list(settings.items())[-1]
    assert refusal(RunSettings, **settings).startswith((f"{field} is {value!r}", f"{field} is {value}"))


@pytest.mark.parametrize("epsilon", [0, -1, NAN, "8", True])
def test_the_budget_of_a_run_is_checked_when_it_is_set(epsilon):
    assert refusal(RunSettings, seed=1, epsilon=epsilon).startswith(f"epsilon is {epsilon!r}")


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF, 1e-12, 1e12])
def test_clip_norms_outside_what_floats_can_clip_are_refused(value):
    plan = replace(RoundPlan.constant(2), clip_norm=np.array([1.0, value]))
    assert refusal(plan.check, 2) == f"clip_norm is {value}, but it must be in [1e-09, 1e+09]."


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF, 1e39])
def test_server_learning_rates_must_be_positive_floats(value):
    plan = replace(RoundPlan.constant(1), server_learning_rate=np.array([value]))
    assert refusal(plan.check, 1).startswith(f"server_learning_rate is {value}, but it must be above 0")


@pytest.mark.parametrize("value", [0.0, 1e-10, -0.5, NAN, INF, 1.0000001])
def test_budget_shares_must_be_shares(value):
    plan = replace(RoundPlan.constant(1), budget_share=np.array([value]))
    assert refusal(plan.check, 1) == f"budget_share is {value}, but it must be in [1e-09, 1]."


@pytest.mark.parametrize("field", ["clip_norm", "server_learning_rate", "budget_share"])
@pytest.mark.parametrize("value", [np.ones(2), np.ones((3, 1)), np.float64(1), 1.0, [1.0] * 3, np.array(["1"] * 3)])
def test_plans_need_an_array_with_an_entry_for_each_run(field, value):
    plan = replace(RoundPlan.constant(3), **{field: value})
    assert refusal(plan.check, 3).startswith(field)


@pytest.mark.parametrize("active", [[1], np.ones(2, dtype=bool), np.ones(3), "yes"])
def test_active_needs_a_truth_for_each_run(active):
    federation = Federation(config(), runs=3)
    assert refusal(federation.run_round, RoundPlan.constant(3), active).startswith("active is")
    assert federation.rounds.tolist() == [0, 0, 0]


def heard(action) -> list[str]:
    """Warnings of an action, with all of Python's filters off."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


def test_a_delta_that_promises_little_is_warned_of_once():
    def build() -> None:
        federation = Federation(config(delta=0.125), runs=3)
        federation.start([0, 1], [RunSettings(seed=7), RunSettings(seed=8, epsilon=3.0)])
        federation.run_round(RoundPlan.constant(3))

    (message,) = heard(build)
    assert message.startswith("delta is 0.125, at or above 1/clients = 0.125")
    assert heard(lambda: config(delta=0.1249)) == []
    assert heard(lambda: config(delta=0.5, epsilon=INF)) == []
    federation = Federation(config(delta=0.5, epsilon=INF))
    assert len(heard(lambda: federation.start([0], [RunSettings(seed=1, epsilon=2.0)]))) == 1


ANYTHING = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-3, 60),
    some.floats(),
    some.text(max_size=6),
    some.lists(some.integers(), max_size=1),
)
FUZZED = (*BAD_NUMBERS, *(name for name in NAMED if name not in ("device", "executor", "evaluation")), "set", "without")


@given(some.fixed_dictionaries({}, optional=dict.fromkeys(FUZZED, ANYTHING)))
def test_whatever_is_asked_for_either_works_or_is_refused_in_a_sentence(settings):
    refused = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = FederationConfig(**settings)
        except InputError as error:
            refused = str(error)
    if refused:
        assert any(field in refused for field in settings)
    else:
        assert 0 < made.accounting_rate <= 1
        assert 0 < made.cohort <= made.clients


def test_the_ledgers_rate_is_never_better_than_the_sampling_allows():
    assert config(sampling_rate=0.3).accounting_rate == 0.3
    assert config(sampling_rate=0.3, placement="distributed").accounting_rate == 0.3
    assert config(sampling_rate=0.3, placement="local").accounting_rate == 1.0
    assert config(sampling_rate=0.3, sampling="fixed").accounting_rate == 1.0
    assert config(sampling_rate=0.3).cohort == pytest.approx(2.4)
    assert config(sampling_rate=0.3, sampling="fixed").cohort == 2
