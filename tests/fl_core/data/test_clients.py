import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.base.errors import InputError
from fl_core.data.clients import ClientIndex, client_index
from fl_core.data.partition import partition
from tests.fl_core.data.test_partition import requests

LABELS = np.random.default_rng(0).integers(0, 10, 600)


def rows(table: torch.Tensor, count: torch.Tensor) -> list[list[int]]:
    """The rows of a padded table without their padding."""
    return [row[:length] for row, length in zip(table.tolist(), count.tolist(), strict=True)]


def assert_padding_is_the_clients_own(table: torch.Tensor, count: torch.Tensor) -> None:
    assert table.dtype == count.dtype == torch.int64
    assert table.shape[1] == count.max()
    for row, own in zip(table.tolist(), rows(table, count), strict=True):
        assert set(row) == set(own)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(requests(), st.sampled_from(["iid", "dirichlet(0.1)", "shards(1)"]), st.sampled_from([0.01, 0.2, 1 / 3, 0.5]))
def test_split_is_disjoint_whole_and_stratified(
    request: tuple[np.ndarray, int, int], spec: str, fraction: float
) -> None:
    labels, clients, seed = request
    index = client_index(labels, clients, spec, seed, test_fraction=fraction)
    assert_padding_is_the_clients_own(index.train, index.train_count)
    assert_padding_is_the_clients_own(index.test, index.test_count)
    parts = partition(labels, clients, spec, seed)
    train, test = rows(index.train, index.train_count), rows(index.test, index.test_count)
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
    assert np.bincount(np.repeat(np.arange(10), 10)[index.test[0]]).tolist() == [2] * 10


def test_every_sample_of_a_class_is_equally_often_tested() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [2])
    tested = np.zeros(10)
    for seed in range(1500):
        index = client_index(labels, 1, "iid", seed, test_fraction=0.3)
        tested[index.test[0].numpy()] += 1
    # Three test samples: two of the six, one of the three, never the only one of its class.
    assert tested[:9] / 1500 == pytest.approx(np.full(9, 1 / 3), abs=0.05)
    assert tested[9] == 0


def test_client_with_one_sample_of_each_class_still_has_a_test_sample() -> None:
    index = client_index(np.arange(4), 2, "iid", 0)
    assert index.train_count.tolist() == index.test_count.tolist() == [1, 1]
    assert sorted(index.train.flatten().tolist() + index.test.flatten().tolist()) == [0, 1, 2, 3]


def test_same_seed_same_split_and_different_seeds_differ() -> None:
    first, second, other = (client_index(LABELS, 10, "classes(2)", seed) for seed in (1, 1, 2))
    assert all(torch.equal(vars(first)[name], vars(second)[name]) for name in vars(first))
    assert not torch.equal(first.test[:, :5], other.test[:, :5])


def test_tensors_are_taken_as_arrays_are() -> None:
    groups = np.arange(600) % 30
    arrays = client_index(LABELS, 10, "natural", 1, groups)
    tensors = client_index(torch.from_numpy(LABELS), 10, "natural", 1, torch.from_numpy(groups))
    assert torch.equal(arrays.train, tensors.train)
    assert all(len(set(groups[row])) == 1 for row in arrays.train.numpy())


def test_to_moves_every_table() -> None:
    moved = client_index(LABELS, 10, "iid", 0).to("meta")
    assert isinstance(moved, ClientIndex)
    assert all(table.device.type == "meta" for table in vars(moved).values())


@pytest.mark.parametrize("fraction", [0.0, -0.1, 0.51, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match=r"test_fraction is .*, but it must be a number in \(0, 0.5\]"):
        client_index(LABELS, 10, "iid", 0, test_fraction=fraction)
