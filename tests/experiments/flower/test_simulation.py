"""Flower's own simulation runtime, held against the engine; run by hand with `-m long`."""

import pickle

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")  # Flower's simulation runtime has no other backend

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from envs import Setting, make_core
from envs.playing import decisions
from experiments.contenders.preparing import parse_contender
from experiments.flower.client import make_client_app
from experiments.flower.strategy import DPilotStrategy, model_of
from experiments.records.ledger_file import read_record
from fl_core.run.config import RunSettings

SEED, CLIENTS = 4, 4
SECONDS = 900
"""How long Ray's processes and the nodes may take to start on a busy machine."""
CASES = {
    "dp-fedavg": "aqc",
    "fedper": "exponential-decay:2:0.5",
    "feddpa": "exponential-decay:2:0.5",
    "fedglp-adp": "log-odds",
}
"""Method -> controller."""


class OneProcess:
    """Backend of Flower's simulation runtime that runs the app here; it copies messages and states, as Ray does."""

    num_workers = 1

    def __init__(self, backend_config):
        self.app = None

    def build(self, app_fn):
        self.app = app_fn()

    def is_worker_idle(self):
        return True

    def terminate(self):
        pass

    def process_message(self, message, context):
        message, context = pickle.loads(pickle.dumps((message, context)))
        reply = self.app(message, context)
        return pickle.loads(pickle.dumps((reply, context)))


@pytest.fixture(scope="module")
def one_ray():
    """Let Flower start Ray once for all methods: a second start in a process runs into Ray's time limits."""
    import ray
    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_agent_register_timeout_ms", str(1000 * SECONDS))
    patch.setenv("RAY_raylet_start_wait_time_s", str(SECONDS))
    patch.setattr(RayBackend, "terminate", lambda backend: backend.pool.terminate_all_actors())
    yield
    ray.shutdown()
    patch.undo()


@pytest.fixture(params=["one process", "ray"])
def backend(request, monkeypatch):
    """Run Flower's nodes in this process, or in Ray's."""
    if request.param == "ray":
        request.getfixturevalue("one_ray")
    else:
        monkeypatch.setattr("flwr.server.superlink.fleet.vce.backend.raybackend.RayBackend", OneProcess)
    return {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 1, "object_store_memory": 100 << 20},
    }


def simulated(folder, setting, controller, backend):
    """Run a federation in Flower's simulation; returns its strategy."""
    app, done = ServerApp(), []

    @app.main()
    def main(grid, context):
        one = DPilotStrategy(
            folder, setting, controller, model_of(setting), seed=SEED, noise="seeded", connect_seconds=SECONDS
        )
        one.start(grid, timeout=SECONDS)
        done.append(one)

    client = make_client_app(lambda context: setting.federation)
    run_simulation(app, client, num_supernodes=CLIENTS, backend_config=backend)
    return done[0]


@pytest.mark.long
@pytest.mark.parametrize("method", CASES)
def test_flowers_simulation_releases_the_models_of_the_engine(tmp_path, backend, method, request):
    setting = Setting.of(
        clients=CLIENTS,
        rounds=3,
        local_steps=2,
        sampling_rate=0.8,
        delta=0.01,
        epsilon=30.0,
        executor="sequential",
        method=method,
        reward="final-accuracy",
    )
    ours = simulated(tmp_path, setting, CASES[method], backend)
    core = make_core(1, setting=ours.run.setting)
    core.reset([0], [RunSettings(seed=SEED)])
    for _ in decisions(core, parse_contender(CASES[method]).policy(core)):
        pass
    difference = float((ours.server.state.server - core.federation.server).abs().max())
    nodes, charges = request.node.callspec.params["backend"], len(core.federation.ledgers[0].rows)
    print(f"| {nodes} | {method} | {CASES[method]} | {difference:.1e} | {charges} charges |")
    assert difference <= 1e-6
    assert float(core.federation.server.abs().max()) > 0.1
    assert ours.failures == [0, 0, 0]
    assert read_record(tmp_path).ledger.rows == core.federation.ledgers[0].rows
