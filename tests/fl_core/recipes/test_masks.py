"""Masks against sorting and counting in NumPy: min-max per tensor, the largest coordinates, masks that grow."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from fl_core.models.layout import Span
from fl_core.recipes.masks import grow, keep_largest, largest, normalise_per_tensor

torch.set_num_threads(1)
SPANS = (Span("a", 0, 4), Span("b", 4, 5), Span("c", 5, 12))
VALUES = some.lists(some.sampled_from([0.0, 1e-30, 0.25, 0.25, 0.5, 3.0, 7e8]), min_size=24, max_size=24)


@settings(max_examples=80, deadline=None)
@given(values=VALUES)
def test_each_tensor_is_stretched_to_zero_and_one_and_a_constant_one_is_zero(values):
    """FedDPA eq. 5: (F - min F) / (max F - min F) within a tensor."""
    given_values = np.array(values, dtype=np.float32).reshape(2, 12)
    found = normalise_per_tensor(torch.from_numpy(given_values), SPANS).numpy()
    for row in range(2):
        for span in SPANS:
            piece = given_values[row, span.start : span.stop].astype(np.float64)
            width = piece.max() - piece.min()
            expected = (piece - piece.min()) / width if width > 0 else np.zeros_like(piece)
            np.testing.assert_allclose(found[row, span.start : span.stop], expected, rtol=1e-5)


def test_a_tensor_does_not_see_the_others():
    values = torch.rand(1, 12, generator=torch.Generator().manual_seed(0))
    louder = values.clone()
    louder[0, 5:] *= 1e6
    assert torch.equal(normalise_per_tensor(values, SPANS)[0, :5], normalise_per_tensor(louder, SPANS)[0, :5])


SCORES = some.lists(some.sampled_from([0.0, 0.1, 0.1, 0.7, 2.0, 5.0, 1e9]), min_size=1, max_size=30)


@settings(max_examples=120, deadline=None)
@given(scores=SCORES, fractions=some.lists(some.floats(0, 1, width=32), min_size=2, max_size=2))
def test_the_largest_are_kept_in_exactly_the_number_asked_for(scores, fractions):
    """Also among equal scores; a fraction above 0 keeps at least one."""
    rows = torch.tensor([scores, scores[::-1]])
    mask = keep_largest(rows, torch.tensor(fractions)).numpy()
    for row, fraction, kept in zip(rows.numpy(), fractions, mask, strict=True):
        count = min(len(row), max(1, round(fraction * len(row)))) if fraction > 0 else 0
        assert set(kept.tolist()) <= {0.0, 1.0}
        assert kept.sum() == count
        if 0 < count < len(row):
            assert row[kept == 1].min() >= row[kept == 0].max()


def test_rows_may_ask_for_different_numbers():
    scores = torch.tensor([[1.0, 5, 3], [9, 8, 7], [1, 2, 3]])
    expected = torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 0, 0]])
    assert torch.equal(largest(scores, torch.tensor([1, 3, 0])), expected)


def test_keeping_everything_is_a_mask_of_ones():
    assert torch.equal(keep_largest(torch.rand(3, 11), torch.ones(3)), torch.ones(3, 11))


STEPS = some.lists(some.floats(0, 1), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(fractions=STEPS, seed=some.integers(0, 10**6), tied=some.booleans())
def test_a_growing_mask_never_shrinks_and_takes_the_largest_of_the_rest_layer_by_layer(fractions, seed, tied):
    """FedGLP-ADP, section 4.1: of each layer's parameters p more, those with the largest |noised update|."""
    random = np.random.default_rng(seed)
    mask, reached = torch.zeros(1, 12), [0, 0, 0]
    for fraction in fractions:
        scores = random.integers(0, 3, 12).astype(np.float32) if tied else random.random(12).astype(np.float32)
        new = grow(mask, torch.from_numpy(scores)[None], torch.tensor([fraction]), SPANS)
        assert ((new - mask) >= 0).all()
        assert set(new[0].tolist()) <= {0.0, 1.0}
        for index, span in enumerate(SPANS):
            size = span.stop - span.start
            reached[index] = max(reached[index], round(float(np.float32(fraction)) * size))
            own, before = new[0, span.slice].numpy(), mask[0, span.slice].numpy()
            assert own.sum() == reached[index]
            fresh, still = (own == 1) & (before == 0), own == 0
            if fresh.any() and still.any():
                piece = scores[span.start : span.stop]
                assert piece[fresh].min() >= piece[still].max()
        mask = new


def test_rows_grow_by_themselves():
    scores = torch.arange(12.0).expand(3, 12)
    mask = grow(torch.zeros(3, 12), scores, torch.tensor([0.0, 0.5, 1.0]), SPANS)
    assert mask[0].sum() == 0
    assert mask[1].nonzero().flatten().tolist() == [2, 3, 8, 9, 10, 11]  # 3.5 is rounded to even
    assert mask[2].sum() == 12


@pytest.mark.parametrize("rounds", [3, 7, 20, 40])
def test_equal_steps_reach_the_limit_without_a_rounding_gap(rounds):
    """After T rounds of p = β/T a layer has β·size personal coordinates, whatever floats make of T·p."""
    spans, limit = (Span("a", 0, 1000),), 0.3
    mask, grown = torch.zeros(1, 1000), torch.zeros(())
    for index in range(rounds):
        grown = torch.minimum(grown + np.float32(limit / rounds), torch.tensor(limit))
        mask = grow(mask, torch.rand(1, 1000), grown[None], spans)
        assert abs(float(mask.sum()) - (index + 1) * limit / rounds * 1000) < 1.01
    assert mask.sum() == 300
