"""`python -m experiments.benchmarks.flower_clipping FOLDER`: Flower's adaptive clipping and `aqc`, from wrong starts.

Both train the same clients on the same data, with the same local training and the same noise multipliers of update and
bit, from a clip norm ten times too high and ten times too low, with five seeds each. Flower's side is its own class as
installed, `DifferentialPrivacyServerSideAdaptiveClipping`, given the unclipped models of all clients. A CSV and a
figure are written.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from envs import ControlLoop, Setting
from envs.charged_round import ChargedRound
from experiments.reports.drawing import COLOURS, GREY, STYLE, WIDTH
from fl_core.base.files import write_bytes, write_text
from fl_core.models.model import Model
from fl_core.privacy.telemetry import CLIP_BIT
from fl_core.run.client import FederatedClient, Upload
from fl_core.run.config import RunSettings
from fl_core.run.knobs import knob_tensors
from fl_core.run.plan import CLIP_RANGE
from fl_core.run.server import FederatedServer
from policies import AdaptiveQuantileClip

SETTING = Setting.of(
    clients=20,
    rounds=60,
    local_steps=2,
    epsilon=16.0,
    delta=1e-3,
    telemetry="clip-bit",
    telemetry_share=0.1,
    signals="accounted",
    executor="sequential",
).holding([1e-3, 1e3])
SEEDS = range(5)
FACTORS = (10.0, 0.1)
"""Clip norms of the first round, in medians of the first updates."""
OURS, FLOWERS = "aqc", f"flwr {metadata.version('flwr')}"
COMMAND = "python -m experiments.benchmarks.flower_clipping experiments/results/flower"


@dataclass(frozen=True)
class Row:
    """A round of one rule.

    Attributes:
        rule: which.
        seed: of clients, model, minibatches and noise.
        factor: first clip norm, in medians of the first updates.
        round: from 0.
        clip_norm: that the round was done with.
        median_norm: exact median norm of the updates of the round, of simulated clients.
        accuracy: of the model before the round, on the pooled test set.
    """

    rule: str
    seed: int
    factor: float
    round: int
    clip_norm: float
    median_norm: float
    accuracy: float


class Clients:
    """All clients of the federation, with data and local training of their own."""

    def __init__(self, seed: int):
        """Load their data."""
        self.seed, config = seed, SETTING.federation
        self._all = [FederatedClient(config, seed, number) for number in range(config.clients)]
        self.model: Model = self._all[0].model

    def train(self, index: int, vector: Tensor, clip_norm: float, telemetry: tuple[str, ...] = ()) -> list[Upload]:
        """Train all of them from a model `[size]` for a round."""
        knobs = knob_tensors({"clip_norm": clip_norm, "server_learning_rate": 1.0})
        return [one.train(index, {"server": vector}, knobs, {}, telemetry) for one in self._all]

    def unclipped(self, index: int, vector: Tensor) -> list[Tensor]:
        """Compute the updates of all of them, which no clip has shortened."""
        return [one.update for one in self.train(index, vector, CLIP_RANGE[1])]

    def row(self, rule: str, factor: float, index: int, clip_norm: float, vector: Tensor) -> Row:
        """Describe a round from a model, before it is done."""
        norms = [float(one.norm()) for one in self.unclipped(index, vector)]
        accuracy = float(self._all[0].evaluation.pooled(vector[None])["global_accuracy"])
        return Row(rule, self.seed, factor, index, clip_norm, float(np.median(norms)), accuracy)


def main() -> None:
    """Run both rules from both clip norms, and write `adaptive-clipping.csv` and `.png` into a folder."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    folder = Path(sys.argv[1])
    table = pd.DataFrame([asdict(one) for one in measured()])
    write_text(folder / "adaptive-clipping.csv", f"# {COMMAND}\n{table.to_csv(index=False, float_format='%.6g')}")
    write_bytes(folder / "adaptive-clipping.png", png(table))


def measured() -> Iterator[Row]:
    """Measure all rounds of both rules."""
    for seed in SEEDS:
        clients = Clients(seed)
        first = np.median([float(one.norm()) for one in clients.unclipped(0, clients.model.initial(seed))])
        for factor in FACTORS:
            start = float(factor * first)
            yield from ours(clients, factor, start)
            yield from flowers(clients, factor, start)


def loop_of(clients: Clients, start: float) -> ControlLoop:
    """Make the control loop of `aqc` from a clip norm."""
    controller = partial(AdaptiveQuantileClip.for_env, start=start)
    return ControlLoop(SETTING, controller, clients.model, RunSettings(seed=clients.seed))


def ours(clients: Clients, factor: float, start: float) -> Iterator[Row]:
    """Run `aqc` by the control loop, with a ledger and this project's server."""
    loop, server = loop_of(clients, start), FederatedServer(SETTING.federation, clients.model, clients.seed, b"")
    while (now := loop.next_round()) is not None:
        vector = server.state.server[0].clone()
        yield clients.row(OURS, factor, now.index, now.clip_norm, vector)
        uploads = clients.train(now.index, vector, now.clip_norm, (CLIP_BIT,))
        updates, told = [one.update for one in uploads], [one.telemetry for one in uploads]
        loop.observe(server.release(now.index, knob_tensors(now.knobs), now.noise, updates, told))


def flowers(clients: Clients, factor: float, start: float) -> Iterator[Row]:
    """Run Flower's strategy with the noise multipliers that the ledger of `aqc` pays for."""
    charged = loop_of(clients, start).next_round()
    assert charged is not None
    rule = flowers_rule(charged, start)
    np.random.seed(clients.seed)  # noqa: NPY002  (Flower draws from NumPy's global generator)
    vector = clients.model.initial(clients.seed)
    for index in range(SETTING.federation.rounds):
        yield clients.row(FLOWERS, factor, index, rule.clipping_norm, vector)
        rule.configure_train(index + 1, _arrays(vector), ConfigRecord(), None)
        replies = [_Reply(vector + update) for update in clients.unclipped(index, vector)]
        told, _ = rule.aggregate_train(index + 1, replies)
        vector = torch.from_numpy(told["model"].numpy().copy())


def flowers_rule(charged: ChargedRound, start: float) -> DifferentialPrivacyServerSideAdaptiveClipping:
    """Make Flower's strategy with the noise of a charged round; its multiplier is that of update and bit jointly."""
    bit = charged.noise[CLIP_BIT]
    joint = (charged.noise_multiplier**-2 + bit**-2) ** -0.5
    count = SETTING.federation.clients
    return DifferentialPrivacyServerSideAdaptiveClipping(
        _Listening(), joint, count, initial_clipping_norm=start, clipped_count_stddev=bit / 2
    )


class _Listening(FedAvg):  # type: ignore[misc, unused-ignore]
    """Averages what it is given; no node is asked, as the clients are in this process."""

    def configure_train(self, *arguments: Any) -> list[Any]:
        return []


class _Reply:
    """A client's answer as far as strategies read it; a message can only be made in a process that Flower started."""

    def __init__(self, vector: Tensor):
        self.content = RecordDict({"arrays": _arrays(vector), "metrics": MetricRecord({"num-examples": 1})})

    def has_error(self) -> bool:
        return False


def _arrays(vector: Tensor) -> ArrayRecord:
    return ArrayRecord({"model": Array(vector.numpy())})


# ---------------------------------------------------------------- the figure


def png(table: pd.DataFrame) -> bytes:
    """Draw clip norms with the updates' median norm, and accuracies, over the rounds: medians and ranges of seeds."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 7.2), layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        _curves(upper, table, "clip_norm", 1.0)
        right = table[table["rule"] == OURS].groupby("round")["median_norm"].median()
        upper.plot(right.index, right, color=GREY, linestyle=":", label="median norm of the updates under aqc (exact)")
        upper.set_yscale("log")
        upper.set(
            title=f"Clip norm of each round, median and range of {table['seed'].nunique()} seeds",
            ylabel="clip norm C (log scale)",
        )
        _curves(lower, table, "accuracy", 100.0)
        lower.set(title="Accuracy of the global model", xlabel="round", ylabel="test accuracy (%)")
        handles, labels = upper.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1)
        content = io.BytesIO()
        figure.savefig(content, dpi=150, format="png", metadata={"Software": None})
    return content.getvalue()


def _curves(ax: Axes, table: pd.DataFrame, name: str, unit: float) -> None:
    """Draw a column of the table for every rule and first clip norm."""
    words = {10.0: "10 times too high", 0.1: "10 times too low"}
    for colour, rule in zip(COLOURS, (OURS, FLOWERS), strict=False):
        for dash, factor in zip(("-", "--"), FACTORS, strict=True):
            one = table[(table["rule"] == rule) & (table["factor"] == factor)]
            seeds = unit * one.pivot(index="round", columns="seed", values=name)
            ax.fill_between(seeds.index, seeds.min(axis=1), seeds.max(axis=1), color=colour, alpha=0.2, linewidth=0)
            ax.plot(seeds.index, seeds.median(axis=1), dash, color=colour, label=f"{rule}, from {words[factor]}")


if __name__ == "__main__":
    main()
