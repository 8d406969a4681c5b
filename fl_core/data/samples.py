"""The samples that loaders return, their checks, and the one-sentence error for a damaged file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fl_core.base.errors import InputError, require


@dataclass(frozen=True, eq=False)
class Samples:
    """The training and the pooled test samples of a dataset, on the CPU.

    Images are uint8 [n, channels, height, width], labels int64 [n] in 0..classes-1; `train_groups` and `test_groups`
    (int64 [n]) number the natural client, the writer, of each sample.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    train_groups: Tensor | None = None
    test_groups: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = [tuple(images.shape[1:]) for images in (self.train_images, self.test_images)]
        same = shapes[0] == shapes[1]
        require(same, f"The test images have the shape {shapes[1]}, but those for training {shapes[0]}.")


class NotObtained(Exception):
    """A dataset's files are absent and could not be fetched; the message is the reason, without a full stop."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened for quoting inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:")[:160] if lines else type(error).__name__


def unusable(path: Path, reason: str) -> InputError:
    """Build the error for a file or folder that exists but is damaged or unreadable."""
    return InputError(f"The file '{path}' cannot be used ({reason}); put a whole one in its place.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file into one sentence that names the file.

    Parsers of third parties answer a damaged file with anything from AssertionError to zlib.error, so the net is wide.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise unusable(path, error.strerror or first_line(error)) from error
    except Exception as error:
        raise unusable(path, first_line(error)) from error


def checked(images: Tensor, labels: Tensor, classes: int, path: Path) -> tuple[Tensor, Tensor]:
    """Return images (contiguous) and labels after checking that they are what `Samples` promises.

    Raises:
        InputError: naming `path`, if they are empty, differ in length, or a label is out of range.
    """
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or images.ndim != 4 or 0 in shape:
        raise unusable(path, f"its images are {images.dtype} of shape {shape}")
    if labels.shape != images.shape[:1]:
        raise unusable(path, f"there are {len(images)} images but {labels.numel()} labels")
    if labels.dtype != torch.int64 or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise unusable(path, f"its labels are {int(labels.min())}..{int(labels.max())}, not 0..{classes - 1}")
    return images.contiguous(), labels


def stratified_split(images: np.ndarray, labels: np.ndarray) -> Samples:
    """Split a dataset that comes without a test set: a fixed 20 % of every class is for testing.

    Args:
        images: uint8 [n, height, width].
        labels: integer [n].
    """
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    pixels = torch.from_numpy(np.ascontiguousarray(images)).unsqueeze(1)
    classes = torch.from_numpy(labels.astype(np.int64))
    return Samples(pixels[train], classes[train], pixels[test], classes[test])
