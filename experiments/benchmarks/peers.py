"""Whole private rounds against pfl-research (extra `bench`), and what bounds ours; interleaved in one process.

Both train 10 of 20 clients, 4 steps of 16 random images, clip at 1, add noise and move the model by the mean; neither
tests. pfl counts no privacy in a round, ours charges its ledger.
"""

from __future__ import annotations

import io
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from experiments.benchmarks.local_training import CASES, Case, conventional
from fl_core.models.build import build_model
from fl_core.models.entry import Shape
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

CLIENTS, COHORT, STEPS, BATCH = 20, 10, 4, 16
ROUNDS = 15
WARM_UP = 4
LEARNING_RATE = 0.05
_ATEN = torch.ops.aten
PRODUCTS = frozenset({_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.baddbmm, _ATEN.convolution, _ATEN.convolution_backward})
"""Operations that are matrix products or convolutions."""
SIDE = 1024
"""Rows and columns of the matrices whose product tells the peak."""
COMPARED = tuple(case for case in CASES if "CNN" in case.title)


@dataclass(frozen=True)
class RoundCost:
    """Cost of a round of ours, and of pfl's.

    Attributes:
        seconds: processor seconds of a round, median.
        products: seconds of it in matrix products and convolutions.
        peak_share: floating-point operations of the plain networks in a second of the round, over those of a product of
            two large matrices in the same process.
        over_peer: how many times as fast as pfl's, median over pairs of neighbouring rounds; None if not installed.
    """

    seconds: float
    products: float
    peak_share: float
    over_peer: float | None = None


def peer_cost(case: Case, rounds: int = ROUNDS, executor: str = "auto") -> RoundCost:
    """Measure rounds of a case, each after one of pfl's where it is installed."""
    federation = Federation(replace(_config(case), executor=executor))
    once = partial(federation.run_round, RoundPlan.constant(1))
    for _ in range(WARM_UP):
        once()
    if find_spec("pfl") is None:
        return bounds(once, [seconds_of(once) for _ in range(rounds)], _operations(case))
    pairs = _pairs(case, once, rounds)
    cost = bounds(once, [own for _, own in pairs], _operations(case))
    return replace(cost, over_peer=statistics.median(theirs / own for theirs, own in pairs))


def bounds(once: Callable[[], object], seconds: list[float], operations: float) -> RoundCost:
    """Measure what bounds a round of so many floating-point operations that takes so long."""
    with _ProductTimer() as timer:  # type: ignore[no-untyped-call]
        once()
    median = statistics.median(seconds)
    return RoundCost(median, timer.seconds, operations / median / _peak())


class _ProductTimer(TorchDispatchMode):
    """Adds up the processor seconds of matrix products and convolutions."""

    seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.process_time()
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in PRODUCTS:
            self.seconds += time.process_time() - began
        return result


def step_operations(model: str, shape: Shape, batch: int) -> float:
    """Count the floating-point operations of the products and convolutions of a minibatch's gradient, done plainly."""
    network = conventional(build_model(model, shape, 10))
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(network(torch.rand(batch, *shape)), torch.zeros(batch).long()).backward()
    return float(counter.get_total_flops())


def _operations(case: Case) -> float:
    """Count the operations of a round's gradients."""
    return COHORT * STEPS * step_operations(case.model, case.shape, BATCH)


def _peak() -> float:
    """Measure the floating-point operations per second of a product of two large matrices."""
    one = torch.rand(SIDE, SIDE)
    return 2 * SIDE**3 / min(seconds_of(partial(torch.mm, one, one)) for _ in range(7))


def seconds_of(once: Callable[[], object]) -> float:
    """Time a call in processor seconds."""
    began = time.process_time()
    once()
    return time.process_time() - began


def _images(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw images (uint8) and labels enough for every client to train on `STEPS` minibatches, and be tested."""
    random = torch.Generator().manual_seed(0)
    count = CLIENTS * STEPS * BATCH * 5 // 4
    pixels = torch.randint(0, 256, (count, *case.shape), dtype=torch.uint8, generator=random)
    return pixels, torch.arange(count) % 10


def _config(case: Case) -> FederationConfig:
    images, labels = _images(case)
    data = {"images": images.numpy(), "labels": labels.numpy()}
    return FederationConfig(
        dataset=data,  # type: ignore[arg-type]
        model=case.model,
        clients=CLIENTS,
        partition="iid",
        sampling="fixed",
        sampling_rate=COHORT / CLIENTS,
        local_steps=STEPS,
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        rounds=10_000,
        delta=1e-3,
    )


# ---------------------------------------------------------------- pfl


class _Judged(nn.Module):
    """A network with the loss and the metrics that pfl asks for."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        return {}


def _pairs(case: Case, ours: Callable[[], object], rounds: int) -> list[tuple[float, float]]:
    """Run rounds of pfl, and one of ours after each; returns the seconds of both, after some rounds that warm up."""
    # pfl takes a process of any other name for one that loads data, and gives it nothing to run rounds with.
    multiprocessing.current_process().name = "MainProcess"
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    pairs: list[tuple[float, float]] = []

    class Between(TrainingProcessCallback):  # type: ignore[misc]
        began = time.process_time()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            theirs = time.process_time() - self.began
            pairs.append((theirs, seconds_of(ours)))
            self.began = time.process_time()
            return False, Metrics()

    module = _Judged(conventional(build_model(case.model, case.shape, 10)))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    backend = SimulatedBackend(_pfl_clients(case), None, [mechanism])
    hyperparameters = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=None, local_learning_rate=LEARNING_RATE, local_num_steps=STEPS
    )
    rounds_of = NNAlgorithmParams(WARM_UP + rounds, 10**9, COHORT, 0)
    with redirect_stdout(io.StringIO()):  # it prints its metrics in every round
        FederatedAveraging().run(rounds_of, backend, model, hyperparameters, None, [Between()])
    return pairs[WARM_UP:]


def _pfl_clients(case: Case) -> Any:
    """Deal the images out to clients as floats on the device, as pfl reads them."""
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler

    images, labels = _images(case)
    count, floats = STEPS * BATCH, images.float() / 255
    parts = [slice(count * client, count * (client + 1)) for client in range(CLIENTS)]
    clients = [PyTorchTensorDataset((floats[part], labels[part])) for part in parts]
    return FederatedDataset(clients.__getitem__, MinimizeReuseUserSampler(list(range(CLIENTS))))
