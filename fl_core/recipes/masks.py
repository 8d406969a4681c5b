"""Masks over the flat parameter vector: by Fisher information, by magnitude, and growing ones."""

from __future__ import annotations

from collections.abc import Sequence

from fl_core.base.libraries import Tensor, torch
from fl_core.base.transfers import largest_count
from fl_core.models.layout import Span


def normalise_per_tensor(values: Tensor, spans: Sequence[Span]) -> Tensor:
    """Scale each span of `[..., size]` to [0, 1] by its min and max; constant spans give 0.

    FedDPA eq. 5, ADP-PFL eq. 14.
    """
    pieces = []
    for span in spans:
        piece = values[..., span.slice]
        low, high = piece.amin(-1, keepdim=True), piece.amax(-1, keepdim=True)
        width = high - low
        pieces.append(torch.where(width > 0, (piece - low) / torch.where(width > 0, width, 1.0), 0.0))
    return torch.cat(pieces, dim=-1)


def largest(scores: Tensor, counts: Tensor) -> Tensor:
    """Mask the `counts` largest entries of each row (1.0, else 0.0); ties are broken arbitrarily.

    Args:
        scores: `[rows, size]`.
        counts: int64 `[rows]`, number of entries of each row.
    """
    most = largest_count(counts, scores.shape[-1])
    mask = torch.zeros_like(scores)
    if most:
        # `topk` takes one k for all rows: the largest is computed, and rows that want fewer drop the tail.
        chosen = scores.topk(most, dim=-1).indices
        wanted = torch.arange(most, device=scores.device) < counts.unsqueeze(-1)
        mask.scatter_(-1, chosen, wanted.to(scores.dtype))
    return mask


def kept_count(fraction: Tensor, size: int) -> Tensor:
    """Convert a fraction in [0, 1] to a number of `size` coordinates (int64): rounded, at least 1 if it is above 0."""
    count = torch.round(fraction.to(torch.float64) * size).to(torch.int64)
    return torch.where(fraction > 0, count.clamp_min(1), count).clamp_max(size)


def keep_largest(scores: Tensor, fraction: Tensor) -> Tensor:
    """Mask a fraction of each row, its largest entries.

    Args:
        scores: `[rows, size]`.
        fraction: `[rows]` in [0, 1].
    """
    return largest(scores, kept_count(fraction, scores.shape[-1]))


def grow(mask: Tensor, scores: Tensor, fraction: Tensor, spans: Sequence[Span]) -> Tensor:
    """Grow a mask in each span to a fraction of the span's coordinates, those with the largest scores.

    Coordinates in the mask stay in it (FedGLP-ADP, section 4.1).

    Args:
        mask: `[rows, size]`, 1 where personal.
        scores: `[rows, size]`, at least 0.
        fraction: `[rows]` in [0, 1], wanted share of each span, rounded to whole coordinates.
        spans: layers.
    """
    grown = mask.clone()
    ranked = torch.where(mask > 0, torch.inf, scores)  # what is in the mask outranks every score
    for span in spans:
        size = span.stop - span.start
        wanted = torch.round(fraction.to(torch.float64) * size).to(torch.int64)
        wanted = torch.maximum(wanted, mask[:, span.slice].sum(-1).to(torch.int64))
        grown[:, span.slice] = largest(ranked[:, span.slice], wanted)
    return grown
