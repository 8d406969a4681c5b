"""Scalars reach the trackers beside TensorBoard: read back from what each keeps on disk, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents import loggers
from agents.loggers import LOGGERS, Tracker, logging_to, open_trackers
from experiments.cli import main
from fl_core.base.errors import InputError

SMALL = ["--clients", "10", "--rounds", "3", "--local-steps", "2", "--executor", "vectorized", "--quiet"]
TRAINING = ["--episodes", "2", "--environments", "2", "--validation-instances", "1", "--decision-rounds", "1"]


class Kept(Tracker):
    """Keeps what it is sent."""

    made: list[Kept] = []

    def __init__(self, folder: Path):
        self.folder, self.settings, self.values, self.closed = folder, {}, {}, False  # type: ignore[var-annotated]
        Kept.made.append(self)

    def parameters(self, values: Any) -> None:
        self.settings.update(values)

    def scalars(self, values: Any, step: int) -> None:
        for name, value in values.items():
            self.values.setdefault(name, {})[step] = value

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Kept.made.clear()
    return tmp_path


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Kept]:
    monkeypatch.setitem(loggers.LOGGERS, "kept", loggers.Entry("in memory", "json", Kept))
    return Kept.made


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {one.step: one.value for one in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("command", [["run"], ["train", *TRAINING], ["compare", "--controllers", "fixed", "--seeds=1"]])
def test_trackers_get_every_scalar_and_parameter_that_tensorboard_gets(command: list[str], kept: list[Kept]) -> None:
    assert main([*command, *SMALL, "--loggers", "kept"]) == 0
    (tracker,) = kept
    assert tracker.closed
    assert "dp-fedavg" in tracker.settings.values()
    told = scalars(tracker.folder)
    assert {tag for tag in told if not tag.startswith("validation/")} <= set(tracker.values)
    for tag, by_step in tracker.values.items():
        assert told[tag] == pytest.approx(by_step)


def test_nothing_is_opened_outside_the_block(kept: list[Kept], folder: Path) -> None:
    with logging_to("kept"):
        assert len(open_trackers(folder)) == 1
    assert open_trackers(folder) == []


def test_unknown_trackers_and_missing_packages_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *SMALL, "--loggers", "wandbb"]) == 2
    assert "logger 'wandbb' is unknown; did you mean wandb" in capsys.readouterr().err
    monkeypatch.setitem(LOGGERS, "none", loggers.Entry("nowhere", "no_such_package", Kept))
    with (
        pytest.raises(InputError, match=r"none needs the package no_such_package: pip install 'dpilot\[none\]'"),
        logging_to("none"),
    ):
        pass
    assert list(Path().iterdir()) == []


def test_mlflow_keeps_a_run_in_its_database(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["run", *SMALL, "--loggers", "mlflow"]) == 0
    client = mlflow.MlflowClient(f"sqlite:///{Path('runs').absolute()}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("dpilot").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "3"
    (name,) = (path.name for path in Path("runs").iterdir() if path.is_dir())
    told = scalars(Path("runs") / name)["control/clip norm"]
    assert {one.step: one.value for one in client.get_metric_history(run.info.run_id, "control/clip norm")} == (
        pytest.approx(told)
    )


def test_wandb_keeps_a_run_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert main(["run", *SMALL, "--loggers", "wandb"]) == 0
    (file,) = Path("runs").rglob("*.wandb")
    content = file.read_bytes()
    assert content.count(b"control/clip norm") >= 3  # once for each round
    assert b"privacy/epsilon spent" in content
    assert b"dp-fedavg" in content
