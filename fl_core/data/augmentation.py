"""Augmentation of training images on their device: random shifts, mirrorings and rotations, by name.

It acts on the minibatches of a client, within the client, and so changes nothing about the privacy of a client; a
record of a minibatch stays one record. What is tested, and what Fisher information and risks are measured on, are the
images as they are.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fl_core.base.bounds import Bounds, count
from fl_core.base.counters import below, happens, mixed
from fl_core.base.errors import require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.base.values import read_list, read_value

Place = tuple[Tensor, Tensor]
"""Row and column of the pixel that every output pixel comes from, each of a shape that broadcasts to `[..., height,
width]`; floats, as rotations are between pixels."""


@dataclass(frozen=True)
class Transform(ABC):
    """A random change of an image; every image of every minibatch draws its own."""

    kind: ClassVar[str]

    @abstractmethod
    def source(self, place: Place, keys: Tensor, sides: tuple[int, int]) -> Place:
        """Find where the pixels at a place of the changed image lie in the image before.

        Args:
            place: pixels of the changed image.
            keys: random words of the images `[..., 1, 1]`.
            sides: height and width.
        """

    @property
    def margin(self) -> int:
        """Number of pixels that it may move an image by."""
        return 0


@dataclass(frozen=True)
class Crop(Transform):
    """A window of the image's size from the image with a black margin: a shift by up to `padding` pixels."""

    kind: ClassVar[str] = "crop"
    padding: int = 4

    @override
    def source(self, place: Place, keys: Tensor, sides: tuple[int, int]) -> Place:
        row, column = place
        shifts = [below(mixed(keys, axis), 2 * self.padding + 1) - self.padding for axis in range(2)]
        return row + shifts[0], column + shifts[1]

    @property
    @override
    def margin(self) -> int:
        return self.padding


@dataclass(frozen=True)
class Flip(Transform):
    """The image mirrored from left to right, with a probability."""

    kind: ClassVar[str] = "flip"
    probability: float = 0.5

    @override
    def source(self, place: Place, keys: Tensor, sides: tuple[int, int]) -> Place:
        row, column = place
        return row, torch.where(happens(mixed(keys, 0), self.probability), sides[1] - 1 - column, column)


@dataclass(frozen=True)
class Rotate(Transform):
    """The image turned about its centre by up to so many degrees either way, to the nearest pixels."""

    kind: ClassVar[str] = "rotate"
    degrees: float = 20.0

    @override
    def source(self, place: Place, keys: Tensor, sides: tuple[int, int]) -> Place:
        angle = math.radians(self.degrees) * (2 * mixed(keys, 0).to(torch.float32) / 2**32 - 1)
        down, right = ((side - 1) / 2 for side in sides)
        row, column = place[0] - down, place[1] - right
        cosine, sine = angle.cos(), angle.sin()
        return down + cosine * row - sine * column, right + sine * row + cosine * column


_PADDING = count(0, 1000, "it is a number of pixels")
_PROBABILITY = Bounds(0, 1)
_DEGREES = Bounds(0, 180, "beyond, the same angles come again")
TRANSFORMS: dict[str, tuple[Callable[..., Transform], type, Bounds, str]] = {
    "crop": (
        Crop,
        int,
        _PADDING,
        "crop(p): a random window of the image with a black margin of p pixels, 4 if not told",
    ),
    "flip": (Flip, float, _PROBABILITY, "flip(p): mirrored from left to right with probability p, 0.5 if not told"),
    "rotate": (Rotate, float, _DEGREES, "rotate(d): turned by up to d degrees either way, 20 if not told"),
}
"""By name: class, type and range of its parameter, one line for lists."""


def parse_augmentation(text: str) -> tuple[Transform, ...]:
    """Read transforms like `flip,crop(4)`, in the order in which they are applied; "" is none.

    Raises:
        InputError: there is none of a name, or a parameter is out of range.
    """
    found = []
    for entry in read_list("augmentation", text):
        match = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", entry.strip())
        require(match is not None, f"augmentation is '{text}', but it must be written like flip,crop(4).")
        assert match is not None
        name, written = match[1].strip(), match[2]
        require_name("augmentation", name, TRANSFORMS)
        make, kind, allowed, _ = TRANSFORMS[name]
        if written is None:
            found.append(make())
            continue
        value = read_value(f"The parameter of augmentation {name}", written.strip(), kind)
        allowed.check(f"The parameter of augmentation {name}", value)
        found.append(make(value))
    kinds = [one.kind for one in found]
    require(len(set(kinds)) == len(kinds), f"augmentation is '{text}', but a transform may stand there once.")
    return tuple(found)


def check_augmentation(text: str, shape: Sequence[int]) -> tuple[Transform, ...]:
    """Read transforms and refuse those that images of a shape (channels, height, width) cannot go through.

    Raises:
        InputError: as `parse_augmentation`, or a crop is larger than the image.
    """
    found = parse_augmentation(text)
    height, width = shape[1:]
    for one in found:
        require(
            one.margin < min(height, width),
            f"augmentation is '{text}', but {one.kind}({one.margin}) can move images of {height}x{width} pixels out of "
            f"sight; its margin must be below {min(height, width)}.",
        )
    return found


def augment(images: Tensor, keys: Tensor, transforms: Sequence[Transform], black: Tensor) -> Tensor:
    """Change every image by its own draws.

    Args:
        images: `[..., channels, height, width]`.
        keys: random words, int64 `[...]`, one per image.
        transforms: applied in order.
        black: value of a black pixel `[channels]`, which comes in from outside.
    """
    if not transforms:
        return images
    height, width = images.shape[-2:]
    place: Place = (
        torch.arange(height, device=images.device).view(-1, 1),
        torch.arange(width, device=images.device).view(1, -1),
    )
    inside: Tensor | None = None
    for index, transform in reversed(list(enumerate(transforms))):  # an output pixel is traced back to its origin
        row, column = transform.source(place, mixed(keys, index + 1)[..., None, None], (height, width))
        row, column = row.round(), column.round()
        within = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        inside = within if inside is None else inside & within
        place = row, column
    assert inside is not None
    origin = place[0].clamp(0, height - 1).long() * width + place[1].clamp(0, width - 1).long()
    whole = (*images.shape[:-3], 1, height * width)
    chosen = origin.expand(*images.shape[:-3], height, width).reshape(whole).expand(*images.shape[:-2], -1)
    moved = images.flatten(-2).gather(-1, chosen).view(images.shape)
    seen = inside.expand(*images.shape[:-3], height, width).unsqueeze(-3)
    return torch.where(seen, moved, black.view(-1, 1, 1))
