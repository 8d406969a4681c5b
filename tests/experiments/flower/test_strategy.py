"""Strategy and client app of Flower, driven in one process by a grid that calls the app."""

import numpy as np
import pytest
import torch

from envs import Setting, make_core
from envs.playing import decisions
from experiments.contenders.preparing import parse_contender
from experiments.records.charge_journal import read_journal
from experiments.records.ledger_file import read_record
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from experiments.flower.records import ROUND, UPLOAD
from experiments.flower.strategy import EXACT, DPilotStrategy, model_of
from tests.experiments.flower.process_grid import FIRST_NODE, ProcessGrid, in_a_task  # noqa: F401  (a fixture)

SEED = 4
SETTING = Setting.of(
    clients=5, rounds=3, local_steps=1, sampling_rate=0.6, delta=0.01, epsilon=40.0, executor="sequential"
)


def strategy(folder, setting=SETTING, controller="fixed", **more):
    options = {"seed": SEED, "noise": "seeded", "connect_seconds": 0.1}
    return DPilotStrategy(folder, setting, controller, model_of(setting), **options | more)


@pytest.mark.parametrize(
    ("method", "controller", "changes"),
    [
        ("dp-fedavg", "aqc", {"signals": "accounted"}),
        ("fedper", "exponential-decay:2:0.5", {}),
        ("feddpa", "budget-exponential:1", {"knobs": "budget_pace"}),
        ("fedglp-adp", "log-odds", {"knobs": "layer_weights"}),
    ],
)
def test_nodes_release_the_models_of_the_engine(tmp_path, method, controller, changes):
    setting = SETTING.replace(method=method, reward="final-accuracy", **changes)
    ours = strategy(tmp_path, setting, controller)
    core = make_core(1, setting=ours.run.setting)
    core.reset([0], [RunSettings(seed=SEED)])
    policy = parse_contender(controller).policy(core)
    for _ in decisions(core, policy):
        pass
    ours.start(ProcessGrid(setting))
    np.testing.assert_allclose(ours.server.state.server, core.federation.server, atol=1e-6)
    assert read_record(tmp_path).ledger.rows == core.federation.ledgers[0].rows


def changed(reply, **arrays):
    record = {name: value.numpy() for name, value in reply.content.array_records[UPLOAD].items()} | arrays
    reply.content[UPLOAD] = ArrayRecord({name: Array(value) for name, value in record.items()})
    return [reply]


def stale(reply):
    reply.content[ROUND] = ConfigRecord({"index": 99})
    return [reply]


@pytest.mark.parametrize(
    ("tamper", "counts"),
    [
        (lambda reply: [], False),
        (lambda reply: [reply, reply], True),
        (lambda reply: changed(reply, update=np.full(2410, np.nan, np.float32)), False),
        (lambda reply: changed(reply, update=np.zeros(7, np.float32)), False),
        (stale, False),
    ],
    ids=["late", "twice", "nan", "shape", "stale"],
)
def test_a_node_that_misbehaves_adds_zero_and_changes_neither_noise_nor_charge(tmp_path, tamper, counts):
    bad = FIRST_NODE + 1
    setting = SETTING.replace(sampling_rate=1.0)

    def wrapped(message, reply):
        return tamper(reply) if message.metadata.dst_node_id == bad else [reply]

    whole, other = strategy(tmp_path / "a", setting), strategy(tmp_path / "b", setting)
    whole.start(ProcessGrid(setting), num_rounds=1)
    other.start(ProcessGrid(setting, tamper=wrapped), num_rounds=1)
    difference = float(torch.linalg.vector_norm(whole.server.state.last_release - other.server.state.last_release))
    assert (difference == 0.0) is counts
    assert difference <= 1.0 + 1e-6
    assert other.failures == [0 if counts else 1]
    assert read_record(tmp_path / "a").ledger.rows == read_record(tmp_path / "b").ledger.rows


def test_a_charge_is_on_disk_before_a_round_is_sent(tmp_path):
    grid, seen = ProcessGrid(SETTING), []
    grid.on_train = lambda: seen.append(len(read_journal(tmp_path / "charges.jsonl").rounds))
    strategy(tmp_path).start(grid)
    assert seen == [int(group) + 1 for group, _ in grid.trained]


class Killed(BaseException):
    pass


def test_a_server_that_dies_within_a_round_never_releases_it_again(tmp_path):
    grid = ProcessGrid(SETTING.replace(sampling_rate=1.0))

    def die():
        raise Killed

    setting = SETTING.replace(sampling_rate=1.0)
    strategy(tmp_path, setting).start(grid, num_rounds=1)
    grid.on_train = die
    with pytest.raises(Killed):
        strategy(tmp_path, setting).start(grid)
    grid.on_train = lambda: None
    again = strategy(tmp_path, setting)
    before = again.server.state.server.clone()
    again.start(grid)
    assert sorted({group for group, _ in grid.trained}) == ["0", "2"]
    assert not torch.equal(before, again.server.state.server)
    assert [row[0] for row in read_record(tmp_path).ledger.rows] == [0, 1, 2]


def test_cohorts_are_drawn_afresh_where_noise_is_secret(tmp_path):
    groups = []
    for name in "ab":
        grid = ProcessGrid(SETTING.replace(sampling_rate=0.5))
        strategy(tmp_path / name, SETTING.replace(sampling_rate=0.5), noise="secret").start(grid)
        groups.append(grid.trained)
        assert read_record(tmp_path / name).facts.noise == "secret"
    assert groups[0] != groups[1]


def test_exact_metrics_are_asked_for_and_then_stand_in_the_ledger(tmp_path):
    plain = strategy(tmp_path / "plain").start(ProcessGrid(SETTING))
    exact = strategy(tmp_path / "exact", exact_metrics=True).start(ProcessGrid(SETTING))
    assert not any("train_loss" in one for one in plain.train_metrics_clientapp.values())
    assert all("train_loss" in one for one in exact.train_metrics_clientapp.values())
    assert read_record(tmp_path / "plain").facts.uncovered == ()
    assert read_record(tmp_path / "exact").facts.uncovered == (EXACT,)


def test_too_few_nodes_and_nodes_of_another_federation_are_refused_before_anything_is_sent(tmp_path):
    few = ProcessGrid(SETTING, nodes=4)
    with pytest.raises(InputError, match=r"4 nodes are connected after .* promises 5 clients"):
        strategy(tmp_path / "few").start(few)
    other = ProcessGrid(SETTING.replace(local_steps=2))
    with pytest.raises(InputError, match=r"Node 1000 runs dpilot .*, but the server runs .* Nothing was sent"):
        strategy(tmp_path / "other").start(other)
    assert few.trained == other.trained == []
    assert read_journal(tmp_path / "other" / "charges.jsonl").rounds == []


def test_a_message_of_another_server_is_refused_by_a_client():
    grid = ProcessGrid(SETTING)
    asked = ConfigRecord({"terms": "dpilot 0.0", "seed": 0, "index": 0, "telemetry": [], "exact_metrics": False})
    message = Message(RecordDict({ROUND: asked}), FIRST_NODE, "train")
    with pytest.raises(InputError, match=r"The server runs dpilot 0.0, but .* nothing was trained"):
        grid.app(message, grid.contexts[FIRST_NODE])


@pytest.mark.parametrize("method", ["adp-pfl", "dp-pfeddsu"])
def test_methods_that_cannot_be_deployed_are_refused(tmp_path, method):
    with pytest.raises(InputError, match="cannot be deployed"):
        strategy(tmp_path, SETTING.replace(method=method, model="mlp"))


def test_the_app_runs_by_its_configuration(tmp_path):
    from experiments.flower.app import client_app, server_app

    config = {"clients": 3, "rounds": 2, "local-steps": 1, "sampling-rate": 0.9, "delta": 0.01, "epsilon": 30.0}
    config |= {"folder": str(tmp_path), "controller": "exponential-decay:2:0.5", "connect-seconds": 0.1}
    grid = ProcessGrid(SETTING, nodes=3)
    grid.app = client_app
    for context in grid.contexts.values():
        context.run_config = config
    server_app(grid, Context(0, 0, {}, RecordDict(), config))
    record = read_record(tmp_path)
    assert (record.facts.rounds_done, record.facts.noise, record.facts.population) == (2, "secret", "target")
    with pytest.raises(InputError, match="setting 'clientz' is unknown"):
        server_app(grid, Context(0, 0, {}, RecordDict(), {"clientz": 3}))


def test_a_run_whose_model_is_gone_does_not_begin_another_model(tmp_path):
    strategy(tmp_path).start(ProcessGrid(SETTING), num_rounds=1)
    (tmp_path / "model.json").unlink()
    with pytest.raises(InputError, match=r"model.json' could not be read"):
        strategy(tmp_path)
