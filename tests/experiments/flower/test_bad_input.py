"""What cannot be is refused in a sentence that names field, value and what is allowed, before anything is sent."""

import json

import pytest

from agents import TrainingConfig, train
from experiments.records.charge_journal import read_journal
from fl_core.base.errors import InputError
from tests.fuzz import reseal

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.error import Error

from experiments.flower.app import client_app, server_app
from experiments.flower.records import ROUND
from tests.experiments.flower.process_grid import FIRST_NODE, ProcessGrid, in_a_task  # noqa: F401  (a fixture)
from tests.experiments.flower.test_strategy import SETTING, strategy

CONFIG = {
    "clients": 3,
    "rounds": 2,
    "local-steps": 1,
    "sampling-rate": 0.9,
    "delta": 0.01,
    "epsilon": 30.0,
    "executor": "sequential",
    "connect-seconds": 0.05,
}


def run_app(place, nodes=3, theirs=None, **changes):
    """Run the app by a configuration; returns the grid. Nodes may have another one."""
    own = {**CONFIG, "folder": str(place), **{name.replace("_", "-"): value for name, value in changes.items()}}
    grid = ProcessGrid(SETTING, nodes)
    grid.app, grid.refusal = client_app, ""
    for context in grid.contexts.values():
        context.run_config = own | (theirs or {})
    try:
        server_app(grid, Context(0, 0, {}, RecordDict(), own))
    except InputError as error:
        grid.refusal = str(error)
    return grid


def refused(place, *words, **changes):
    grid = run_app(place, **changes)
    assert all(word in grid.refusal for word in words), grid.refusal
    assert grid.refusal.count("\n") == 0
    assert grid.trained == []
    journal = place / "charges.jsonl"
    assert not journal.exists() or read_journal(journal).rounds == []


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clientz": 3}, ["setting 'clientz' is unknown", "did you mean clients"]),
        ({"clients": "three"}, ["clients is 'three'", "a whole number"]),
        ({"clients": 2.5}, ["clients is 2.5", "a whole number"]),
        ({"clients": 0}, ["clients is 0", "at least"]),
        ({"clients": True}, ["clients is True", "a whole number"]),
        ({"rounds": -1}, ["rounds is -1", "at least 1"]),
        ({"rounds": NAN}, ["rounds is nan", "a whole number"]),
        ({"epsilon": -1.0}, ["epsilon is -1", "above 0"]),
        ({"epsilon": 0.0}, ["epsilon is 0", "above 0"]),
        ({"epsilon": NAN}, ["epsilon is nan", "a number"]),
        ({"epsilon": INF}, ["epsilon is inf", "it must be finite"]),
        ({"noise_multiplier": 0.0}, ["noise_multiplier is 0"]),
        ({"noise_multiplier": -1.0}, ["noise_multiplier is -1"]),
        ({"noise_multiplier": NAN}, ["noise_multiplier is nan"]),
        ({"epsilon": True}, ["epsilon is True", "a number"]),
        ({"delta": 0.0}, ["delta is 0", "[1e-100, 0.9]"]),
        ({"delta": 1.5}, ["delta is 1.5", "[1e-100, 0.9]"]),
        ({"sampling_rate": 0.0}, ["sampling_rate is 0", "[1e-06, 1]"]),
        ({"sampling_rate": -0.5}, ["sampling_rate is -0.5", "[1e-06, 1]"]),
        ({"sampling_rate": 1.5}, ["sampling_rate is 1.5", "[1e-06, 1]"]),
        ({"sampling_rate": NAN}, ["sampling_rate is nan"]),
        ({"sampling_rate": 0.2}, ["sampling_rate is 0.2 of 3 clients", "expected cohort of 0.6", "at least 1"]),
        ({"sampling_rate": "most"}, ["sampling_rate is 'most'", "a number"]),
        ({"learning_rate": -0.1}, ["learning_rate is -0.1"]),
        ({"task": "nosuch"}, ["task 'nosuch' is unknown", "digits"]),
        ({"task": 3}, ["task", "3"]),
        ({"dataset": "nosuch"}, ["dataset 'nosuch' is unknown"]),
        ({"model": "nosuch"}, ["model 'nosuch' is unknown"]),
        ({"method": "nosuch"}, ["method 'nosuch' is unknown"]),
        ({"noise": "loud"}, ["noise 'loud' is unknown", "secret"]),
        ({"instances": "some"}, ["instances 'some' is unknown"]),
        ({"knobs": "nosuch"}, ["knob 'nosuch'"]),
        ({"signals": "all"}, ["signals 'all' is unknown"]),
        ({"decision_rounds": 9}, ["decision_rounds is 9", "2 rounds"]),
        ({"folder": ""}, ["folder is empty"]),
        ({"folder": 3}, ["folder is 3", "text"]),
        ({"folder": "runs\0"}, ["folder is", "the name of a folder"]),
        ({"controller": ""}, ["controller"]),
        ({"controller": 5}, ["controller is 5", "text"]),
        ({"controller": "nosuch"}, ["controller 'nosuch' is unknown"]),
        ({"controller": "fixed:-1"}, ["clip_norm", "-1", "above 0"]),
        ({"controller": "fixed:nan"}, ["clip_norm", "nan", "finite"]),
        ({"controller": "ppo:runs/nosuch"}, ["'runs/nosuch' is no folder"]),
        ({"controller": "log-odds"}, ["knob 'layer_weights' does not exist in method 'dp-fedavg'"]),
        ({"controller": "best-fixed"}, ["controller 'best-fixed' derives", "fixed:0.8"]),
        ({"controller": "exponential-decay"}, ["controller 'exponential-decay' derives", "exponential-decay:2:0.5"]),
        ({"controller": "tuned:exponential-decay"}, ["'tuned:exponential-decay' is searched in simulated runs"]),
        ({"controller": "tuned:rounds"}, ["'tuned:rounds' is searched in simulated runs"]),
        ({"controller": "online-ppo"}, ["'online-ppo' learns within a simulated run"]),
        ({"controller": "aqc-exact"}, ["sees clipped_share", "exact metrics of clients", "public or accounted"]),
        ({"seed": -1}, ["seed is -1", "at least 0"]),
        ({"seed": "x"}, ["seed is 'x'", "a whole number"]),
        ({"seed": 1.5}, ["seed is 1.5", "a whole number"]),
        ({"secret_noise": "perhaps"}, ["secret_noise is 'perhaps'", "true or false"]),
        ({"secret_noise": 1}, ["secret_noise is 1", "true or false"]),
        ({"exact_metrics": "some"}, ["exact_metrics is 'some'", "true or false"]),
        ({"connect_seconds": NAN}, ["connect_seconds is nan", "a number"]),
        ({"connect_seconds": -1.0}, ["connect_seconds is -1"]),
        ({"connect_seconds": INF}, ["connect_seconds is inf"]),
        ({"round_seconds": 0.0}, ["round_seconds is 0"]),
        ({"round_seconds": NAN}, ["round_seconds is nan"]),
        ({"round_seconds": True}, ["round_seconds is True"]),
        ({"placement": "distributed"}, ["placement is 'distributed'", "set it to central"]),
        ({"placement": "local"}, ["placement is 'local'", "set it to central"]),
        ({"placement": "cloud"}, ["placement 'cloud' is unknown"]),
        ({"sampling": "fixed"}, ["sampling is 'fixed'", "set it to poisson"]),
        ({"guarantee": "as-published"}, ["guarantee is 'as-published'", "set it to sound"]),
        ({"client_epsilon": "2,6"}, ["client_epsilon is '2,6'"]),
        ({"method": "fedavg", "epsilon": INF}, ["method is 'fedavg'", "releases nothing with noise"]),
        ({"method": "local-only", "epsilon": INF}, ["method is 'local-only'", "releases nothing with noise"]),
        ({"method": "dp-pfeddsu"}, ["method is 'dp-pfeddsu'", "cannot be deployed"]),
        ({"method": "adp-pfl"}, ["method is 'adp-pfl'", "cannot be deployed"]),
    ],
    ids=lambda value: "-".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else "",
)
def test_a_wrong_configuration_is_refused_before_a_node_is_asked(tmp_path, changes, words):
    refused(tmp_path / "run", *words, **changes)
    assert not (tmp_path / "run" / "ledger.json").exists() or "aqc-exact" in changes.values()


@pytest.mark.parametrize("nodes", [0, 2])
def test_fewer_nodes_than_clients_are_refused(tmp_path, nodes):
    refused(tmp_path, f"{nodes} nodes are connected after 0.05 s", "promises 3 clients", nodes=nodes)
    assert run_app(tmp_path, nodes=2, clients=2).trained  # the configuration may be mended in the same folder


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"model": "mlp-small"}, ["runs dpilot", "with mlp-small on digits", "but the server runs dpilot"]),
        ({"method": "fedper"}, ["fedper with", "but the server runs"]),
        ({"local-steps": 2}, ["settings", "but the server runs"]),
        ({"clients": 4}, ["settings", "but the server runs"]),
        ({"dataset": "nosuch"}, ["refuses: dataset 'nosuch' is unknown"]),
        ({"model": 5}, ["refuses: model is 5"]),
    ],
)
def test_a_client_of_another_model_or_setting_is_refused(tmp_path, theirs, words):
    refused(tmp_path, f"Node {FIRST_NODE}", *words, "Nothing was sent", theirs=theirs)


def test_a_client_of_another_version_is_refused(tmp_path, monkeypatch):
    grid = ProcessGrid(SETTING)

    def older(message, context):
        reply = app(message, context)
        told = reply.content.config_records[ROUND]
        told["terms"] = str(told["terms"]).replace("dpilot 0", "dpilot 9")
        return reply

    app, grid.app = grid.app, older
    with pytest.raises(InputError, match=r"Node 1000 runs dpilot 9\..*, but the server runs dpilot 0\..* Nothing was"):
        strategy(tmp_path).start(grid)
    assert grid.trained == []


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 1, None], "Node 1002 refuses: partition-id of this node is None"),
        ([0, 1, "two"], "Node 1002 refuses: partition-id of this node is 'two'"),
        ([0, 1, 7], "Node 1002 is client 7, but the federation has 0 to 2"),
        ([0, 1, -1], "Node 1002 is client -1, but the federation has 0 to 2"),
        ([0, 1, 1], "Node 1002 is client 1, as another connected node is"),
    ],
)
def test_nodes_with_wrong_numbers_are_refused(tmp_path, numbers, words):
    setting = SETTING.replace(clients=3, sampling_rate=0.9)
    grid = ProcessGrid(setting)
    for context, number in zip(grid.contexts.values(), numbers, strict=True):
        context.node_config = {} if number is None else {"partition-id": number}
    with pytest.raises(InputError, match=words):
        strategy(tmp_path, setting).start(grid)
    assert grid.trained == []


def failing(message, context):
    return Message(Error(code=3, reason="<class 'ImportError'>:<'No module\nnamed torch'>"), reply_to=message)


def silent(message, context):
    return Message(RecordDict(), reply_to=message)


def babbling(message, context):
    return Message(RecordDict({ROUND: ConfigRecord({"terms": "x\x1b[31m" * 300, "number": b"1"})}), reply_to=message)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (failing, "Node 1000 did not introduce itself: .*No module named torch"),
        (silent, "Node 1000 did not introduce itself: its app answers nothing"),
        (babbling, "Node 1000 runs x.*, but the server runs dpilot"),
    ],
)
def test_an_app_that_is_none_of_ours_is_refused_with_its_words(tmp_path, app, words):
    grid = ProcessGrid(SETTING)
    grid.app = app
    with pytest.raises(InputError, match=words) as refusal:
        strategy(tmp_path).start(grid)
    assert "\x1b" not in str(refusal.value)


def test_a_bundle_for_other_knobs_is_refused(tmp_path):
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    own = {"clients": 3, "rounds": 2, "local_steps": 1, "delta": 0.01, "method": "fedglp-adp"}
    trained = train({**own, "knobs": "layer_weights"}, short, tmp_path / "training")
    refused(tmp_path / "run", "knob 'layer_weights' does not exist", controller=f"ppo:{trained.folder}")


def test_a_bundle_that_sees_exact_metrics_is_refused(tmp_path):
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    own = {"clients": 3, "rounds": 2, "local_steps": 1, "delta": 0.01, "signals": "paper"}
    trained = train(own, short, tmp_path / "training")
    refused(tmp_path / "run", "exact metrics of clients", controller=f"ppo:{trained.folder}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 4, "nodes": 4}, ["clients is 3", "4"]),
        ({"epsilon": 20.0}, ["of another run"]),
        ({"method": "fedper"}, ["of another run"]),
        ({"controller": "aqc"}, ["of another run"]),
        ({"seed": 3}, ["seed"]),
        ({"rounds": 5}, ["of another run"]),
        ({"secret_noise": False}, ["of another run"]),
        ({"exact_metrics": True}, ["of another run"]),
    ],
)
def test_a_ledger_of_another_federation_is_refused(tmp_path, changes, words):
    run_app(tmp_path)
    before = (tmp_path / "charges.jsonl").read_bytes()
    grid = run_app(tmp_path, **changes)
    assert all(word in grid.refusal for word in words), grid.refusal
    assert grid.trained == []
    assert (tmp_path / "charges.jsonl").read_bytes() == before


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path):
    path.write_text(path.read_text().replace("0", "1", 1))


def forge(path):
    record = json.loads(path.read_text())
    path.write_text(json.dumps(reseal({name: [] for name in record})))


@pytest.mark.parametrize("harm", [cut, edit, forge, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", ["ledger.json", "control.json", "charges.jsonl", "model.json"])
def test_damaged_files_of_a_run_are_refused_by_name(tmp_path, name, harm):
    run_app(tmp_path)
    if name == "charges.jsonl" and harm is forge:
        pytest.skip("it is no record but lines of them")
    harm(tmp_path / name)
    grid = run_app(tmp_path)
    assert str(tmp_path) in grid.refusal
    assert grid.trained == []


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    refused(tmp_path, "holds thesis.txt and no ledger.json")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "run", "could not be made")


def test_a_refusal_leaves_the_folder_to_others(tmp_path):
    refused(tmp_path, "2 nodes are connected", nodes=2)
    assert len({group for group, _ in run_app(tmp_path).trained}) == 2


def test_flower_logs_a_refusal_as_a_sentence(caplog):
    from flwr.common.logger import log

    try:
        raise InputError("rounds is -1, but it must be at least 1.")
    except InputError as error:
        log(40, "%s raised an exception", "ServerApp", exc_info=error)
    (record,) = caplog.records
    assert record.getMessage() == "rounds is -1, but it must be at least 1."
    assert record.exc_info is None
    try:
        raise RuntimeError("a fault")
    except RuntimeError as error:
        log(40, "%s raised an exception", "ServerApp", exc_info=error)
    assert caplog.records[-1].exc_info is not None
