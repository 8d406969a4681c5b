"""`python -m experiments.benchmarks.gpu [--device cuda] [--small]`: equality with the CPU, speed and memory of a GPU.

Images are random. Every clock is read with the device idle. `--compile` adds rounds by the executor `compiled`, and
what `torch.compile`, and on a GPU its CUDA graphs, gain on the gradient of a step.
`--loading` adds rounds whose images stay on the host.
`--small` tells that the script works, on any device; its speeds mean nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from experiments.benchmarks.local_training import BATCH, CASES, STEPS, Case, conventional, make_work, plain_loop
from experiments.reports.tables import Table
from fl_core.base.devices import check_device, find_device
from fl_core.base.errors import InputError
from fl_core.models.build import build_model
from fl_core.privacy.mechanism import clip_factors, scaled_sum
from fl_core.recipes.objective import Update
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from fl_core.training.programs import find_program

TOLERANCE = 1e-4
"""Largest relative difference from the CPU that a release may have, after one local step in full float32."""
EXECUTORS = ("vectorized", "sequential")
TABLE_6_SECONDS = 3.36
"""Seconds of a round of DP-FedAvg with the CNN in FedGLP-ADP's Table 6, on an NVIDIA 3090."""


@dataclass(frozen=True)
class Timed:
    """Rounds that are timed: of all clients of a case, so many minibatches each, by a local optimizer."""

    case: Case
    steps: int = STEPS
    optimizer: str = "sgd"


TABLE_6 = Timed(Case("Table 6: CNN, 3x32x32, 10 x 5,000 samples", "cnn3", (3, 32, 32), 10), 5_000 // BATCH, "adam")
WIDE = Case("wide CNN, 28x28", "cnn2-wide", (1, 28, 28), 10)
"""Beside the cases that a CPU is timed on, which it would take minutes for."""
RESNET = Case("ResNet20, 3x32x32", "resnet20", (3, 32, 32), 10)
"""Timed but not compared: both executors on one CPU differ already, by 5e-4 to 7e-4 after one step."""


@dataclass(frozen=True)
class Extent:
    """What is measured: the cases, and the seconds that each way of doing a round is repeated for."""

    compared: tuple[Case, ...] = (*CASES, WIDE)
    timed: tuple[Timed, ...] = (*(Timed(case) for case in (*CASES, WIDE, RESNET)), TABLE_6)
    seconds: float = 3.0


SMALL = Extent(
    tuple(replace(case, clients=2) for case in CASES[:2]),
    (Timed(replace(CASES[0], clients=2)), Timed(replace(CASES[1], clients=2), 2, "adam")),
    0.05,
)


def differences(case: Case, device: str) -> dict[str, tuple[float, float]]:
    """Compare what a round of one local step releases with what the CPU's `sequential` executor does, without noise.

    More steps amplify rounding: after five, both executors on one CPU differ by up to 7e-4 on LeNet, 3e-6 after one.

    Returns:
        For each executor on the device, the largest difference of a coordinate over the largest coordinate: in full
        float32, and with torch's settings, where convolutions of a GPU may be TF32.
    """
    expected = _released(case, "cpu", "sequential")
    found = {}
    for executor in EXECUTORS:
        with _full_precision():
            exact = _released(case, device, executor)
        pair = (exact, _released(case, device, executor))
        errors = (float((one - expected).abs().max() / expected.abs().max()) for one in pair)
        found[executor] = (next(errors), next(errors))
    return found


def _released(case: Case, device: str, executor: str) -> Tensor:
    """Run one round of a federation and return the change of its server model, on the CPU."""
    federation = _federation(Timed(case, steps=1), device, executor, math.inf)
    before = federation.server.clone()
    federation.run_round(RoundPlan.constant(1))
    return (federation.server - before).cpu().double()


@contextmanager
def _full_precision() -> Iterator[None]:
    """Compute convolutions in float32, not in TF32."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def _federation(
    timed: Timed, device: str, executor: str, epsilon: float = 8.0, image_memory_mib: int = 0
) -> Federation:
    """Make a federation of random images, in which all clients take part in every round."""
    case, random = timed.case, torch.Generator().manual_seed(0)
    count = case.clients * timed.steps * BATCH * 5 // 4  # a fifth of them tests
    pixels = torch.randint(0, 256, (count, *case.shape), dtype=torch.uint8, generator=random)
    data = {"images": pixels.numpy(), "labels": (torch.arange(count) % 10).numpy()}
    config = FederationConfig(
        dataset=data,  # type: ignore[arg-type]
        model=case.model,
        clients=case.clients,
        partition="iid",
        sampling_rate=1.0,
        local_steps=timed.steps,
        batch_size=BATCH,
        optimizer=timed.optimizer,
        learning_rate=0.1 if timed.optimizer == "sgd" else 0.001,
        rounds=100_000,
        delta=1e-3,
        epsilon=epsilon,
        executor=executor,
        device=device,
        image_memory_mib=image_memory_mib,
    )
    return Federation(config)


def _plain_round(timed: Timed, device: str) -> Callable[[], object]:
    """Make the same private round by the plain loop: a module and an optimizer per client, clip, sum and noise."""
    case = timed.case
    model, work, images = make_work(case, timed.steps, BATCH, device)
    module = model.make_module() if case.model.startswith("resnet") else conventional(model)
    optimizer_of = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[timed.optimizer]
    present = torch.ones(1, case.clients, dtype=torch.bool, device=device)
    clip_norm = torch.ones(1, 1, 1, device=device)

    def once() -> Tensor:
        updates = (plain_loop(module.to(device), work, images, optimizer_of) - work.parameters).unsqueeze(0)
        total = scaled_sum(updates, clip_factors(updates, present, clip_norm))
        return (total + torch.randn_like(total)) / case.clients

    return once


def speed(make: Callable[[], Callable[[], object]], device: str, seconds: float) -> tuple[float, float]:
    """Measure a way of doing rounds: rounds per second after a first one, and peak MiB of a GPU (nan elsewhere)."""
    gpu = find_device(device) if device.startswith("cuda") else None
    if gpu is not None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(gpu)
    once = make()
    once()
    _wait(gpu)
    done, began = 0, time.perf_counter()
    while not done or time.perf_counter() - began < seconds:
        once()
        _wait(gpu)
        done += 1
    rate = done / (time.perf_counter() - began)
    return rate, math.nan if gpu is None else torch.cuda.max_memory_allocated(gpu) / 2**20


def _wait(gpu: torch.device | None) -> None:
    if gpu is not None:
        torch.cuda.synchronize(gpu)


def _our_round(timed: Timed, device: str, executor: str, image_memory_mib: int = 0) -> Callable[[], object]:
    federation = _federation(timed, device, executor, image_memory_mib=image_memory_mib)
    return partial(federation.run_round, RoundPlan.constant(1))


def equality_table(extent: Extent, device: str) -> tuple[Table, bool]:
    """Compare all cases with the CPU; returns the table, and True if every difference is within `TOLERANCE`."""
    rows, equal = [], True
    for case in extent.compared:
        for executor, (exact, usual) in differences(case, device).items():
            within = exact <= TOLERANCE  # not so for nan
            equal &= within
            rows.append((case.title, executor, f"{exact:.1e}", "equal" if within else "DIFFERS", f"{usual:.1e}"))
    headers = ("case", "executor", "float32", "verdict", "torch's settings")
    title = (
        f"One local step on {device} against the CPU (sequential): largest relative difference, at most {TOLERANCE:g}"
    )
    return Table(headers, tuple(rows), words=("executor", "verdict"), title=title), equal


def speed_table(extent: Extent, device: str, kinds: Sequence[str] = EXECUTORS) -> Table:
    """Time private rounds of all cases by some executors and the plain loop, on the device."""
    rows = []
    for timed in extent.timed:
        plain, _ = speed(partial(_plain_round, timed, device), device, extent.seconds)
        ours = [speed(partial(_our_round, timed, device, kind), device, extent.seconds) for kind in kinds]
        best = max(rate for rate, _ in ours)
        cells = [f"{rate:.2f}" for rate in (plain, *(rate for rate, _ in ours))]
        peaks = ["-" if math.isnan(peak) else f"{peak:,.0f}" for _, peak in ours]
        parameters = f"{build_model(timed.case.model, timed.case.shape, 10).size:,}"
        rows.append((timed.case.title, parameters, *cells, f"{best / plain:.2f}x", " / ".join(peaks)))
    headers = ("case", "parameters", "plain loop", *kinds, "best over plain", "peak MiB of each")
    caption = f"Table 6 is FedGLP-ADP's, DP-FedAvg by Adam: {1 / TABLE_6_SECONDS:.2f} rounds/s on the paper's 3090"
    title = f"Private rounds per second on {device}, steps of {BATCH}"
    return Table(headers, tuple(rows), title=title, caption=caption)


def loading_table(extent: Extent, device: str) -> Table:
    """Time rounds with the images on the device, and on the host, for the largest set that is timed."""
    timed = max(extent.timed, key=lambda one: one.case.clients * one.steps * math.prod(one.case.shape))
    ways = (("on the device", 1 << 20), ("on the host", 1))
    rows = []
    for name, limit in ways:
        rate, peak = speed(partial(_our_round, timed, device, "vectorized", limit), device, extent.seconds)
        rows.append((name, f"{rate:.2f}", "-" if math.isnan(peak) else f"{peak:,.0f}"))
    title = f"Private rounds per second by where the images are (image_memory_mib): {timed.case.title}"
    return Table(("images", "rounds/s", "peak MiB"), tuple(rows), title=title)


MODES = {"compiled": "default", "CUDA graphs": "reduce-overhead"}
"""Modes of `torch.compile`, by what they are called here."""


def compiled_seconds(case: Case, device: str, seconds: float) -> dict[str, tuple[float, float]]:
    """Time the stacked gradient of a step as it is traced, and compiled in each mode.

    Returns:
        By way, the seconds of its first run, which compiles, and of a later one; nan for both where it fails.
    """
    model, work, images = make_work(case, 1, BATCH, device)
    inputs, labels = images.read(work.batches[0][:, 0])
    sample = (work.parameters, inputs, labels)
    program = find_program(model, None, Update(), *sample, {}, apart=True).trace
    ways: dict[str, Callable[..., object]] = {"traced": program}
    for name, mode in MODES.items():
        if name == "compiled" or device.startswith("cuda"):
            ways[name] = torch.compile(program, mode=mode, dynamic=False)
    found = {}
    for name, way in ways.items():
        try:
            found[name] = _first_and_later(partial(way, *sample), device, seconds)
        except Exception as error:  # whatever its compilers raise
            print(f"{case.title}, {name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
            found[name] = (math.nan, math.nan)
    return found


@torch.no_grad()
def _first_and_later(once: Callable[[], object], device: str, seconds: float) -> tuple[float, float]:
    """Time the first call of a function, and the later ones."""
    gpu = find_device(device) if device.startswith("cuda") else None
    began = time.perf_counter()
    once()
    _wait(gpu)
    first = time.perf_counter() - began
    rate, _ = speed(lambda: once, device, seconds)
    return first, 1 / rate


def compile_table(extent: Extent, device: str) -> Table:
    """Time the gradients of a step of all compared cases, traced and compiled."""
    rows = []
    for case in extent.compared:
        times = compiled_seconds(case, device, extent.seconds)
        plain = times["traced"][1]
        for name, (first, later) in list(times.items())[1:]:
            worth = first / (plain - later) if plain > later else math.inf
            speeds = (f"{1000 * plain:.3f}", f"{1000 * later:.3f}", f"{plain / later:.2f}x")
            rows.append((case.title, name, *speeds, f"{first:.1f}", f"{worth:,.0f}"))
    headers = ("case", "way", "traced, ms", "compiled, ms", "gain", "first run, s", "steps to regain it")
    title = f"The stacked gradient of a step of {BATCH} on {device}, as traced and by torch.compile"
    return Table(headers, tuple(rows), words=("way",), title=title)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns 0, 1 where a release differs from the CPU's, 2 where the device is not there."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--small", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile: minutes for each case")
    parser.add_argument(
        "--loading", action="store_true", help="also measure images on the host, as if they did not fit"
    )
    chosen = parser.parse_args(arguments)
    try:
        check_device(chosen.device)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    device, extent = str(find_device(chosen.device)), SMALL if chosen.small else Extent()
    console = Console(width=120)
    table, equal = equality_table(extent, device)
    console.print(table.terminal())
    verdict = "equals the CPU within" if equal else "DIFFERS from the CPU by more than"
    console.print(f"{device} {verdict} the tolerance of {TOLERANCE:g}.")
    kinds = (*EXECUTORS, "compiled") if chosen.compile else EXECUTORS
    console.print(speed_table(extent, device, kinds).terminal())
    if chosen.loading:
        console.print(loading_table(extent, device).terminal())
    if chosen.compile:
        console.print(compile_table(extent, device).terminal())
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
