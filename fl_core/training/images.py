"""Image sets on their device, read minibatch by minibatch as floats, normalised or not."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_core.base.transfers import to_device, to_device_aside
from fl_core.data.normalization import Normalization

FLOAT_IMAGES = 32 * 2**20
"""Bytes up to which an image set is kept as floats, which saves the conversion of every minibatch."""


class Images:
    """A labelled image set on its device, uint8 until a minibatch is read; a small set on a CPU is kept as floats.

    A set that does not fit on the device stays on the host: minibatches are gathered there and copied as bytes. The
    host does not wait for a GPU meanwhile, and so gathers and copies the next one while that computes with the last.

    Attributes:
        device: where minibatches are read to.
        aside: True for images on the host, whose positions are best given there too.
        black: value of a black pixel as it is read `[channels]`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        scale: float,
        normalization: Normalization | None = None,
        aside: bool = False,
    ):
        """Take images `[n, channels, height, width]` and labels `[n]`, on the device both, but for images aside."""
        self.device, self.aside = labels.device, aside
        self._shape = images.shape[1:]
        self._mean = self._std = torch.zeros(0, device=self.device)
        self.black = torch.zeros(images.shape[1], device=self.device)
        if normalization is not None:
            self._mean, self._std = (
                to_device(torch.tensor(one), self.device).expand(images.shape[1]).contiguous()
                for one in (normalization.mean, normalization.std)
            )
            self.black = -self._mean / self._std
        self._images = images.flatten(1).contiguous()  # whole rows are gathered ten times faster than pixels
        self._labels, self._scale = labels, scale
        self._kept = not aside and images.device.type == "cpu" and 4 * images.numel() <= FLOAT_IMAGES
        if self._kept:
            self._images = self._floats(self._images)

    def _floats(self, images: Tensor) -> Tensor:
        """Convert rows of pixels to floats, normalised if that is asked for."""
        floats = images if images.dtype == torch.float32 else images.to(torch.float32).div_(self._scale)
        if not len(self._mean):
            return floats
        by_channel = floats.view(len(floats), len(self._mean), -1)
        return ((by_channel - self._mean.view(-1, 1)) / self._std.view(-1, 1)).flatten(1)

    def __len__(self) -> int:
        return len(self._labels)

    def labels(self, index: Tensor) -> Tensor:
        """Gather labels at positions of any shape."""
        return self._labels[to_device(index, self.device)]

    def read(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Gather images `[..., channels, height, width]` and labels `[...]` at positions `[...]`.

        Images are floats in [0, 1], or normalised.
        """
        flat = index.flatten()
        if self.aside:
            images = to_device_aside(self._images.index_select(0, flat.cpu()), self.device)
            flat = to_device(flat, self.device)
        else:
            images = self._images.index_select(0, flat)
        images = images if self._kept else self._floats(images)
        return images.view(*index.shape, *self._shape), self._labels.index_select(0, flat).view(index.shape)
