"""The models by name; to add one for good, write a builder in `fl_core.models.networks` and add a line here."""

from __future__ import annotations

from functools import partial
from typing import Any

from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError
from fl_core.base.placed import Placed
from fl_core.models.entry import Builder, ModelEntry, model_entry_of

GROUP_NORM_SUFFIX = "-groupnorm"


def _network(builder: str, **keywords: Any) -> Builder:
    """Name a builder of `fl_core.models.networks`, with what it takes beside shape and classes."""
    return partial(Placed(f"fl_core.models.networks:{builder}"), **keywords)


_BUILT_IN: dict[str, ModelEntry] = {
    "mlp": ModelEntry(_network("mlp"), "one hidden layer of 32 units", "it has no convolution to normalise"),
    "mlp-small": ModelEntry(
        _network("mlp", hidden=8), "one hidden layer of 8 units", "it has no convolution to normalise"
    ),
    "mlp-wide": ModelEntry(
        _network("mlp", hidden=128), "one hidden layer of 128 units", "it has no convolution to normalise"
    ),
    "cnn2": ModelEntry(_network("cnn2"), "2 convolutions, 2 fully connected layers"),
    "cnn2-wide": ModelEntry(
        _network("cnn2_wide"),
        "McMahan et al.'s for MNIST: 2 convolutions (32, 64), 2 fully connected layers (512); 1.66 M parameters there",
    ),
    "cnn2-strided": ModelEntry(
        _network("cnn2_strided"), "2 convolutions of stride 2 (8, 16 channels), 2 fully connected layers: for long runs"
    ),
    "cnn3": ModelEntry(_network("cnn3"), "3 convolutions (32, 64, 64), 3 fully connected layers"),
    "lenet": ModelEntry(
        _network("lenet"), "LeNet-5: convolutions of 6 and 16 channels, then 120, 84 units; from 28x28 pixels"
    ),
    "cnn8": ModelEntry(_network("cnn8"), "6 convolutions in 3 pooled stages (32, 64, 128), 2 fully connected layers"),
    "feddpa-svhn": ModelEntry(
        _network("dropout_cnn", relus=True),
        "FedDPA's for SVHN: 2 convolutions (32, 64), dropout, 2 fully connected layers (128); 1.63 M parameters there",
    ),
    "feddpa-femnist": ModelEntry(
        _network("dropout_cnn", relus=False),
        "FedDPA's for FEMNIST: as feddpa-svhn with fewer ReLUs; 1.21 M parameters there",
    ),
    "feddpa-cifar10": ModelEntry(
        _network("feddpa_cifar"),
        "FedDPA's for CIFAR-10: 3 convolutions (16, 32, 32), 3 fully connected layers (512, 128); 0.34 M parameters "
        "there",
    ),
    "resnet20": ModelEntry(
        _network("resnet20"),
        "ResNet-20 of He et al. for CIFAR (16, 32, 64), with GroupNorm",
        "it has GroupNorm already",
    ),
    "resnet18": ModelEntry(
        _network("resnet18"),
        "ResNet-18 with a 3x3 stem (64, 128, 256, 512), with GroupNorm",
        "it has GroupNorm already",
    ),
}

MODELS = Catalogue("model", _BUILT_IN, model_entry_of)


def find_model(name: str) -> tuple[ModelEntry, bool]:
    """Look up a model, and whether it is the variant with GroupNorm.

    Raises:
        InputError: the name is unknown, its file cannot be imported, or the model has no such variant.
    """
    base = name.removesuffix(GROUP_NORM_SUFFIX)
    if base == name or name in MODELS.names() or base not in MODELS.names():
        return MODELS.find(name), False
    entry = MODELS.find(base)
    if entry.unfit_for_norm:
        raise InputError(f"Model '{name}' does not exist: use '{base}', because {entry.unfit_for_norm}.")
    return entry, True


def register_model(name: str, model: Any) -> str:
    """Enter a model under a name, for `--model NAME` and `model="NAME"` in this process and those it starts.

    Args:
        name: a word.
        model: an `nn.Module`, whose weights every run then starts from; or a class or function that is called with the
            images' shape (channels, height, width) and the number of classes, or with nothing, and returns a fresh one.

    Returns:
        The name.

    Raises:
        InputError: the name cannot be one or is built in, or it is no model. A network that clients cannot train side
            by side is refused where it is first built.
    """
    return MODELS.register(name, model)
