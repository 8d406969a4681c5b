"""Proxy and target: whatever the seeds and partitions, no sample is in both, and a writer is wholly in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.base.errors import InputError
from fl_core.data.datasets import Dataset, load_dataset
from fl_core.data.populations import POPULATIONS, population_groups, population_members, share_samples
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from tests.fl_core.data.writers import leaf_content, random_arrays, write_leaf

PARTITIONS = ("iid", "dirichlet(0.3)", "shards(2)", "classes(3)", "label_skew(0.4)")


@given(labels=st.lists(st.integers(0, 9), min_size=0, max_size=200))
def test_halves_are_disjoint_complete_and_stratified(labels: list[int]) -> None:
    array = np.array(labels, dtype=np.int64)
    proxy, target = (population_members(array, name) for name in ("proxy", "target"))
    assert sorted([*proxy, *target]) == list(range(len(labels)))
    assert abs(len(proxy) - len(target)) <= 1
    for label in range(10):
        assert abs(int((array[proxy] == label).sum()) - int((array[target] == label).sum())) <= 1
    np.testing.assert_array_equal(population_members(array, "all"), np.arange(len(labels)))
    np.testing.assert_array_equal(population_members(array, "proxy"), proxy)


@given(groups=st.lists(st.integers(3, 40), min_size=1, max_size=200))
def test_groups_are_dealt_out_whole(groups: list[int]) -> None:
    array = np.array(groups)
    proxy, target = (set(population_groups(array, name).tolist()) for name in ("proxy", "target"))
    assert proxy.isdisjoint(target)
    assert proxy | target == set(groups)
    assert abs(len(proxy) - len(target)) <= 1


def test_large_and_small_groups_are_in_both_halves() -> None:
    sizes = np.arange(1, 101)
    groups = np.repeat(np.arange(100), sizes)
    held = [int(sizes[population_groups(groups, name)].sum()) for name in ("proxy", "target")]
    assert abs(held[0] - held[1]) <= 100  # dealing at random would leave them about 580 apart


def test_only_proxy_and_target_share_nothing() -> None:
    apart = {(one, other) for one in POPULATIONS for other in POPULATIONS if not share_samples(one, other)}
    assert apart == {("proxy", "target"), ("target", "proxy")}


def _tagged(train: int = 400, test: int = 60) -> Dataset:
    """A dataset whose every image shows its own number: what a federation holds can be read off its images."""
    numbers = torch.arange(train + test)
    images = torch.stack([numbers // 256, numbers % 256], dim=-1).to(torch.uint8).view(-1, 1, 1, 2)
    labels = numbers % 10
    return Dataset("tagged", images[:train], labels[:train], images[train:], labels[train:], 10, 255.0)


def _held(federation: Federation) -> set[int]:
    """Numbers of the images that some client of some run trains or is tested on."""
    tables = federation.tables
    images = federation._dataset.train_images.flatten(1).to(torch.int64)
    rows = torch.cat([tables.train.flat, tables.test.flat])
    return {int(high) * 256 + int(low) for high, low in images[rows].tolist()}


@settings(max_examples=25, deadline=None)
@given(
    seeds=st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)),
    partitions=st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(PARTITIONS)),
)
def test_no_sample_is_held_in_both_populations(seeds: tuple[int, int], partitions: tuple[str, str]) -> None:
    data = _tagged()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_core.run.simulation.load_dataset", lambda *_, population: data.members(population))
        held = {}
        for population, seed, spec in zip(("proxy", "target"), seeds, partitions, strict=True):
            federation = Federation(FederationConfig(clients=12, population=population, executor="vectorized"))
            federation.start([0], [RunSettings(seed=seed, partition=spec)])
            held[population] = _held(federation)
        assert held["proxy"].isdisjoint(held["target"])
        assert len(held["proxy"]) > 100
        assert len(held["target"]) > 100


def test_the_pooled_test_set_is_halved_too() -> None:
    data = load_dataset("digits")
    proxy, target = (load_dataset("digits", population=name) for name in ("proxy", "target"))

    def rows(*tensors: torch.Tensor) -> list[bytes]:
        return sorted(image.numpy().tobytes() for tensor in tensors for image in tensor)

    assert rows(proxy.test_images, target.test_images) == rows(data.test_images)
    assert rows(proxy.train_images, target.train_images) == rows(data.train_images)
    assert load_dataset("digits", population="all") is data
    assert load_dataset("digits", population="proxy") is proxy  # made once


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    """Eight writers, of whom one has test samples alone."""
    writers = {f"w{number}": random_arrays(4 + number, 62, (28, 28), seed=number) for number in range(8)}
    tested = {f"w{number}": random_arrays(2, 62, (28, 28), seed=50 + number) for number in (0, 2, 3, 5, 6, 9)}
    write_leaf(tmp_path / "femnist/train/all_data_0.json", leaf_content(writers))
    write_leaf(tmp_path / "femnist/test/all_data_0.json", leaf_content(tested))
    return tmp_path


@pytest.mark.parametrize("partitions", [("natural", "natural"), ("iid", "natural"), ("natural", "iid")])
def test_a_writer_is_wholly_in_one_population(femnist: Path, partitions: tuple[str, str]) -> None:
    whole = load_dataset("femnist", femnist)
    assert whole.test_groups is not None
    assert whole.test_groups.unique().tolist() == [0, 2, 3, 5, 6, 8]
    writers: list[set[int]] = []
    for population, spec in zip(("proxy", "target"), partitions, strict=True):
        config = FederationConfig(
            dataset="femnist", data_root=str(femnist), clients=3, partition=spec, population=population, delta=1e-6
        )
        federation = Federation(config, 2)
        groups, tested = federation._dataset.train_groups, federation._dataset.test_groups
        assert groups is not None
        assert tested is not None
        rows = torch.cat([federation.tables.train.flat, federation.tables.test.flat])
        held = set(groups[rows].tolist())
        if spec == "natural":
            assert len(held) >= 3
        writers.append(held | set(tested.tolist()))
    assert writers[0].isdisjoint(writers[1])


def test_what_is_impossible_is_said_in_a_sentence() -> None:
    with pytest.raises(InputError, match="population 'targets' is unknown; did you mean target"):
        FederationConfig(population="targets")
    with pytest.raises(InputError, match="too small to be halved"):
        _tagged(train=1, test=1).members("target")
    with pytest.raises(InputError, match=r"clients is 400.*population proxy is half of the dataset"):
        Federation(FederationConfig(clients=400, partition="iid", population="proxy", delta=1e-6))
