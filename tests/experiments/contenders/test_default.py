"""A run for which no controller is named takes the one that needs no tuning, where its setting allows it."""

from pathlib import Path

import pytest

from experiments.cli import main
from experiments.contenders.default import default_controller
from fl_core.run.config import FederationConfig

SMALL = ["--clients", "8", "--rounds", "4", "--local-steps", "1", "--executor", "vectorized"]


@pytest.mark.parametrize(
    ("settings", "controller"),
    [
        ({}, "probe"),
        ({"method": "fedglp-adp"}, "probe"),
        ({"sampling_rate": 0.2}, "probe"),
        ({"sampling_rate": 0.2, "noise_schedule": "fixed"}, "fixed"),
        ({"guarantee": "as-published"}, "fixed"),
        ({"epsilon": float("inf")}, "fixed"),
        ({"method": "local-only", "epsilon": float("inf")}, "none"),
        ({"method": "fedavg", "epsilon": float("inf")}, "none"),
    ],
)
def test_the_default_fits_the_setting(settings: dict[str, object], controller: str) -> None:
    assert default_controller(FederationConfig(**settings)) == controller  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "name"),
    [([], "probe"), (["--noise-schedule", "fixed"], "fixed"), (["--method", "local-only", "--epsilon", "inf"], "none")],
)
def test_a_run_without_a_controller_plays_to_the_end(tmp_path: Path, options: list[str], name: str) -> None:
    assert main(["run", *options, *SMALL, "--runs", str(tmp_path), "--quiet"]) == 0
    (folder,) = tmp_path.iterdir()
    assert f"__{name}__" in folder.name
    assert (folder / "summary.json").exists()
