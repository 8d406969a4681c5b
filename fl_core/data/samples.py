"""The samples that loaders return, their checks, and the one-sentence error for a damaged file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fl_core.base.errors import InputError, first_line, require
from fl_core.base.libraries import Tensor, torch
from fl_core.base.libraries import numpy as np
from fl_core.data.normalization import Normalization


@dataclass(frozen=True, eq=False)
class Samples:
    """The training and the pooled test samples of a dataset, on the CPU.

    Images are uint8 or float32 [n, channels, height, width], labels int64 [n] in 0..classes-1; `train_groups` and
    `test_groups` (int64 [n]) number the natural client, the writer, of each sample.
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


def _at_hand(root: Path) -> bool:
    return True


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset of the catalogue: its loader and what lists and messages say of it."""

    load: Callable[[Path, int], Samples]
    """Reads the samples from (root, classes); raises InputError or NotObtained."""
    present: Callable[[Path], bool]
    """Returns True where a root holds the dataset, so that nothing need be downloaded; opens no file."""
    classes: int
    """Number of classes; 0 takes one more than the largest label."""
    description: str
    """One line for `dpilot list datasets`."""
    how_to_get: str
    """Instruction for a missing dataset, in the imperative."""
    scale: float = 255.0
    """Value of a white pixel."""
    normalization: Normalization | None = None
    """Published constants of its images; None where there are none."""
    shape: tuple[int, int, int] | None = None
    """(channels, height, width) of its images of bytes, where that is published; None where the files must tell."""
    train_samples: int = 0
    """Number of training samples, where the shape is published."""
    content: str = ""
    """SHA-256 of samples that were given in memory; empty for others."""

    @classmethod
    def of_user(cls, load: Callable[[Path, int], Samples], description: str, content: str = "") -> DatasetEntry:
        """Make an entry of a user's own samples, whose labels tell the number of classes."""
        return cls(load, _at_hand, 0, description, "nothing to get", content=content)


class NotObtained(Exception):
    """A dataset's files are absent and could not be fetched; the message is the reason, without a full stop."""


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
