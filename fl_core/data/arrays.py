"""Samples of a dataset from arrays, in whatever form a user has them.

Pixels are uint8, of which 255 is white; floats are taken as they are. Feature vectors `[n, d]` become images of 1x1xd.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fl_core.base.arrays import BoolArray
from fl_core.base.errors import InputError, first_line, require, unknown_name
from fl_core.base.libraries import Tensor, torch
from fl_core.base.libraries import numpy as np
from fl_core.base.sources import told
from fl_core.base.streams import numpy_generator
from fl_core.data.samples import Samples

ARRAYS = ("images", "labels", "clients", "test_images", "test_labels", "test_clients")
"""Arrays that a dataset may have, by the names of an `.npz` and of the arguments of `from_arrays`."""
WHITE = 255.0
"""Value of a white uint8 pixel."""
_MOST_CHANNELS = 4
_HELD_OUT = 5
"""Without test images, every fifth sample of a class, or of a natural client, is set aside for testing."""
_SEED = 0


def from_arrays(
    images: Any,
    labels: Any,
    clients: Any = None,
    test_images: Any = None,
    test_labels: Any = None,
    test_clients: Any = None,
) -> Samples:
    """Make the samples of a dataset from NumPy arrays or tensors, which are copied.

    Args:
        images: uint8 pixels or finite floats `[n, height, width]`, with channels first or last, or features `[n, d]`.
        labels: `[n]`, whole numbers 0..k-1, or texts, which are numbered in their order.
        clients: `[n]`, whole numbers or texts: the natural client of each sample.
        test_images: the pooled test set; without it, a fifth of the samples.
        test_labels: its labels.
        test_clients: its natural clients.

    Raises:
        InputError: an array is of another kind or length, a label is missing between 0 and the largest, or a value is
            not finite.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> samples = from_arrays(rng.normal(size=(50, 7)), np.arange(50) % 5)
        >>> samples.train_images.shape, samples.test_images.shape
        (torch.Size([40, 1, 1, 7]), torch.Size([10, 1, 1, 7]))
    """
    given = (test_images is not None, test_labels is not None)
    require(given[0] == given[1], "test_images and test_labels come together, but only one of them is given.")
    require(test_clients is None or given[0], "test_clients is given without test_images.")
    require(test_clients is None or clients is not None, "test_clients is given without clients.")
    train = _images("images", images)
    classes, owners = _numbers("labels", labels, len(train)), _numbers("clients", clients, len(train))
    assert classes is not None
    if not given[0]:
        return _split(train, _class_numbers([classes])[0], None if owners is None else _numbered([owners])[0])
    test = _images("test_images", test_images)
    require(
        test.shape[1:] == train.shape[1:] and test.dtype == train.dtype,
        f"test_images are {_words(test)}, but images are {_words(train)}.",
    )
    test_classes, test_owners = (
        _numbers(name, values, len(test))
        for name, values in (("test_labels", test_labels), ("test_clients", test_clients))
    )
    assert test_classes is not None
    own, other = _class_numbers([classes, test_classes])
    if owners is None or test_owners is None:
        return Samples(train, own, test, other, None if owners is None else _numbered([owners])[0])
    return Samples(train, own, test, other, *_numbered([owners, test_owners]))


def _words(images: Tensor) -> str:
    return f"{str(images.dtype).removeprefix('torch.')} of {'x'.join(map(str, images.shape[1:]))}"


# --- one array at a time ----------------------------------------------------------------------------------------------


def _array(name: str, values: Any) -> np.ndarray:
    """Convert to an array of numbers or texts."""
    try:
        array = values.detach().numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    except Exception as error:  # ragged lists, and whatever an object's own conversion raises
        raise InputError(f"{name} is no array: {first_line(error)}.") from error
    kinds = array.dtype.kind
    require(kinds not in "OV", f"{name} holds Python objects, but it must be an array of numbers or texts.")
    require(kinds in "biufUS", f"{name} is of type {array.dtype}, but it must be an array of numbers or texts.")
    return array


def _images(name: str, values: Any) -> Tensor:
    """Check images and bring them into the form `[n, channels, height, width]`, uint8 or float32."""
    array = _array(name, values)
    require(array.dtype.kind in "biuf", f"{name} are texts, but they must be numbers.")
    require(
        array.ndim in (2, 3, 4), f"{name} have shape {array.shape}, but they need 2 to 4 dimensions, samples first."
    )
    require(0 not in array.shape, f"{name} have shape {array.shape}, so there are none.")
    array = _channels_first(name, array)
    if array.dtype.kind in "iu" and array.dtype != np.uint8 and array.shape[1:3] != (1, 1):
        inside = int(array.min()) >= 0 and int(array.max()) <= WHITE
        require(
            inside,
            f"{name} are whole numbers {array.min()}..{array.max()}, but pixels are 0..255; give others as floats.",
        )
        array = array.astype(np.uint8)
    if array.dtype == np.uint8:
        return torch.tensor(array)
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    broken = ~np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    require(
        not broken.any(),
        f"{name} have values that are no finite 32-bit floats, first in sample {int(np.argmax(broken))}.",
    )
    return torch.tensor(floats)


def _channels_first(name: str, array: np.ndarray) -> np.ndarray:
    """Insert or move the axis of the channels."""
    if array.ndim == 2:  # features keep their values: uint8 is no colour here
        return array[:, None, None, :].astype(np.float32 if array.dtype.kind != "f" else array.dtype)
    if array.ndim == 3:
        return array[:, None]
    first, last = (array.shape[axis] <= _MOST_CHANNELS for axis in (1, 3))
    if first and (not last or array.shape[1:3] == (1, 1)):
        return array
    require(
        last and not first,
        f"{name} have shape {array.shape}, from which it cannot be told where their channels are; give Samples, which "
        "have them first.",
    )
    return np.moveaxis(array, 3, 1)


def _numbers(name: str, values: Any, count: int) -> np.ndarray | None:
    """Check labels or clients of a number of samples: whole numbers or texts."""
    if values is None:
        require(name not in ("labels", "test_labels"), f"{name} is missing.")
        return None
    array = _array(name, values)
    images = "test_images" if name.startswith("test_") else "images"
    require(array.ndim == 1, f"{name} have shape {array.shape}, but there must be one for each sample.")
    require(len(array) == count, f"{name} has {len(array)} entries, but {images} has {count} samples.")
    require(array.dtype.kind in "biuUS", f"{name} are {array.dtype} numbers, but they must be whole numbers or texts.")
    return array


def _numbered(parts: Sequence[np.ndarray]) -> list[Tensor]:
    """Number the distinct values of all parts together, in their order: int64 each."""
    kinds = {part.dtype.kind in "US" for part in parts}
    require(
        len(kinds) == 1, "labels or clients of training and test samples are numbers in one and texts in the other."
    )
    _, numbers = np.unique(np.concatenate(parts), return_inverse=True)
    return [
        torch.from_numpy(one.astype(np.int64)) for one in np.split(numbers, np.cumsum([len(p) for p in parts])[:-1])
    ]


def _class_numbers(parts: Sequence[np.ndarray]) -> list[Tensor]:
    """Number the classes; numbers must be 0..k-1 already, so that a wrong one is not taken for another class."""
    whole = np.concatenate(parts)
    found = np.unique(whole)
    require(len(found) > 1, f"labels are all {found[0]}, but there must be two classes at least.")
    if whole.dtype.kind in "US":
        return _numbered(parts)
    missing = np.setdiff1d(np.arange(len(found)), found)
    require(
        not len(missing),
        f"labels are {found[0]}..{found[-1]}, but {len(found)} classes must be 0..{len(found) - 1}: no sample has "
        f"label {missing[0] if len(missing) else ''}.",
    )
    return [torch.from_numpy(part.astype(np.int64)) for part in parts]


def _split(images: Tensor, labels: Tensor, clients: Tensor | None) -> Samples:
    """Set a fixed fifth aside for testing: of every natural client, or else of every class."""
    held = torch.from_numpy(_held_out(labels.numpy(), None if clients is None else clients.numpy()))
    require(
        bool(held.any()), f"There are {len(labels)} samples, but a fifth is set aside for testing: 5 are the least."
    )
    groups = (None, None) if clients is None else (clients[~held], clients[held])
    return Samples(images[~held], labels[~held], images[held], labels[held], *groups)


def _held_out(labels: np.ndarray, clients: np.ndarray | None) -> BoolArray:
    """Take every fifth sample of a line in which they stand by client and class, shuffled within each."""
    draws = numpy_generator(_SEED, "partition").random(len(labels))
    line = np.lexsort((draws, labels) if clients is None else (draws, labels, clients))
    held = np.zeros(len(labels), dtype=np.bool_)
    held[line[_HELD_OUT // 2 :: _HELD_OUT]] = True
    return held


# --- all forms --------------------------------------------------------------------------------------------------------


def samples_of(given: Any, who: str) -> Samples:
    """Make samples of `Samples`, (images, labels), (images, labels, clients), arrays by name, or a torch dataset.

    Args:
        given: one of these.
        who: the dataset, for error messages.

    Raises:
        InputError: it is none of these, or its arrays are no dataset.
    """
    try:
        if isinstance(given, Samples):
            return _checked_samples(given)
        if isinstance(given, Mapping):
            return from_arrays(**_named_arrays(given))
        if isinstance(given, torch.utils.data.Dataset):
            return from_arrays(*_stacked(given))
        if isinstance(given, (tuple, list)) and len(given) in (2, 3):
            return from_arrays(*given)
    except InputError as error:
        raise InputError(f"{who}: {error}") from error
    raise InputError(
        f"{who} is of type {type(given).__name__}, but a dataset is (images, labels), (images, labels, clients), "
        f"arrays by name ({', '.join(ARRAYS)}), Samples, or a function that returns one of these."
    )


def _named_arrays(given: Mapping[Any, Any]) -> dict[str, Any]:
    for name in given:
        if name not in ARRAYS:
            raise unknown_name("array", name, ARRAYS)
    for name in ARRAYS[:2]:
        require(name in given, f"it has no array '{name}'; it has {', '.join(map(str, given)) or 'none'}.")
    return dict(given)


def _stacked(given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Stack the (image, label) items of a torch dataset."""
    try:
        items = [given[index] for index in range(len(given))]
        images = [np.asarray(image) for image, _ in items]
        return np.stack(images), np.array([int(label) for _, label in items])
    except Exception as error:
        raise InputError(f"its items are no pairs of an image and a label ({told(error)}).") from error


def _checked_samples(samples: Samples) -> Samples:
    """Check samples as `from_arrays` does arrays; their images have channels first already."""
    for name in ("train_images", "test_images"):
        images = getattr(samples, name)
        fits = isinstance(images, Tensor) and images.ndim == 4 and images.dtype in (torch.uint8, torch.float32)
        require(fits, f"{name} of Samples must be a tensor [n, channels, height, width] of uint8 or float32.")
    parts = {one.name: getattr(samples, one.name) for one in fields(samples)}
    flat = {name: parts[name].flatten(1) for name in ("train_images", "test_images")}
    checked = from_arrays(
        *(flat["train_images"], parts["train_labels"], parts["train_groups"]),
        *(flat["test_images"], parts["test_labels"], parts["test_groups"]),
    )
    require(
        samples.train_images.shape[1:] == samples.test_images.shape[1:], "images of training and test differ in shape."
    )
    return replace(checked, train_images=samples.train_images.clone(), test_images=samples.test_images.clone())


def samples_sha256(samples: Samples) -> str:
    """Digest all tensors of samples: their types, shapes and values."""
    whole = hashlib.sha256()
    for one in fields(samples):
        tensor = getattr(samples, one.name)
        if tensor is not None:
            whole.update(f"{one.name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            whole.update(np.ascontiguousarray(tensor.numpy()).data)
    return whole.hexdigest()
