"""The cost of control in a federation's round, told by part."""

import pytest

pytest.importorskip("flwr")

from experiments.benchmarks import deployment
from tests.experiments.flower.process_grid import ProcessGrid, in_a_task  # noqa: F401  (a fixture)


@pytest.mark.usefixtures("in_a_task")
def test_the_times_of_a_round_are_told_by_part(monkeypatch) -> None:
    grids = []

    def simulated(app, client, num_supernodes, backend_config):
        grids.append(ProcessGrid(deployment.SETTING, num_supernodes))
        app(grids[0], None)

    monkeypatch.setattr(deployment, "run_simulation", simulated)
    times = deployment.round_times("aqc", rounds=3)
    assert len({group for group, _ in grids[0].trained}) == 3
    assert set(times) == {f"{step} {clock}" for step in deployment.STEPS for clock in ("wall", "cpu")} | {
        "round",
        "fsync",
    }
    assert all(len(values) == 3 and min(values) > 0 for values in times.values())
    for index in range(3):  # the steps are parts of the round, and the waits for the disk of the steps
        control = sum(times[f"{step} wall"][index] for step in deployment.STEPS)
        assert times["fsync"][index] < control < times["round"][index]
