"""A slow reference of the recipes, one client after the other, and helpers to look into a federation.

Written from the papers with `nn.Module`, `torch.optim` and NumPy in float64. It shares with the code under test the
named streams, the partition and the order of a client's minibatches, each of which has tests of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fl_core.base.counters import stream_words
from fl_core.base.streams import normal_draws, numpy_generator
from fl_core.data.clients import client_index
from fl_core.data.datasets import load_dataset
from fl_core.recipes.catalog import find_method
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import METRICS, RoundPlan
from fl_core.training.work import LocalWork

METHODS = ("fedavg", "dp-fedavg", "dp-fedavg-fb", "fedper", "local-only", "frozen-extractor")
RELEASING = METHODS[:4]
PRIVATE = METHODS[1:4]
HEAD = 32 * 10 + 10
"""Parameters of the small mlp's last layer: 32 hidden units, 10 classes, biases."""
BODY = 64 * 32 + 32
HEAD_WORK = 3
"""DP-pFedDSU tunes heads for 15 epochs where extractors train for 5."""


def config(method: str = "dp-fedavg", **changes: Any) -> FederationConfig:
    """Eight clients of very different sizes on the digits, a small mlp, three rounds."""
    recipe = find_method(method)
    base = FederationConfig(
        method=method,
        epsilon=math.inf if recipe.exchanges and not recipe.private else 7.5,
        clients=8,
        rounds=3,
        partition="dirichlet(0.3)",
        local_steps=3,
        batch_size=8,
        learning_rate=0.2,
        executor="vectorized",
    )
    return replace(base, **changes)


def plan(runs: int = 1, clip: float = 0.7, rate: float = 1.0, shares: np.ndarray | None = None) -> RoundPlan:
    """A plan that is the same for every run but for the budget shares."""
    return replace(RoundPlan.constant(runs, clip, rate), budget_share=shares)


def release_of(federation: Federation) -> torch.Tensor:
    """The sum that the last round released `[runs, size]`."""
    return federation.state_dict()["tensors"]["last_release"]


def choose_cohorts(patch: pytest.MonkeyPatch, *cohorts: list[int]) -> None:
    """Let run i of a batch meet the cohort i in every round; a single cohort serves all of them."""
    drawn = iter(range(10**9))

    def members(config: FederationConfig, seed: int, round_index: int) -> np.ndarray:
        return np.array(cohorts[next(drawn) % len(cohorts)], dtype=np.int64)

    patch.setattr("fl_core.run.cohort.draw_members", members)


class StubTraining:
    """Local training that returns `start + change`, row by row, and remembers what it was asked to do."""

    def __init__(self, federation: Federation, change: float = 0.0):
        self.calls: list[LocalWork] = []
        self.change = change
        federation.executor.train = self  # type: ignore[method-assign, assignment]

    @property
    def rows(self) -> int:
        """Clients trained so far."""
        return sum(len(work.parameters) for work in self.calls)

    def __call__(self, work: LocalWork, images: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append(work)
        return work.parameters + self.change, torch.ones(len(work.parameters))


def snapshot(federation: Federation) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and plain state, detached from the federation."""
    state = federation.state_dict()
    return state["tensors"], state["plain"]


def same_state(first: tuple[dict[str, torch.Tensor], Any], second: tuple[dict[str, torch.Tensor], Any]) -> bool:
    """Return True if two snapshots are equal bit for bit."""
    return first[1] == second[1] and all(torch.equal(value, second[0][name]) for name, value in first[0].items())


def public_figures() -> list[str]:
    """Names of the figures declared public."""
    return [name for name, figure in METRICS.items() if figure.signal_class == "public"]


def positions_of(
    seed: int, stream: str, round_index: int, client: int, count: int, steps: int, batch: int
) -> torch.Tensor:
    """Walk of one client through its samples `[steps, batch]`, pass by pass, each in the order of its words."""
    word = hashed(hashed(stream_words(seed, stream, "minibatches", round_index)) ^ client)
    walk: list[int] = []
    while len(walk) < steps * batch:
        words = [hashed(hashed(word) ^ column) for column in range(len(walk), len(walk) + count)]
        walk += sorted(range(count), key=words.__getitem__)
    return torch.tensor(walk[: steps * batch]).view(steps, batch)


def mask_draws(seed: int, round_index: int, purpose: str, client: int, size: int) -> torch.Tensor:
    """Uniform numbers `[size]` in [0, 1) of a random mask, a word for each coordinate."""
    word = hashed(hashed(stream_words(seed, "mask", purpose, round_index)) ^ client)
    return torch.tensor([(hashed(hashed(word) ^ place) >> 8) / 2**24 for place in range(size)])


def hashed(word: int) -> int:
    """The finalizer of SplitMix32, on whole numbers of any length."""
    word = (word + 0x9E3779B9) % 2**32
    word = ((word ^ word >> 16) * 0x21F0AAAD) % 2**32
    word = ((word ^ word >> 15) * 0x735A2D97) % 2**32
    return word ^ word >> 15


class PlainRun:
    """One run by the plain loop: `server` and `local` (each client's own part) are float64 vectors."""

    def __init__(self, config: FederationConfig, seed: int, initial: torch.Tensor):
        self.config, self.seed, self.round = config, seed, 0
        self.data = load_dataset("digits")
        self.index = client_index(
            self.data.train_labels, config.clients, config.partition, seed, test_fraction=config.test_fraction
        )
        self.server = initial.double().numpy().copy()
        part = {"fedper": slice(BODY, None), "local-only": slice(None), "frozen-extractor": slice(None)}
        self.own = part.get(config.method)
        self.local = {i: self.server[self.own].copy() for i in range(config.clients)} if self.own else {}

    def model_of(self, client: int) -> np.ndarray:
        """Compose the model that a client starts a round from."""
        model = self.server.copy()
        if self.own:
            model[self.own] = self.local[client]
        return model

    def cohort(self) -> list[int]:
        """McMahan et al. 2018: each client by its own coin; or m of them without replacement."""
        random = numpy_generator(self.seed, "cohort", self.round)
        if self.config.sampling == "poisson":
            return [i for i in range(self.config.clients) if random.random() < self.config.sampling_rate]
        chosen = random.choice(8, round(self.config.sampling_rate * 8), replace=False, shuffle=False)
        return sorted(chosen.tolist())

    def train(
        self, model: np.ndarray, client: int, stream: str, head_only: bool, work: int = 1
    ) -> tuple[np.ndarray, float]:
        """SGD or Adam of one client, with a module, for a multiple of the configured work."""
        config, counts = self.config, self.index.train.count
        own = config.local_steps * work
        if config.local_epochs:
            own = math.ceil(config.local_epochs * work * int(counts[client]) / config.batch_size)
        positions = positions_of(self.seed, stream, self.round, client, int(counts[client]), own, config.batch_size)
        network = module(model)
        trained = network[3].parameters() if head_only else network.parameters()
        if config.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(trained, config.learning_rate)
        else:
            optimizer = torch.optim.SGD(trained, config.learning_rate, config.momentum)
        losses = []
        for batch in self.index.train.of(client)[positions]:
            loss = nn.functional.cross_entropy(
                network(self.data.train_images[batch].float() / 16), self.data.train_labels[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return parameters_to_vector(network.parameters()).detach().double().numpy(), float(np.mean(losses))

    def step(self, clip: float, rate: float, sigma: float) -> dict[str, float]:
        """One round; returns what a few figures should say."""
        config, method = self.config, self.config.method
        cohort, total, losses, norms = self.cohort(), np.zeros_like(self.server), [], []
        uploaded = slice(0, BODY) if method == "fedper" else slice(None)
        for client in cohort:
            start = self.model_of(client)
            trained, loss = self.train(start, client, "minibatch", head_only=method == "frozen-extractor")
            update = (trained - start)[uploaded]
            norm = float(np.linalg.norm(update))
            factor = 1.0 if method == "fedavg" else min(1.0, clip / norm)
            total[uploaded] += factor * update
            if self.own:
                self.local[client] = trained[self.own].copy()
            losses.append(loss)
            norms.append(norm)
        if method in RELEASING:
            std = clip * sigma * (math.sqrt(max(1, len(cohort))) if config.placement == "local" else 1.0)
            if std > 0:
                draws = normal_draws((len(self.server),), self.seed, "noise", self.round)
                total[uploaded] += std * draws.double().numpy()[uploaded]
            expected = config.sampling_rate * config.clients  # 8 clients at the rates used here: a whole number
            self.server += rate * total / expected
        self.round += 1
        clipped = float(np.mean([norm > clip for norm in norms])) if norms else 0.0
        return {
            "train_loss": float(np.mean(losses)) if losses else 0.0,
            "participants": len(cohort),
            "update_norm": float(np.mean(norms)) if norms else 0.0,
            "clipped_share": clipped,
        }

    def test(self) -> dict[str, float]:
        """Accuracy of the server's model on the pooled test set, and of each client's own model on its hold-out."""
        hits = self._hits(self.server, self.data.test_images, self.data.test_labels)
        personal = []
        for client in range(self.config.clients):
            model = self.model_of(client)
            if self.config.method == "dp-fedavg-fb":
                model, _ = self.train(model, client, "evaluation", head_only=True, work=HEAD_WORK)
            rows = self.index.test.of(client)
            personal.append(self._hits(model, self.data.train_images[rows], self.data.train_labels[rows]).mean())
        return {
            "global_accuracy": float(hits.mean()),
            "personal_accuracy": float(np.mean(personal)),
            "personal_accuracy_spread": float(np.std(personal)),
        }

    @staticmethod
    def _hits(model: np.ndarray, images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return (module(model)(images.float() / 16).argmax(-1) == labels).double().numpy()


class Affine(nn.Module):
    """x W + b with W [inputs, outputs]: the layout of the parameter vector."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight.T, self.bias)


def module(vector: np.ndarray) -> nn.Sequential:
    """The small mlp (64-32-10, ReLU) with these parameters."""
    network = nn.Sequential(nn.Flatten(), Affine(64, 32), nn.ReLU(), Affine(32, 10))
    vector_to_parameters(torch.from_numpy(vector).float(), network.parameters())
    return network
