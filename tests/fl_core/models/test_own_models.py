"""A user's module is trained like a network of this package, or refused in one sentence."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_core.base.errors import InputError
from fl_core.models.build import build_model
from fl_core.models.catalog import MODELS
from fl_core.models.entry import Shape
from fl_core.recipes.objective import Phase
from fl_core.training.executors import Executor
from fl_core.training.images import Images
from fl_core.training.information import fisher_information
from fl_core.training.optimizers import Optimizer
from fl_core.training.work import LocalWork
from tests.markdown import restored_catalogues

SHAPE, CLASSES = (1, 6, 6), 4

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with restored_catalogues():
        yield


class Branches(nn.Module):
    """Head first, a buffer, a frozen and a free parameter, in-place activations and a view: no Sequential."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        self.head = nn.Linear(10, classes)
        self.scale = nn.Parameter(torch.ones(1))
        self.convolution = nn.Conv2d(shape[0], 3, 3, padding=1)
        self.inner = nn.Linear(3 * shape[1] * shape[2], 10)
        self.fixed = nn.Linear(10, 10)
        self.fixed.requires_grad_(False)
        self.register_buffer("shift", torch.randn(10))

    def forward(self, images: Tensor) -> Tensor:
        seen = functional.relu_(self.convolution(images)).view(len(images), -1)
        inner = nn.functional.relu(self.inner(seen), inplace=True) + 0.1 * self.shift
        out: Tensor = self.head(self.fixed(inner)) * self.scale
        return out


class Tied(nn.Module):
    """Two names for one weight, and one layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(36, 36, bias=False)
        self.leave = nn.Linear(36, CLASSES)
        self.again = nn.Linear(36, 36, bias=False)
        self.again.weight = self.enter.weight

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.tanh(self.again(torch.tanh(self.enter(images.flatten(1)))))
        out: Tensor = self.leave(torch.tanh(self.enter(inner)))
        return out


class Recurrent(nn.Module):
    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        self.cell = nn.GRUCell(shape[2], 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        state = images.new_zeros(len(images), 8)
        for row in images.flatten(1, 2).unbind(1):
            state = self.cell(row, state)
        out: Tensor = self.head(self.norm(state))
        return out


def shared_activation() -> nn.Sequential:
    relu = nn.ReLU()
    layers = OrderedDict(flat=nn.Flatten(), one=nn.Linear(36, 9), r1=relu, two=nn.Linear(9, 9), r2=relu)
    return nn.Sequential(layers | OrderedDict(three=nn.Linear(9, CLASSES)))


def odd_pooling() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2, stride=1), nn.ReLU(), nn.Flatten(), nn.Linear(200, CLASSES)
    )


OWN: list[Callable[..., nn.Module]] = [Branches, Tied, Recurrent, shared_activation, odd_pooling]


def images_and_labels(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, *SHAPE, generator=generator), torch.randint(CLASSES, (count,), generator=generator)


def work_of(vectors: Tensor, batches: Tensor) -> LocalWork:
    rate = torch.full((len(vectors),), 0.1)
    return LocalWork(vectors, (Phase(),), (batches,), (None,), {}, rate, Optimizer("sgd", 0.0, 0.0))


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
def test_clients_train_a_module_as_a_plain_loop_does(make: Callable[..., nn.Module], kind: str) -> None:
    model = build_model(make, SHAPE, CLASSES)  # type: ignore[arg-type]
    images, labels = images_and_labels(40)
    vectors = torch.stack([model.initial(seed) for seed in (1, 2, 3)])
    batches = torch.randint(40, (3, 2, 8), generator=torch.Generator().manual_seed(1))
    trained, _ = Executor(model, kind).train(work_of(vectors, batches), Images(images, labels, 1.0))
    for row in range(3):
        network = model.make_module()
        frozen = {name: one for name, one in model._module.named_parameters() if not one.requires_grad}
        own = model.unflatten(vectors[row].clone()) | frozen
        network.load_state_dict({**dict(model._module.named_buffers()), **own}, strict=False)
        free = [one for one in network.parameters() if one.requires_grad]
        for batch in batches[row]:
            loss = functional.cross_entropy(network(images[batch]), labels[batch])
            for one, gradient in zip(free, torch.autograd.grad(loss, free), strict=True):
                one.data -= 0.1 * gradient
        for name, value in model.unflatten(trained[row]).items():
            expected = dict(network.named_parameters())[name]
            torch.testing.assert_close(value, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [Branches, Tied], ids=lambda make: make.__name__)
def test_fisher_information_of_a_module_is_the_mean_of_squared_gradients(make: Callable[..., nn.Module]) -> None:
    model = build_model(make, SHAPE, CLASSES)  # type: ignore[arg-type]
    images, labels = images_and_labels(5)
    vector = model.initial(3)
    found = fisher_information(
        model, vector.unsqueeze(0), torch.arange(5).unsqueeze(0), torch.tensor([5]), Images(images, labels, 1.0), 2**28
    )
    total = torch.zeros(model.size)
    for image, label in zip(images, labels, strict=True):
        leaf = vector.clone().requires_grad_()
        loss = functional.cross_entropy(model.logits(leaf, image.unsqueeze(0)), label.unsqueeze(0))
        total += torch.autograd.grad(loss, leaf)[0].square()
    torch.testing.assert_close(found[0], total / 5, rtol=1e-4, atol=1e-7)


def test_layers_are_the_modules_own_and_the_one_that_computes_last_is_the_head() -> None:
    model = build_model(Branches, SHAPE, CLASSES)  # type: ignore[arg-type]
    assert [span.name for span in model.layers] == ["scale", "convolution", "inner", "head"]
    assert (model.head.name, model.head.stop) == ("head", model.size)
    assert model.size == 1 + 3 * 9 + 3 + 108 * 10 + 10 + 10 * CLASSES + CLASSES
    assert [span.name for span in model.convolutions] == ["convolution"]


def test_a_tied_weight_is_one_parameter() -> None:
    assert build_model(Tied, SHAPE, CLASSES).size == 36 * 36 + 36 * CLASSES + CLASSES  # type: ignore[arg-type]


def test_a_class_starts_from_the_seed_and_a_module_from_its_weights() -> None:
    drawn = build_model(Branches, SHAPE, CLASSES)  # type: ignore[arg-type]
    assert torch.equal(drawn.initial(1), drawn.initial(1))
    assert not torch.equal(drawn.initial(1), drawn.initial(2))
    module = Branches(SHAPE, CLASSES)
    given = build_model(module, SHAPE, CLASSES)  # type: ignore[arg-type]
    assert torch.equal(given.initial(1), given.initial(2))
    assert torch.equal(given.initial(1)[:1], module.scale.detach())


def test_constants_are_the_same_wherever_a_module_is_built() -> None:
    images = images_and_labels(3)[0]
    logits = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = build_model(Branches, SHAPE, CLASSES)  # type: ignore[arg-type]
        logits.append(model.logits(model.initial(0), images))
    assert torch.equal(*logits)


def test_a_lazy_module_takes_its_sizes_from_the_images() -> None:
    model = build_model(lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES)), SHAPE, CLASSES)  # type: ignore[arg-type]
    assert model.size == 36 * CLASSES + CLASSES


def test_batch_norm_that_keeps_its_statistics_is_a_fixed_layer() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2).eval(), nn.Flatten(), nn.Linear(32, CLASSES))
    assert build_model(network, SHAPE, CLASSES).size == 20 + 4 + 33 * CLASSES - CLASSES + CLASSES  # type: ignore[arg-type]


def flat(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), *layers)


class Module(nn.Module):
    """A linear layer followed by a function."""

    def __init__(self, after: Callable[[nn.Module, Tensor], object], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.layer = nn.Linear(36, CLASSES, dtype=dtype)
        self.register_buffer("calls", torch.zeros(1))
        self.after = after

    def forward(self, images: Tensor) -> object:
        return self.after(self, self.layer(images.flatten(1).to(self.layer.weight.dtype)))


def counting(module: nn.Module, logits: Tensor) -> Tensor:
    module.calls += 1  # type: ignore[operator]
    return logits


class OverwritesImages(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = super().forward(images.mul_(2))
        return out


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (flat(nn.BatchNorm1d(36), nn.Linear(36, 4)), "has the BatchNorm1d '1', whose statistics mix samples"),
        (flat(nn.Dropout(), nn.Linear(36, 4)), "has the Dropout '1', whose draws no seed of a run repeats"),
        (flat(), "has no parameters to train"),
        (flat(nn.Linear(36, 3)), "gives outputs of shape (3, 3) for 3 images, but 4 classes need (3, 4)"),
        (flat(nn.Linear(35, 4)), "fails on images of shape (3, 1, 6, 6): RuntimeError"),
        (lambda: Module(lambda _, x: x, torch.float64), "parameter 'layer.weight' of torch.float64"),
        (lambda: Module(lambda _, x: (x, x)), "gives a tuple, but it must give one tensor of logits"),
        (lambda: Module(counting), "changes its buffer 'calls' in a forward pass"),
        (lambda: Module(lambda _, x: x + torch.rand(4)), "draws random numbers in a forward pass"),
        (lambda: Module(lambda _, x: x + random.random()), "gives different logits for the same images"),
        (lambda: Module(lambda _, x: x - x.mean(0)), "gives an image other logits beside others than alone"),
        (lambda: Module(lambda _, x: functional.dropout(x * 0, 0.5)), "draws random numbers in a forward pass"),
        (lambda: Module(lambda _, x: x if x.sum() > 0 else -x), "decides by the values of its tensors"),
        (lambda: Module(lambda _, x: x * float(x[0, 0].item() > 9)), "decides by the values of its tensors"),
        (lambda: OverwritesImages(nn.Flatten(), nn.Linear(36, 4)), "changes the images it is given in place"),
        (lambda: torch.jit.trace(nn.Linear(6, 4), torch.zeros(1, 6)), "is TorchScript; give the module it is made of"),
        (lambda: "text", "was built as str, but it must be an nn.Module"),
        (lambda: 1 / 0, "cannot be built for images of 1x6x6: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_sentence(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_model(make, SHAPE, CLASSES)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [object(), int, [nn.Linear(2, 2)], lambda one, two, three: None])
def test_what_is_no_model_is_refused_before_it_is_built(given: object) -> None:
    with pytest.raises(InputError, match="the model that was given"):
        MODELS.name_of(given)


def test_two_classes_of_one_name_do_not_share_a_program() -> None:
    models = []
    for width in (1.0, 2.0):

        class Net(Module):
            def __init__(self, by: float = width) -> None:
                super().__init__(lambda _, x: x * by)

        models.append(build_model(Net, SHAPE, CLASSES))  # type: ignore[arg-type]
    images, labels = images_and_labels(8)
    batches = torch.arange(8).view(1, 1, 8)
    vector = models[0].initial(0).unsqueeze(0)
    trained = [
        Executor(model, "sequential").train(work_of(vector, batches), Images(images, labels, 1.0))[0]
        for model in models
    ]
    assert not np.allclose(*trained)
