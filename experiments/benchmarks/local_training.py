"""Local training: our executors against the plain eager loop, on one core, interleaved in one run.

The plain loop is what most code does: a module and a `torch.optim` optimizer for each client, one after the other.
Run it as `python -m experiments.benchmarks`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fl_core.models.build import build_model
from fl_core.models.entry import Shape
from fl_core.models.layers import Dense
from fl_core.models.model import Model
from fl_core.recipes.objective import Phase
from fl_core.training.executors import Executor
from fl_core.training.images import Images
from fl_core.training.optimizers import Optimizer
from fl_core.training.work import LocalWork

REPEATS = 7
STEPS = 5
BATCH = 16
LEARNING_RATE = 0.1
EXECUTORS = ("vectorized", "sequential")


@dataclass(frozen=True)
class Case:
    """A model on images of a shape, trained by some clients."""

    title: str
    model: str
    shape: Shape
    clients: int


CASES = (
    Case("small CNN, 8x8 digits", "cnn2", (1, 8, 8), 20),
    Case("MLP, 8x8 digits", "mlp", (1, 8, 8), 50),
    Case("CNN, 28x28", "cnn2", (1, 28, 28), 10),
    Case("LeNet, 28x28", "lenet", (1, 28, 28), 10),
    Case("CNN, 3x32x32", "cnn3", (3, 32, 32), 10),
)


def make_work(
    case: Case, steps: int = STEPS, batch: int = BATCH, device: str = "cpu"
) -> tuple[Model, LocalWork, Images]:
    """Make random images and labels, and the clients' work on them, on a device."""
    generator = torch.Generator().manual_seed(0)
    model = build_model(case.model, case.shape, 10)
    count = case.clients * steps * batch
    pixels = torch.randint(0, 256, (count, *case.shape), dtype=torch.uint8, generator=generator)
    images = Images(pixels.to(device), torch.randint(0, 10, (count,), generator=generator).to(device), 255)
    start = model.initial(0).to(device).expand(case.clients, -1).clone()
    work = LocalWork(
        parameters=start,
        phases=(Phase(),),
        batches=(torch.randperm(count, generator=generator).view(case.clients, steps, batch).to(device),),
        active=(None,),
        context={"start": start},
        learning_rate=torch.full((case.clients,), LEARNING_RATE, device=device),
        optimizer=Optimizer(),
    )
    return model, work, images


def conventional(model: Model) -> nn.Sequential:
    """The same function of PyTorch's own layers, in the usual order: ReLU before pooling."""
    layers: list[nn.Module] = []
    for layer in model.make_module().children():
        layers.append(nn.Linear(*layer.weight.shape) if isinstance(layer, Dense) else layer)
        if isinstance(layer, nn.ReLU) and len(layers) > 1 and isinstance(layers[-2], nn.MaxPool2d):
            layers[-2:] = reversed(layers[-2:])
    return nn.Sequential(*layers)


def plain_loop(
    module: nn.Module,
    work: LocalWork,
    images: Images,
    optimizer_of: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> Tensor:
    """Train with one module and an optimizer per client; returns the parameters `[clients, size]`."""
    trained = []
    for start, batches in zip(work.parameters, work.batches[0], strict=True):
        nn.utils.vector_to_parameters(start.clone(), module.parameters())
        optimizer = optimizer_of(module.parameters(), lr=LEARNING_RATE)
        for batch in batches:
            inputs, labels = images.read(batch)
            loss = nn.functional.cross_entropy(module(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained.append(nn.utils.parameters_to_vector(module.parameters()).detach())
    return torch.stack(trained)


def measure(case: Case, kinds: Sequence[str] = EXECUTORS) -> dict[str, float]:
    """Time each way to do the work, in processor seconds: the fastest of interleaved repeats after one more."""
    model, work, images = make_work(case)
    ways: dict[str, Callable[[], object]] = {"plain": partial(plain_loop, conventional(model), work, images)}
    for kind in kinds:
        ways[kind] = partial(Executor(model, kind).train, work, images)
    expected = plain_loop(model.make_module(), work, images)
    for kind in kinds:
        found = Executor(model, kind).train(work, images)[0]
        error = float((found - expected).norm() / expected.norm())
        if not error < 1e-4:
            raise AssertionError(f"{kind} differs from the plain loop by {error:.1e} on {case.title}")
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, way in ways.items():
            began = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - began)
    return best
