"""Layout of a model's flat parameter vector: its parameters and layers in order, and the parts that names stand for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fl_core.base.arguments import checked
from fl_core.base.errors import require, require_count, require_name, unknown_name

PARTS = ("none", "head", "body", "all")
"""Parts that every network has."""


@dataclass(frozen=True)
class Span:
    """A named contiguous stretch `start:stop` of the flat parameter vector."""

    name: str
    start: int
    stop: int

    @property
    def slice(self) -> slice:
        """The stretch as a slice of the vector."""
        return slice(self.start, self.stop)


class Layout:
    """Layout of the parameters of a network in one flat vector.

    Attributes:
        name: of the network in the catalogue.
        size: number of parameters.
        classes: number of logits.
        tensors: one span per parameter tensor (`conv1.weight`, `conv1.bias`, ...), in order.
        layers: one span per layer with parameters, in order; the last is the head.
        convolutions: those of the layers that are convolutions (weights and bias).
    """

    name: str
    size: int
    classes: int
    tensors: tuple[Span, ...]
    layers: tuple[Span, ...]
    convolutions: tuple[Span, ...]

    @property
    def head(self) -> Span:
        """Span of the last layer."""
        return self.layers[-1]

    @property
    def body(self) -> Span:
        """Span of everything before the head."""
        return Span("body", 0, self.head.start)

    def span(self, part: str) -> Span:
        """Return the span of a part: `all`, `head`, `body` or `none` of the parameters."""
        spans = {
            "all": Span("all", 0, self.size),
            "head": self.head,
            "body": self.body,
            "none": Span("none", self.size, self.size),
        }
        require_name("Model part", part, spans)
        return spans[part]

    def spans(self, part: str) -> tuple[Span, ...]:
        """Return the stretches of a part of the network, in order.

        Args:
            part: as in `span`; a number of layers, counted from the last one; `first(N)` for those from the first one;
                or names of layers or of blocks of them, joined by +.

        Raises:
            InputError: there are not so many layers, or none of that name.
        """
        count = re.fullmatch(r"(first\()?(\d+)(\))?", part)
        if part in PARTS:
            return (self.span(part),)
        if count and bool(count[1]) is bool(count[3]):
            wanted, most = int(count[2]), len(self.layers) - 1
            require(
                0 < wanted <= most,
                f"local is '{part}', but of the {most + 1} layers of model '{self.name}' 1 to {most} can be a part.",
            )
            return self.layers[:wanted] if count[1] else self.layers[-wanted:]
        names = [name.strip() for name in part.split("+")]
        found = tuple(layer for layer in self.layers if any(_is_in(layer.name, name) for name in names))
        for name in names:
            if not any(_is_in(layer.name, name) for layer in self.layers):
                raise unknown_name(
                    f"local: layer of model '{self.name}'", name, [*(layer.name for layer in self.layers), *PARTS]
                )
        require(
            len(found) < len(self.layers), f"local is '{part}', which is the whole of model '{self.name}'; write all."
        )
        return found

    @property
    def largest_layer(self) -> int:
        """Number of parameters of the largest layer."""
        return max(layer.stop - layer.start for layer in self.layers)


def _is_in(layer: str, name: str) -> bool:
    """Return True for the layer of a name, or one in the block of that name."""
    return layer == name or layer.startswith(f"{name}.")


class Outline(Layout):
    """Layout of a model that is not here: the sizes of its layers, in the order of the flat vector.

    Examples:
        >>> outline = Outline({"conv": 160, "head": 650}, classes=10)
        >>> outline.size, outline.head.slice
        (810, slice(160, 810, None))
    """

    @checked
    def __init__(self, sizes: Mapping[str, int], classes: int, name: str = "model"):
        """Lay out layers.

        Args:
            sizes: parameters of each layer by name, in order; the last is the head.
            classes: number of logits.
            name: of the network.

        Raises:
            InputError: there is no layer, or one has no parameters.
        """
        require(len(sizes) > 0, "sizes is empty, but a model has at least one layer.")
        stops = list(itertools.accumulate(sizes.values()))
        for layer, count in sizes.items():
            require_count(f"sizes: layer '{layer}'", count)
        self.name, self.size, self.classes = name, stops[-1], classes
        self.layers = tuple(Span(one, stop - sizes[one], stop) for one, stop in zip(sizes, stops, strict=True))
        self.tensors, self.convolutions = self.layers, ()
