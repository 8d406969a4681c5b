"""Normalisation of images by public constants: (pixel − mean)/std in every channel.

The constants are published ones, or ones that a user states; nothing here looks at the clients' images, whose mean and
deviation would be releases of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from fl_core.base.bounds import Bounds
from fl_core.base.errors import require
from fl_core.base.values import read_list, read_value

NONE, PUBLISHED = "none", "published"
_MEAN = Bounds(-1e6, 1e6, "pixels lie between 0 and 1")
_STD = Bounds(1e-6, 1e6, "pixels are divided by it")


@dataclass(frozen=True)
class Normalization:
    """Constants of each channel; a single one serves all channels.

    Attributes:
        mean, std: in units in which a white pixel is 1.
        source: where the constants are from.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str

    def __str__(self) -> str:
        means, stds = (",".join(f"{one:g}" for one in values) for values in (self.mean, self.std))
        return f"{means}/{stds}"


MNIST = Normalization((0.1307,), (0.3081,), "PyTorch's example for MNIST; FedDPA's program takes them for FEMNIST")
CIFAR10 = Normalization(
    (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), "kuangliu/pytorch-cifar; FedDPA's program takes them"
)
CIFAR100 = Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "weiaicunzai/pytorch-cifar100")
HALF = Normalization((0.5,), (0.5,), "0..1 becomes -1..1, whatever the images; FedDPA's program does so for SVHN")


def parse_normalization(text: str) -> Normalization | str:
    """Read `none`, `published`, or constants like `0.5/0.5` and `0.49,0.48,0.45/0.2,0.2,0.2`.

    Raises:
        InputError: it is none of these.
    """
    if text in (NONE, PUBLISHED):
        return text
    parts = text.split("/")
    require(
        len(parts) == 2,
        f"input_normalization is '{text}', but it must be {NONE}, {PUBLISHED}, or public constants like 0.5/0.5 "
        "(mean/std).",
    )
    numbers = []
    for part, name, allowed in zip(parts, ("mean", "std"), (_MEAN, _STD), strict=True):
        values = [
            read_value(f"The {name} of input_normalization", one, float)
            for one in read_list("input_normalization", part)
        ]
        require(bool(values), f"input_normalization is '{text}', which has no {name}; write constants like 0.5/0.5.")
        for value in values:
            allowed.check(f"The {name} of input_normalization", value)
        numbers.append(tuple(values))
    return Normalization(numbers[0], numbers[1], "as given")


def find_normalization(text: str, dataset: str, published: Normalization | None, channels: int) -> Normalization | None:
    """Look up the constants that images of a dataset are normalised with; None for none.

    Args:
        text: the setting.
        dataset: name of the dataset.
        published: its published constants, if there are some.
        channels: of its images.

    Raises:
        InputError: as `parse_normalization`; the dataset has no published constants, or another number of channels.
    """
    found = parse_normalization(text)
    if found == NONE:
        return None
    if found == PUBLISHED:
        require(
            published is not None,
            f"input_normalization is '{text}', but dataset '{dataset}' has no published constants; take none, or state "
            "public ones like 0.5/0.5.",
        )
        assert published is not None
        found = published
    assert isinstance(found, Normalization)
    fits = all(len(values) in (1, channels) for values in (found.mean, found.std))
    require(
        fits,
        f"input_normalization is '{text}', but the images of dataset '{dataset}' have {channels} channel(s); state one "
        "constant for all channels, or one for each.",
    )
    return found
