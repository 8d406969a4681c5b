"""Instances read from the command line, and the seeds dealt out to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs import Setting
from envs.generators import parse_generator
from envs.instances import instance_seeds
from experiments.contenders.environments import Environments
from experiments.contenders.instances import Case, batches, check_instances, deal, drawn, vary
from experiments.records.comparison import Instance
from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig, RunSettings

CONFIG = FederationConfig(epsilon=7.5, partition="shards(2)", clients=10)


def test_every_combination_is_an_instance_with_its_own_target() -> None:
    found = vary(["epsilon=2,8", "partition=iid,shards(3)", "clients=20"], CONFIG)
    assert [one.name for one in found] == [
        "epsilon 2, partition iid, clients 20",
        "epsilon 2, partition shards(3), clients 20",
        "epsilon 8, partition iid, clients 20",
        "epsilon 8, partition shards(3), clients 20",
    ]
    assert [one.epsilon for one in found] == [2, 2, 8, 8]
    assert found[1].changes == {"epsilon": 2.0, "partition": "shards(3)", "clients": 20}
    assert vary(["learning-rate=0.1"], CONFIG)[0].epsilon == 7.5
    assert vary([], CONFIG) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["epsilon"], "but it must read SETTING=VALUE"),
        (["epsilon="], "but it must read SETTING=VALUE"),
        (["epsilonn=1"], "did you mean epsilon"),
        (["epsilon=two"], "must be a number"),
        (["clients=2.5"], "must be a whole number"),
        (["epsilon=2,2.0"], "repeats a value"),
        (["epsilon=2", "epsilon=4"], "twice"),
        (["rounds=10,20"], "share it"),
        (["epsilon=-1"], "epsilon is -1"),
        (["partition=shards(two)"], "shards"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_one_sentence(options: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        vary(options, CONFIG)
    assert "\n" not in str(caught.value)


def test_seeds_are_dealt_out_in_blocks_of_their_own() -> None:
    instances = vary(["epsilon=2,8"], CONFIG)
    cases = deal(range(100, 106), instances)
    assert [(case.instance, case.seed) for case in cases] == [
        *(("epsilon 2", seed) for seed in (100, 101, 102)),
        *(("epsilon 8", seed) for seed in (103, 104, 105)),
    ]
    assert cases[0].run_settings() == RunSettings(seed=100, epsilon=2.0)
    assert deal([5, 6]) == [Case(5), Case(6)]
    for seeds in (range(5), range(0)):
        with pytest.raises(InputError, match="dealt out equally to 2 instances"):
            deal(seeds, instances)


def test_what_a_batch_must_share_is_told_from_what_its_rows_may_differ_in() -> None:
    cases = deal(range(4), vary(["clients=10,20", "epsilon=2,8"], CONFIG))
    groups = batches(cases)
    assert [shared for shared, _ in groups] == [{"clients": 10}, {"clients": 20}]
    assert [[case.seed for case in group] for _, group in groups] == [[0, 1], [2, 3]]
    assert cases[3].run_settings().epsilon == 8.0


def test_an_instance_that_the_data_does_not_allow_is_refused_before_any_run() -> None:
    setting, environments = Setting.of(clients=10, rounds=2, knobs="none"), Environments()
    check_instances((), setting, environments)
    check_instances((Instance("fine", 4.0, {"epsilon": 4.0, "partition": "iid"}),), setting, environments)
    with pytest.raises(InputError, match="only 10 classes"):
        check_instances((Instance("odd", 7.5, {"partition": "classes(11)"}),), setting, environments)


def test_instances_of_methods_that_clip_nothing_are_allowed() -> None:
    setting, environments = Setting.of(clients=10, rounds=2, method="local-only", knobs="none"), Environments()
    check_instances((Instance("few", 7.5, {"clients": 8}),), setting, environments)
    with pytest.raises(InputError, match="only 10 classes"):
        check_instances((Instance("odd", 7.5, {"clients": 8, "partition": "classes(11)"}),), setting, environments)


def test_clients_own_budgets_are_scaled_with_an_instances_and_not_held_against_it() -> None:
    config = replace(CONFIG, client_epsilon=f"2,{CONFIG.epsilon:g}")
    one, other = vary([f"epsilon={CONFIG.epsilon / 2:g},{CONFIG.epsilon:g}"], config)
    assert (one.epsilon, other.epsilon) == (CONFIG.epsilon / 2, CONFIG.epsilon)
    with pytest.raises(InputError, match="epsilon is 0"):
        vary(["epsilon=0,1"], config)


def test_a_generator_draws_instances_of_its_test_set() -> None:
    found = drawn("epsilon=2..8,clients=10|12", 3, CONFIG)
    generator = parse_generator("epsilon=2..8,clients=10|12")
    assert [one.changes for one in found] == [generator.draw(seed) for seed in instance_seeds("test", 3)]
    assert [one.epsilon for one in found] == [one.changes["epsilon"] for one in found]
    assert [one.name.partition(":")[0] for one in found] == ["1", "2", "3"]
    assert found[0].name == f"1: clients {found[0].changes['clients']}, epsilon {found[0].epsilon:g}"
    later = drawn("epsilon=2..8,clients=10|12", 2, CONFIG, first=1)
    assert [one.changes for one in later] == [one.changes for one in found[1:]]
    for wrong in ("", "epsilon=-2|3", "rounds=2|3"):
        with pytest.raises(InputError):
            drawn(wrong, 3, CONFIG)


def test_a_setting_that_no_batch_shares_is_played_by_rows_of_one_batch() -> None:
    cases = deal(range(4), drawn("update_scale=0.2..5,learning_rate=0.1..1", 4, CONFIG))
    assert [shared for shared, _ in batches(cases)] == [{}]
    assert len({case.run_settings().update_scale for case in cases}) == 4
