"""A real federation on the loopback interface, of which processes are killed; run by hand with `-m long`."""

import json
import re

import pytest

pytest.importorskip("flwr")

from agents import TrainingConfig, train
from experiments.records.charge_journal import read_journal
from experiments.records.ledger_file import read_record
from experiments.records.privacy import report_of
from tests.experiments.flower.federation import Federation, wait_for

ROUNDS = 10
SETTING = {"clients": 4, "rounds": ROUNDS, "sampling_rate": 0.8, "delta": 1e-3, "epsilon": 8.0}


def options(**changes):
    told = SETTING | {"local_steps": 2, "executor": "sequential", "round_seconds": 240.0} | changes
    return {name.replace("_", "-"): value for name, value in told.items()}


def observed(federation):
    """Read how many rounds the run has finished."""
    return json.loads((federation.run / "control.json").read_text())["plain"]["observed"]


def finished(federation):
    return lambda: (federation.run / "control.json").exists() and observed(federation) == ROUNDS


@pytest.mark.long
def test_a_trained_controller_steers_a_federation_whose_node_and_server_are_killed(tmp_path):
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    trained = train({"local_steps": 2, **SETTING}, short, tmp_path / "training")
    with Federation(tmp_path, 4) as federation:
        asked = options(controller=f"ppo:{trained.folder}")
        federation.start_run(**asked)
        wait_for(lambda: federation.charged() > 1)
        federation.kill_node(1)
        federation.start_node(1)
        federation.kill_server_after(4)  # between the charge of the fifth round and its release
        charges, done = federation.charged(), observed(federation)
        assert (charges, done) == (5, 4)
        assert len(read_record(federation.run).ledger.charges) == charges
        before = json.loads((federation.run / "model.json").read_text())["file"]
        federation.start_run(**asked)
        wait_for(finished(federation))
        wait_for(lambda: federation.server_process() is None)
        log = federation.log()
    record = read_record(federation.run)
    assert [row[0] for row in record.ledger.rows] == list(range(ROUNDS))  # one charge each
    assert len(read_journal(federation.run / "charges.jsonl").rounds) == ROUNDS
    assert record.ledger.epsilon_spent() <= report_of(record).certified == 8.0
    assert record.facts.controller.startswith("ppo")
    assert record.facts.noise == "secret"
    after = json.loads((federation.run / "model.json").read_text())["file"]
    assert (before, after) == ("model-00004.safetensors", "model-00010.safetensors")
    nodes = re.findall(r"Activated node_id=(\d+)", log)
    assert len(nodes) == 5
    assert log.count(f"Push replies from node_id={nodes[-1]}") > 2  # the one that was started anew takes part


@pytest.mark.long
def test_the_probe_pays_for_its_telemetry_in_a_federation(tmp_path):
    with Federation(tmp_path, 4) as federation:
        federation.start_run(**options(controller="probe"))
        wait_for(finished(federation))
    rows = read_record(federation.run).ledger.rows
    assert all([name for name, *_ in releases] == ["update", "clip-bit"] for _, releases in rows)
    arrays = json.loads((federation.run / "control.json").read_text())["arrays"]
    assert arrays["figures.median_spread"]["values"][0] < 1.1  # 1.2 before anything was released
