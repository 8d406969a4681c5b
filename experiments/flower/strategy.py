"""Strategy for Flower's Message API: a deployed run whose clients are the nodes of a federation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor
from typing_extensions import override

from envs import Setting
from envs.acting import Policy
from envs.charged_round import ChargedRound
from experiments.deployment.deployed_run import DeployedRun
from experiments.flower.checkpoint import load_state, save_state
from experiments.flower.nodes import Nodes
from experiments.flower.records import KNOBS, MODEL, ROUND, UPLOAD, arrays_of, to_arrays, to_knobs
from experiments.flower.terms import terms
from fl_core.base.arguments import checked
from fl_core.base.bounds import Bounds
from fl_core.base.errors import require
from fl_core.base.streams import new_secret
from fl_core.data.datasets import load_dataset
from fl_core.models.build import build_model
from fl_core.models.model import Model
from fl_core.privacy.telemetry import TELEMETRY
from fl_core.run.charging import UPDATE
from fl_core.run.cohort import draw_members
from fl_core.run.config import RunSettings
from fl_core.run.deployable import require_deployable
from fl_core.run.knobs import knob_tensors
from fl_core.run.plan import find_metric
from fl_core.run.server import FederatedServer

CONNECT_SECONDS = Bounds(0, 604_800, "nodes are waited for a week at most")
ROUND_SECONDS = Bounds(0, 604_800, "a round waits a week at most", above=True)
EXACT = "exact mean training losses of the clients, told by every round"


class DPilotStrategy(Strategy):  # type: ignore[misc, unused-ignore]
    """A differentially private run over Flower's nodes, under a controller and a ledger in a folder.

    Every round is charged on disk before it is sent. Nodes are drawn independently (Poisson); one that fails, is late,
    answers twice, or sends what is not finite or of another shape contributes zero, and changes neither noise nor
    charge. The mean divides by the expected cohort. Killed and started again, the run goes on with the next round.

    Attributes:
        run: ledger and controller.
        server: model and state of the method.
        failures: of each round so far, the nodes that were drawn and whose upload did not count. Exact, not to be
            published.
    """

    @checked
    def __init__(
        self,
        folder: Path | str,
        setting: Setting,
        controller: str | Callable[..., Policy],
        model: Model,
        seed: int = 0,
        noise: str = "secret",
        exact_metrics: bool = False,
        connect_seconds: float = 60.0,
    ):
        """Open the run of a folder.

        Args:
            folder: of the run; one that is empty or missing begins it.
            setting: task, knobs and signals; a controller that is named brings those that it needs.
            controller: spec such as `aqc` or `ppo:runs/NAME`, or a function from the run to its controller.
            model: the model that is trained.
            seed: of the initial model; where the noise is seeded, of cohorts and noise too.
            noise: `secret`, or `seeded` for tests that repeat it.
            exact_metrics: True asks clients for exact training losses, which no ε covers; the ledger then says so.
            connect_seconds: how long nodes are waited for.

        Raises:
            InputError: the method cannot be deployed, the folder holds another run, or the controller does not fit.
        """
        CONNECT_SECONDS.check("connect_seconds", connect_seconds)
        setting = setting.replace(noise=noise)
        require_deployable(setting.federation, setting.federation.recipe())  # before a folder is made
        uncovered = (EXACT,) if exact_metrics else ()
        self._seed, self._exact, self._seconds = seed, exact_metrics, connect_seconds
        self._secret = new_secret() if noise == "secret" else b""
        self.run = DeployedRun(folder, setting, controller, model, RunSettings(seed=seed), uncovered)
        with contextlib.ExitStack() as undo:
            undo.callback(self.run.close)
            _require_told(self.run)
            self._config = self.run.task.federation
            self.server = FederatedServer(self._config, model, seed, self._secret)
            if not self.run.rounds:
                save_state(self.run.folder, self.server.state, 0)
            self.server.state = load_state(self.run.folder, self.server.state)
            undo.pop_all()
        released = self.run.charging.release_names([knob.name for knob in self.run.knobs])
        telemetry = [name for name in released if name in TELEMETRY]
        asked = {"terms": terms(self._config), "parameters": model.size, "telemetry": telemetry}
        self._nodes = Nodes(asked, self._config.clients)
        self._now: ChargedRound | None = None
        self._drawn: dict[int, int] = {}
        self.failures: list[int] = []

    # ---------------------------------------------------------------- Flower's interface

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600.0,
        **keywords: Any,
    ) -> Result:
        """Do the rounds that are left; arguments as of Flower's strategies.

        Args:
            grid: of the nodes.
            initial_arrays: none may be given: the run has its own.
            num_rounds: rounds to do at most; None does all that are left.
            timeout: seconds that a round waits for its nodes.
            **keywords: `evaluate_fn`, for public data.

        Raises:
            InputError: fewer nodes connect than the federation has clients, or one has other terms; nothing is charged
                or sent then.
        """
        require(initial_arrays is None, "initial_arrays is given, but the run has a model of its own; leave it out.")
        try:
            ROUND_SECONDS.check("timeout", timeout)
            self._nodes.connect(grid, self._seconds, begun=bool(self.run.rounds))
            left = self._config.rounds - self.run.rounds
            rounds = left if num_rounds is None else min(left, num_rounds)
            return super().start(grid, to_arrays(self.server.broadcast()), rounds, timeout, **keywords)
        finally:
            self.run.close()

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        for refusal in self._nodes.introduce(grid):
            log(WARNING, "DPilot: %s It takes no part.", refusal)
        self._now = self.run.next_round()  # on disk from here on
        if self._now is None:
            return []
        members = self._members(self._now)
        self._drawn = {node: number for node, number in self._nodes.numbers.items() if number in members}
        content = self._content(self._now)
        group = str(self._now.index)
        return [Message(content, node, MessageType.TRAIN, group_id=group) for node in sorted(self._drawn)]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        now = self._now
        if now is None:
            return None, None
        answers: dict[int, Message] = {}
        for reply in replies:
            if reply.metadata.src_node_id in self._drawn and reply.has_content():
                answers.setdefault(reply.metadata.src_node_id, reply)  # a second answer does not count
        uploads = [self._upload(answers.get(node), now) for node, _ in sorted(self._drawn.items(), key=lambda p: p[1])]
        told = [
            {name.removeprefix("telemetry."): value for name, value in one.items() if name != UPDATE} for one in uploads
        ]
        updates = [one.get(UPDATE) for one in uploads]
        figures = self.server.release(now.index, knob_tensors(now.knobs), now.noise, updates, told)
        self._note_failures()
        save_state(self.run.folder, self.server.state, now.index + 1)
        self.run.observe(figures)
        public = {name: value for name, value in figures.items() if find_metric(name).signal_class != "raw"}
        public["epsilon_spent"] = self.run.ledger.epsilon_spent()
        if self._exact:
            public["train_loss"] = _mean_loss(answers.values())
        return to_arrays(self.server.broadcast()), MetricRecord(public)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # exact accuracies of clients would be covered by no ε

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    @override
    def summary(self) -> None:
        ledger = self.run.ledger
        log(
            INFO,
            "DPilot: %s, %s, round %d of %d",
            terms(self._config),
            self.run.controller,
            self.run.rounds + 1,
            self._config.rounds,
        )
        log(INFO, "DPilot: epsilon %g at delta %g, ledger in '%s'", ledger.epsilon, ledger.delta, self.run.folder)

    # ---------------------------------------------------------------- messages

    def _members(self, now: ChargedRound) -> set[int]:
        """Draw the clients of a round independently, from the operating system's randomness if the noise is secret."""
        if not self._secret:
            return set(draw_members(self._config, self._seed, now.index).tolist())
        draws = np.random.default_rng().random(self._config.clients)
        return set(np.flatnonzero(draws < self._config.sampling_rate).tolist())

    def _content(self, now: ChargedRound) -> RecordDict:
        asked = {
            "terms": terms(self._config),
            "index": now.index,
            "seed": self._seed,
            "telemetry": [name for name in now.noise if name != UPDATE],
            "exact_metrics": self._exact,
        }
        return RecordDict(
            {MODEL: to_arrays(self.server.broadcast()), KNOBS: to_knobs(now.knobs), ROUND: ConfigRecord(asked)}
        )

    def _upload(self, reply: Message | None, now: ChargedRound) -> dict[str, Tensor]:
        """Read an upload of this round; nothing where there is none that can be read."""
        if reply is None:
            return {}
        told = reply.content.config_records.get(ROUND)
        if told is None or told.get("index") != now.index:
            return {}
        try:
            return arrays_of(reply.content, UPLOAD)
        except (TypeError, ValueError):  # what a node sent as arrays are none
            return {}

    def _note_failures(self) -> None:
        self.failures.append(self.server.broken)
        if self.server.broken:
            log(WARNING, "DPilot: %d uploads failed and contribute zero.", self.server.broken)


def _require_told(run: DeployedRun) -> None:
    """Refuse a controller that sees figures of clients which nothing covers, and which no round tells."""
    exact = [name for name in run.figures_needed if find_metric(name).signal_class == "raw"]
    require(
        not exact,
        f"controller '{run.controller}' sees {', '.join(exact)}, exact metrics of clients, which rounds of a "
        "federation do not tell; take one that sees public or accounted signals.",
    )


def _mean_loss(answers: Iterable[Message]) -> float:
    losses = [one.content.metric_records["metrics"]["train_loss"] for one in answers if "metrics" in one.content]
    return math.fsum(losses) / len(losses) if losses else 0.0


def model_of(setting: Setting) -> Model:
    """Build the model of a setting, for a server that has the dataset, if only to know its shape."""
    config = setting.federation
    data = load_dataset(config.dataset, config.data_root or None, torch.device("cpu"), config.population)
    return build_model(config.model, data.shape, data.classes)
