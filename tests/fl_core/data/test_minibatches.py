import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl_core.base.counters import mixed, stream_words
from fl_core.data.minibatches import minibatch_positions
from tests.fl_core.plain import positions_of


def words_of(seed: int, clients: int) -> Tensor:
    """A word for each client of a round."""
    return mixed(torch.tensor(stream_words(seed, "minibatch", "minibatches", 4)), torch.arange(clients))


def drawn(seed: int, counts: list[int], steps: int, batch: int) -> Tensor:
    return minibatch_positions(words_of(seed, len(counts)), torch.tensor(counts), steps, batch, max(counts))


cases = st.tuples(
    st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**60)
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cases)
def test_every_pass_is_a_permutation(case: tuple[list[int], int, int, int]) -> None:
    counts, steps, batch, seed = case
    positions = drawn(seed, counts, steps, batch)
    assert positions.shape == (len(counts), steps, batch)
    assert positions.dtype == torch.int64
    for row, count in zip(positions.flatten(1).tolist(), counts, strict=True):
        passes = [row[start : start + count] for start in range(0, len(row), count)]
        assert all(sorted(one) == list(range(count)) for one in passes[:-1])
        last = passes[-1]
        assert len(set(last)) == len(last)
        assert set(last) <= set(range(count))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases)
def test_equals_the_plain_loop(case: tuple[list[int], int, int, int]) -> None:
    counts, steps, batch, seed = case
    for client, (row, count) in enumerate(zip(drawn(seed, counts, steps, batch), counts, strict=True)):
        assert torch.equal(row, positions_of(seed, "minibatch", 4, client, count, steps, batch))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases, st.data())
def test_a_client_draws_the_same_whoever_else_takes_part_and_however_long_others_are(
    case: tuple[list[int], int, int, int], data: st.DataObject
) -> None:
    counts, steps, batch, seed = case
    everybody, words = drawn(seed, counts, steps, batch), words_of(seed, len(counts))
    some = data.draw(st.lists(st.sampled_from(range(len(counts))), min_size=1, unique=True))
    longest = max(counts) + data.draw(st.integers(0, 20))
    alone = minibatch_positions(words[some], torch.tensor(counts)[some], steps, batch, longest)
    assert torch.equal(alone, everybody[some])


def test_same_seed_same_minibatches_and_different_seeds_differ() -> None:
    first, second, other = (drawn(seed, [40] * 5, 3, 8) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert len({tuple(row) for row in first.flatten(1).tolist()}) == 5, "clients are shuffled independently"


def test_passes_of_one_client_are_shuffled_independently() -> None:
    passes = drawn(0, [12], 40, 12)[0]
    assert len({tuple(one) for one in passes.tolist()}) == 40


def test_every_order_is_equally_likely() -> None:
    positions = drawn(0, [3] * 6000, 2, 3)
    for one in positions.unbind(1):
        codes = (one * torch.tensor([9, 3, 1])).sum(1).bincount()
        assert (codes > 0).sum() == 6
        assert codes[codes > 0].tolist() == pytest.approx([1000] * 6, abs=130)


def test_first_sample_is_uniform_when_the_walk_is_shorter_than_a_pass() -> None:
    first = drawn(0, [10] * 5000 + [50], 1, 1)[:5000]
    assert first.flatten().bincount().tolist() == pytest.approx([500] * 10, abs=90)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_the_same() -> None:
    words, counts = words_of(0, 3), torch.tensor([3, 9, 1])
    positions = minibatch_positions(words.cuda(), counts.cuda(), 4, 3, 9)
    assert positions.is_cuda
    assert torch.equal(positions.cpu(), minibatch_positions(words, counts, 4, 3, 9))
