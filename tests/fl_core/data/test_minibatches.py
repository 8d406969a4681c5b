import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.data.clients import minibatch_keys, minibatch_positions, positions_from_keys


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain_positions(keys: list[list[int]], counts: list[int], steps: int, batch: int) -> list[list[list[int]]]:
    """One client at a time, one pass at a time: shuffle by sorting each sample's key, then cut into minibatches."""
    result = []
    for row, count in zip(keys, counts, strict=True):
        walk: list[int] = []
        while len(walk) < steps * batch:
            keys_of_pass = row[len(walk) : len(walk) + count]
            walk += sorted(range(count), key=keys_of_pass.__getitem__)
        result.append([walk[step * batch : (step + 1) * batch] for step in range(steps)])
    return result


cases = st.tuples(
    st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**60)
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cases)
def test_every_pass_is_a_permutation(case: tuple[list[int], int, int, int]) -> None:
    counts, steps, batch, seed = case
    positions = minibatch_positions(torch.tensor(counts), steps, batch, generator(seed))
    assert positions.shape == (len(counts), steps, batch)
    assert positions.dtype == torch.int64
    for row, count in zip(positions.flatten(1).tolist(), counts, strict=True):
        passes = [row[start : start + count] for start in range(0, len(row), count)]
        assert all(sorted(one) == list(range(count)) for one in passes[:-1])
        last = passes[-1]
        assert len(set(last)) == len(last)
        assert set(last) <= set(range(count))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cases)
def test_equals_the_plain_loop(case: tuple[list[int], int, int, int]) -> None:
    counts, steps, batch, seed = case
    keys = minibatch_keys(len(counts), max(counts), steps, batch, generator(seed))
    assert keys.shape == (len(counts), max(counts) - 1 + steps * batch)
    plain = plain_positions(keys.tolist(), counts, steps, batch)
    assert positions_from_keys(keys, torch.tensor(counts), steps, batch).tolist() == plain
    assert minibatch_positions(torch.tensor(counts), steps, batch, generator(seed)).tolist() == plain


def test_stacked_runs_get_what_each_gets_alone() -> None:
    counts = [torch.tensor([3, 9, 1]), torch.tensor([20, 2, 5])]
    alone = torch.stack([minibatch_positions(count, 4, 3, generator(seed)) for seed, count in enumerate(counts)])
    keys = [minibatch_keys(3, int(count.max()), 4, 3, generator(seed)) for seed, count in enumerate(counts)]
    keys = [torch.nn.functional.pad(key, (0, 31 - key.shape[1])) for key in keys]
    assert torch.equal(positions_from_keys(torch.stack(keys), torch.stack(counts), 4, 3), alone)


def test_same_seed_same_minibatches_and_different_seeds_differ() -> None:
    counts = torch.full((5,), 40)
    first, second, other = (minibatch_positions(counts, 3, 8, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert len({tuple(row) for row in first.flatten(1).tolist()}) == 5, "clients are shuffled independently"


def test_passes_of_one_client_are_shuffled_independently() -> None:
    passes = minibatch_positions(torch.tensor([12]), 40, 12, generator(0))[0]
    assert len({tuple(one) for one in passes.tolist()}) == 40


def test_every_order_is_equally_likely() -> None:
    positions = minibatch_positions(torch.full((6000,), 3), 2, 3, generator(0))
    for one in positions.unbind(1):
        codes = (one * torch.tensor([9, 3, 1])).sum(1).bincount()
        assert (codes > 0).sum() == 6
        assert codes[codes > 0].tolist() == pytest.approx([1000] * 6, abs=130)


def test_first_sample_is_uniform_when_the_walk_is_shorter_than_a_pass() -> None:
    first = minibatch_positions(torch.tensor([10] * 5000 + [50]), 1, 1, generator(0))[:5000]
    assert first.flatten().bincount().tolist() == pytest.approx([500] * 10, abs=90)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_runs_on_the_generators_device() -> None:
    counts = torch.tensor([3, 9, 1], device="cuda")
    positions = minibatch_positions(counts, 4, 3, torch.Generator("cuda").manual_seed(0))
    assert positions.is_cuda
    assert bool((positions < counts[:, None, None]).all())
