import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.base.errors import InputError
from fl_core.data.clients import ClientIndex, Lists, client_index
from fl_core.data.partition import partition
from tests.fl_core.data.test_partition import requests

LABELS = np.random.default_rng(0).integers(0, 10, 600)


def assert_lists(lists: Lists, clients: int) -> None:
    """Lists of whole numbers, one for each client, one after the other."""
    assert lists.flat.dtype == lists.start.dtype == lists.count.dtype == torch.int64
    assert lists.start.tolist() == [0, *lists.count.cumsum(0).tolist()[:-1]]
    assert len(lists.count) == clients
    assert int(lists.count.sum()) == len(lists.flat)
    assert lists.longest == lists.count.max()


def rows(lists: Lists) -> list[list[int]]:
    return [lists.of(client).tolist() for client in range(len(lists.count))]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(requests(), st.sampled_from(["iid", "dirichlet(0.1)", "shards(1)"]), st.sampled_from([0.01, 0.2, 1 / 3, 0.5]))
def test_split_is_disjoint_whole_and_stratified(
    request: tuple[np.ndarray, int, int], spec: str, fraction: float
) -> None:
    labels, clients, seed = request
    index = client_index(labels, clients, spec, seed, test_fraction=fraction)
    assert_lists(index.train, clients)
    assert_lists(index.test, clients)
    parts = partition(labels, clients, spec, seed)
    train, test = rows(index.train), rows(index.test)
    for part, ours, theirs in zip(parts, train, test, strict=True):
        assert sorted(ours + theirs) == part.tolist()
        assert len(ours) >= 1
        assert len(theirs) >= 1
        assert_stratified(labels, part, theirs, fraction)


def assert_stratified(labels: np.ndarray, part: np.ndarray, test: list[int], fraction: float) -> None:
    """No class of the client is in its test part only; each gives its share of the test part, up to rounding."""
    sizes = dict(zip(*np.unique(labels[part], return_counts=True), strict=True))
    repeated = sum(size for size in sizes.values() if size > 1)
    if repeated == 0:
        return
    assert len(test) == max(1, min(round(fraction * len(part)), repeated // 2))
    for label, size in sizes.items():
        picked = sum(labels[sample] == label for sample in test)
        assert picked < size
        if size > 1:
            assert abs(picked - len(test) * size / repeated) < 1


def test_even_classes_are_split_exactly() -> None:
    index = client_index(np.repeat(np.arange(10), 10), 1, "iid", 0)
    assert np.bincount(np.repeat(np.arange(10), 10)[index.test.of(0)]).tolist() == [2] * 10


def test_every_sample_of_a_class_is_equally_often_tested() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [2])
    tested = np.zeros(10)
    for seed in range(1500):
        index = client_index(labels, 1, "iid", seed, test_fraction=0.3)
        tested[index.test.of(0).numpy()] += 1
    # Three test samples: two of the six, one of the three, never the only one of its class.
    assert tested[:9] / 1500 == pytest.approx(np.full(9, 1 / 3), abs=0.05)
    assert tested[9] == 0


def test_client_with_one_sample_of_each_class_still_has_a_test_sample() -> None:
    index = client_index(np.arange(4), 2, "iid", 0)
    assert index.train.count.tolist() == index.test.count.tolist() == [1, 1]
    assert sorted(index.train.flat.tolist() + index.test.flat.tolist()) == [0, 1, 2, 3]


def test_same_seed_same_split_and_different_seeds_differ() -> None:
    first, second, other = (client_index(LABELS, 10, "classes(2)", seed) for seed in (1, 1, 2))
    for one, same in ((first.train, second.train), (first.test, second.test)):
        assert rows(one) == rows(same)
    assert rows(first.test) != rows(other.test)


def test_tensors_are_taken_as_arrays_are() -> None:
    groups = np.arange(600) % 30
    arrays = client_index(LABELS, 10, "natural", 1, groups)
    tensors = client_index(torch.from_numpy(LABELS), 10, "natural", 1, torch.from_numpy(groups))
    assert torch.equal(arrays.train.flat, tensors.train.flat)
    assert all(len(set(groups[row])) == 1 for row in rows(arrays.train))


def test_to_moves_every_table() -> None:
    moved = client_index(LABELS, 10, "iid", 0).to("meta")
    assert isinstance(moved, ClientIndex)
    for lists in (moved.train, moved.test):
        assert {one.device.type for one in (lists.flat, lists.start, lists.count)} == {"meta"}


def test_stacked_lists_are_looked_up_by_run_and_client() -> None:
    """Against one list at a time; shorter lists are repeated to the length of the longest."""
    indices = [client_index(LABELS, 6, spec, seed) for seed, spec in enumerate(("dirichlet(0.2)", "iid"))]
    stacked = Lists.stacked([index.train for index in indices])
    run, client = torch.tensor([1, 0, 0, 1]), torch.tensor([5, 0, 3, 1])
    padded, counts = stacked.padded(run, client)
    for row, count, at, one in zip(padded.tolist(), counts.tolist(), run.tolist(), client.tolist(), strict=True):
        own = indices[at].train.of(one).tolist()
        assert stacked.of(at, one).tolist() == own
        assert count == len(own)
        assert row == [own[place % len(own)] for place in range(len(row))]
    assert padded.shape[1] == max(counts)
    assert stacked.longest == max(index.train.longest for index in indices)
    positions = torch.tensor([[[0, 1]], [[1, 0]], [[0, 0]], [[1, 1]]])
    found = stacked.at(run, client, positions)
    assert found.shape == positions.shape
    assert found[1].tolist() == [indices[0].train.of(0)[[1, 0]].tolist()]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 0.51, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match=r"test_fraction is .*, but it must be a number in \(0, 0.5\]"):
        client_index(LABELS, 10, "iid", 0, test_fraction=fraction)
