"""The script for a GPU runs in small on the CPU: rows, verdict and exit status."""

from __future__ import annotations

import dataclasses
import math

import pytest

from experiments.benchmarks import gpu
from fl_core.base.libraries import torch


def test_the_tables_have_a_row_for_every_case_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu", "--small"]) == 0
    equality, _, speeds = capsys.readouterr().out.partition("cpu equals the CPU within the tolerance")
    assert equality.count(" equal ") == len(gpu.SMALL.compared) * len(gpu.EXECUTORS)
    for timed in gpu.SMALL.timed:
        (line,) = (line for line in speeds.splitlines() if timed.case.title in line)
        *rates, ratio = (float(cell.removesuffix("x")) for cell in line.split()[-7:-3])
        assert min(rates) > 0
        assert ratio == pytest.approx(max(rates[1:]) / rates[0], rel=0.05)


def test_images_on_the_host_are_timed_beside_those_on_the_device() -> None:
    """The largest set of the small extent has 1.2 MiB, so that a limit of 1 keeps it aside."""
    large = gpu.Timed(dataclasses.replace(gpu.CASES[2], clients=10), 8)
    extent = gpu.Extent((), (gpu.SMALL.timed[0], large), 0.05)
    assert gpu._federation(large, "cpu", "vectorized", image_memory_mib=1).images.aside
    table = gpu.loading_table(extent, "cpu")
    assert [row[0] for row in table.rows] == ["on the device", "on the host"]
    assert table.title is not None
    assert large.case.title in table.title
    assert min(float(row[1]) for row in table.rows) > 0


@pytest.mark.parametrize("error", [2 * gpu.TOLERANCE, math.nan])
def test_a_release_that_differs_is_told(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"vectorized": (0.0, 0.0), "sequential": (error, 0.0)}
    monkeypatch.setattr(gpu, "differences", lambda case, device: found)
    table, equal = gpu.equality_table(gpu.SMALL, "cpu")
    assert not equal
    assert [row[3] for row in table.rows] == ["equal", "DIFFERS"] * len(gpu.SMALL.compared)


def test_an_absent_device_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "device is 'cuda', but this machine has no usable CUDA device; use cpu or auto.\n"


def test_what_compiling_gains_is_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def compiled(program: object, **options: object) -> object:
        asked.append(options)
        return program

    monkeypatch.setattr("experiments.benchmarks.gpu.torch.compile", compiled)
    table = gpu.compile_table(gpu.SMALL, "cpu")
    assert [row[:2] for row in table.rows] == [(case.title, "compiled") for case in gpu.SMALL.compared]
    assert asked == [{"mode": "default", "dynamic": False}] * len(gpu.SMALL.compared)
    for _, _, plain, later, gain, *_ in table.rows:
        assert float(gain.removesuffix("x")) == pytest.approx(float(plain) / float(later), rel=0.1)


def test_what_does_not_compile_is_told_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler(*_: object) -> object:
        raise RuntimeError("no C++ compiler\nand more")

    monkeypatch.setattr("experiments.benchmarks.gpu.torch.compile", lambda program, **_: no_compiler)
    found = gpu.compiled_seconds(gpu.SMALL.compared[0], "cpu", 0.01)
    assert min(found["traced"]) > 0
    assert all(math.isnan(value) for value in found["compiled"])
    assert capsys.readouterr().err == f"{gpu.SMALL.compared[0].title}, compiled: RuntimeError: no C++ compiler\n"
