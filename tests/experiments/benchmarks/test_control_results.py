"""The overview of comparisons of controllers, from their tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks.control_boards import read_boards
from experiments.benchmarks.control_results import (
    answer,
    leads_table,
    overview_table,
    publish,
    write_overview,
)
from experiments.cli import main
from fl_core.base.errors import InputError
from tests.experiments.basis import require_basis

SEEDS = tuple(range(10))
BASE = np.linspace(0.6, 0.7, len(SEEDS))
COLUMNS = "task method epsilon clients role controller label training_rounds search_rounds instance training seed"
COLUMNS += " global_accuracy"
WAVE = 0.01 * np.sin(np.arange(len(SEEDS)))


def _write(
    path: Path,
    runs: Mapping[str, Sequence[np.ndarray]],
    seeds: Sequence[int] = SEEDS,
    epsilon: str = "2.5",
    method: str = "dp-fedavg",
) -> None:
    """Write a table: the trainings of each controller, `ppo` trained, `tuned` and `best` searched."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS.split())
        for name, trainings in runs.items():
            rounds = ("900" if "ppo" in name else "0", "40" if "tuned" in name or name == "best-fixed" else "0")
            for number, values in enumerate(trainings):
                for seed, value in zip(seeds, values, strict=True):
                    own = (
                        "digits",
                        method,
                        epsilon,
                        "50",
                        "controller",
                        name,
                        f"label of {name}",
                        *rounds,
                        "",
                        f"seed {number}",
                    )
                    writer.writerow([*own, seed, value])


PPO = "ppo:folder/ppo-digits/seed-*"


def test_leads_are_means_of_paired_differences_over_all_tables_of_a_setting(tmp_path: Path) -> None:
    first, second = BASE + 0.02 + WAVE, BASE + 0.04 - WAVE
    _write(
        tmp_path / "digits-2.5.csv",
        {"best-fixed": [BASE], "tuned:rounds": [BASE + 0.05 + WAVE], "probe": [BASE + 0.05 + WAVE]},
    )
    _write(tmp_path / "digits-2.5-more.csv", {PPO: [first, second]})
    (board,) = read_boards(tmp_path.glob("*.csv"))
    assert board.pages == ["digits-2.5", "digits-2.5-more"]
    assert board.best_tuned.name == "tuned:rounds"
    lead = board.lead(PPO, "best-fixed")
    assert lead is not None
    assert lead.mean == pytest.approx(float(np.mean((first + second) / 2 - BASE)))
    assert lead.interval.low < 0.02 + WAVE.mean() < lead.interval.high  # it holds the variation between trainings
    (row,) = overview_table([board]).rows
    assert row[1] == "ppo (ppo-digits, 2 trainings)"
    assert row[2].startswith("+3.0 [")
    assert row[5].startswith("0.0 [")
    assert {line[0]: line[1] for line in leads_table([board]).rows}["probe"].startswith("+5.")
    assert "beats the best fixed clip norm, which takes a search, in 1 of 1 cases" in answer([board])[0]
    assert "and loses to it in 1 (ppo on digits, ε = 2.5: −2.2" in answer([board])[1]


def test_the_probe_is_no_tuned_schedule_even_where_its_rounds_were_searched(tmp_path: Path) -> None:
    controllers = {"best-fixed": [BASE], "tuned:rounds": [BASE + 0.01], "probe@tuned": [BASE + 0.04]}
    _write(tmp_path / "digits-2.5.csv", controllers)
    (board,) = read_boards(tmp_path.glob("*.csv"))
    assert board.best_tuned.name == "tuned:rounds"
    assert board.played["probe@tuned"].group == "probe"
    assert "beats the best tuned schedule in 1 of 1 cases (digits, ε = 2.5: +3.0" in answer([board])[3]


def test_tables_of_other_names_or_methods_are_left_to_their_pages(tmp_path: Path) -> None:
    _write(tmp_path / "digits-2.5.csv", {"best-fixed": [BASE], "tuned:rounds": [BASE + 0.05]})
    _write(tmp_path / "digits-2.5-more.csv", {"fixed": [BASE], PPO: [BASE]}, seeds=tuple(range(1, 11)), method="feddpa")
    _write(tmp_path / "choice.csv", {"probe": [BASE]}, seeds=tuple(range(2, 12)))
    (board,) = read_boards(tmp_path.glob("*.csv"))
    assert (board.pages, [*board.played]) == (["digits-2.5"], ["best-fixed", "tuned:rounds"])


def test_tables_of_other_seeds_are_not_put_together(tmp_path: Path) -> None:
    _write(tmp_path / "digits-2.5.csv", {"best-fixed": [BASE], "tuned:rounds": [BASE]})
    _write(tmp_path / "digits-2.5-more.csv", {"probe": [BASE]}, seeds=tuple(range(1, 11)))
    with pytest.raises(InputError, match=r"digits-2[.]5-more of digits, ε = 2[.]5 have different seeds"):
        read_boards(tmp_path.glob("*.csv"))


@pytest.mark.usefixtures("undrawn")
def test_a_finished_comparison_becomes_a_page_of_the_overview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = tmp_path / "digits-7.5.yaml"
    definition.write_text(
        "command: compare\ncontrollers: [best-fixed, fixed, probe]\nseeds: 2\nsearch_instances: 1\n"
        f"runs: {tmp_path / 'runs'}\nfederation: {{clients: 4, rounds: 4, local_steps: 1, executor: vectorized, "
        "evaluation_samples: 20, delta: 0.01}\n"
    )
    arguments = ["compare", "--config", str(definition), "--quiet"]
    monkeypatch.setattr("sys.argv", ["dpilot", *arguments])
    assert main(arguments) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert publish(folder, tmp_path) == "digits-7.5"
    write_overview(tmp_path)
    page, overview = ((tmp_path / name).read_text(encoding="utf-8") for name in ("digits-7.5.md", "README.md"))
    require_basis(page)
    require_basis(overview)
    assert "(digits-7.5.png)" in page
    assert "All numbers are in digits-7.5.csv." in page
    assert "report.html" not in page
    assert "](digits-7.5.md)" in overview
    assert "digits, ε = 7.5" in overview
    assert (tmp_path / "digits-7.5.png").stat().st_size > 0
    assert (tmp_path / "overview.png").stat().st_size > 0
