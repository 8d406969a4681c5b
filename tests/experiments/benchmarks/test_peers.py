import multiprocessing
import sys
import types

import pytest

import experiments.benchmarks.__main__ as tables
from experiments.benchmarks.isolation import alone
from experiments.benchmarks.peers import COMPARED, RoundCost, peer_cost


def test_a_round_is_measured_where_the_peer_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmarks.peers.find_spec", lambda name: None)
    cost = peer_cost(COMPARED[0], rounds=2)
    assert 0 < cost.products < cost.seconds * 5
    assert cost.peak_share > 0
    assert cost.over_peer is None
    assert "pfl" not in sys.modules


def fake_pfl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put modules in the place of pfl that, like it, run rounds only if their process had this name at import."""

    class Backend:
        def __init__(self, *_: object) -> None:
            self.runs_rounds = multiprocessing.current_process().name == "MainProcess"

    class Averaging:
        def run(self, params: tuple[int, ...], backend: Backend, model: object, hyper: object, _: None, after: list):
            for index in range(params[0] if backend.runs_rounds else 0):
                after[0].after_central_iteration(None, model, central_iteration=index)

    def anything(*arguments: object, **named: object) -> tuple[object, ...]:
        return arguments

    names = {
        "pfl.aggregate.simulate": {"SimulatedBackend": Backend},
        "pfl.algorithm.base": {"NNAlgorithmParams": anything},
        "pfl.algorithm.federated_averaging": {"FederatedAveraging": Averaging},
        "pfl.callback.base": {"TrainingProcessCallback": object},
        "pfl.hyperparam.base": {"NNTrainHyperParams": anything},
        "pfl.metrics": {"Metrics": anything},
        "pfl.model.pytorch": {"PyTorchModel": anything},
        "pfl.privacy.gaussian_mechanism": {"GaussianMechanism": anything},
        "pfl.privacy.privacy_mechanism": {"CentrallyAppliedPrivacyMechanism": anything},
        "pfl.data.federated_dataset": {"FederatedDataset": anything},
        "pfl.data.pytorch": {"PyTorchTensorDataset": anything},
        "pfl.data.sampling": {"MinimizeReuseUserSampler": anything},
    }
    for name, content in names.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def test_rounds_are_paired_with_the_peers_in_a_process_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is made in processes of its own, whose names the peer would take for those that load data."""
    fake_pfl(monkeypatch)
    monkeypatch.setattr(multiprocessing.current_process(), "name", "SpawnProcess-1")
    monkeypatch.setattr("experiments.benchmarks.peers.find_spec", lambda name: name)
    cost = peer_cost(COMPARED[0], rounds=3)
    assert cost.over_peer is not None
    assert cost.over_peer > 0


def test_the_table_tells_the_ratio_of_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {case: RoundCost(0.2, 0.15, 0.5, ratio) for case, ratio in zip(COMPARED, (4.0, None, 1.25), strict=True)}
    monkeypatch.setattr(tables, "alone", lambda function, case, rounds, executor: costs[case])
    found = {row[0]: row[1:] for row in tables._peers_table("auto").rows}
    assert found == {
        case.title: (
            "200.0",
            "150.0",
            "50.0",
            "50%",
            "not installed" if cost.over_peer is None else f"{cost.over_peer:.2f}x",
        )
        for case, cost in costs.items()
    }


def test_rounds_are_paired_with_the_installed_peers_in_a_process_of_their_own() -> None:
    pytest.importorskip("pfl")
    cost = alone(peer_cost, COMPARED[0], 2)
    assert cost.over_peer is not None
    assert cost.over_peer > 0
