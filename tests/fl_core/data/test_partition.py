import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.base.errors import InputError
from fl_core.data.partition import MINIMUM_SAMPLES, PARTITIONS, concentration, parse_partition, partition

SPECS = ["iid", "dirichlet(0.05)", "dirichlet(3)", "shards(2)", "classes(2)", "label_skew(0.3)"]
LABELS = np.random.default_rng(0).integers(0, 10, 600)


def classes_of(parts: list[np.ndarray], labels: np.ndarray) -> list[set[int]]:
    return [set(labels[part].tolist()) for part in parts]


def assert_partition(parts: list[np.ndarray], labels: np.ndarray, clients: int) -> None:
    """Sorted, in range, at least the minimum each, no sample twice."""
    assert len(parts) == clients
    together = np.concatenate(parts)
    assert together.dtype == np.int64
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < len(labels)
    for part in parts:
        assert len(part) >= MINIMUM_SAMPLES
        assert np.array_equal(part, np.sort(part))


@st.composite
def requests(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Labels with gaps and rare classes, a number of clients that is possible, a seed."""
    sizes = draw(st.lists(st.integers(0, 25), min_size=1, max_size=8))
    labels = np.repeat(np.arange(len(sizes)) * 3, sizes)
    seed = draw(st.integers(0, 2**40))
    labels = np.random.default_rng(seed).permutation(np.append(labels, [0, 0]))
    return labels, draw(st.integers(1, len(labels) // MINIMUM_SAMPLES)), seed


@settings(max_examples=150, deadline=None, derandomize=True)
@given(requests(), st.sampled_from(["iid", "dirichlet(0.001)", "dirichlet(0.1)", "dirichlet(1e6)", "shards(1)"]))
def test_every_sample_has_one_owner_and_no_client_is_empty(request: tuple[np.ndarray, int, int], spec: str) -> None:
    labels, clients, seed = request
    parts = partition(labels, clients, spec, seed)
    assert_partition(parts, labels, clients)
    assert sum(map(len, parts)) == len(labels)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(requests(), st.integers(1, 6))
def test_classes_are_bounded_or_the_request_is_refused(request: tuple[np.ndarray, int, int], each: int) -> None:
    labels, clients, seed = request
    sizes = np.unique(labels, return_counts=True)[1]
    places = np.minimum(sizes // (2 if each == 1 else 1), clients).sum()
    if each > len(sizes) or places < clients * each:
        with pytest.raises(InputError, match=rf"partition is 'classes\({each}\)', but"):
            partition(labels, clients, f"classes({each})", seed)
        return
    parts = partition(labels, clients, f"classes({each})", seed)
    assert_partition(parts, labels, clients)
    held = classes_of(parts, labels)
    assert all(len(classes) == each for classes in held)
    able = sizes >= (2 if each == 1 else 1)
    assert len(set.union(*held)) == min(clients * each, able.sum())
    for label in set.union(*held):
        shares = [int((labels[part] == label).sum()) for part in parts]
        shares = [share for share in shares if share]
        assert sum(shares) == (labels == label).sum(), "a class that is held is handed out whole"
        assert max(shares) - min(shares) <= 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(requests(), st.integers(1, 5))
def test_shards_give_each_client_its_number_of_label_runs(request: tuple[np.ndarray, int, int], each: int) -> None:
    labels, clients, seed = request
    if clients * each > len(labels):
        with pytest.raises(InputError, match=rf"partition is 'shards\({each}\)'"):
            partition(labels, clients, f"shards({each})", seed)
        return
    parts = partition(labels, clients, f"shards({each})", seed)
    assert_partition(parts, labels, clients)
    assert sum(map(len, parts)) == len(labels)
    assert all(len(part) <= each * -(-len(labels) // (clients * each)) for part in parts)


def test_shards_of_even_classes_bound_the_classes_per_client() -> None:
    labels = np.tile(np.arange(10), 60)  # 20 shards of 30: none crosses a class
    parts = partition(labels, 10, "shards(2)", 0)
    held = classes_of(parts, labels)
    assert all(len(classes) <= 2 for classes in held)
    assert {len(part) for part in parts} == {60}
    assert sum(len(classes) == 2 for classes in held) >= 5, "shards are drawn at random"
    assert held != classes_of(partition(labels, 10, "shards(2)", 1), labels)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(SPECS), st.integers(0, 2**62), st.integers(1, 40))
def test_same_seed_same_partition(spec: str, seed: int, clients: int) -> None:
    first, second = (partition(LABELS, clients, spec, seed) for _ in range(2))
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))


@pytest.mark.parametrize("spec", [*SPECS, "natural"])
def test_different_seeds_differ(spec: str) -> None:
    groups = np.arange(600) % 50
    drawn = {tuple(np.concatenate(partition(LABELS, 20, spec, seed, groups)).tolist()) for seed in range(5)}
    assert len(drawn) == 5


def test_iid_clients_are_even() -> None:
    sizes = [len(part) for part in partition(LABELS, 7, "iid", 1)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == 600


def test_dirichlet_of_a_huge_alpha_is_even() -> None:
    assert [len(part) for part in partition(LABELS, 4, "dirichlet(1e6)", 0)] == pytest.approx([150] * 4, abs=11)


def test_dirichlet_is_more_skewed_for_smaller_alpha() -> None:
    labels = np.tile(np.arange(10), 600)

    def largest_share(alpha: str) -> float:
        """Mean over clients of the share of a client's most frequent class."""
        parts = partition(labels, 10, f"dirichlet({alpha})", 3)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    shares = [largest_share(alpha) for alpha in ("1e6", "10", "1", "0.1")]
    assert shares == sorted(shares)
    assert shares[0] < 0.11
    assert shares[-1] > 0.4


def test_dirichlet_proportions_have_the_variance_of_the_distribution() -> None:
    labels, clients, alpha = np.zeros(100_000, dtype=np.int64), 5, 2.0
    sizes = [[len(part) for part in partition(labels, clients, f"dirichlet({alpha})", seed)] for seed in range(200)]
    shares = np.array(sizes) / len(labels)
    assert shares.mean(0) == pytest.approx(np.full(clients, 0.2), abs=0.03)
    # Var of a Dirichlet share: m(1-m)/(K alpha + 1) with m = 1/K.
    assert shares.var() == pytest.approx(0.2 * 0.8 / (clients * alpha + 1), rel=0.2)


def test_label_skew_gives_the_rounded_fraction_of_the_classes() -> None:
    for fraction, each in ((0.2, 2), (0.26, 3), (0.01, 1), (1, 10)):
        parts = partition(LABELS, 10, f"label_skew({fraction})", 0)
        assert {len(classes) for classes in classes_of(parts, LABELS)} == {each}


def test_classes_are_drawn_not_dealt_in_a_pattern() -> None:
    pairs: set[tuple[int, ...]] = set()
    for seed in range(60):
        pairs |= {tuple(sorted(held)) for held in classes_of(partition(LABELS, 10, "classes(2)", seed), LABELS)}
    assert len(pairs) == 45, "every pair of ten classes comes up"


def test_rare_class_does_not_leave_a_client_empty() -> None:
    labels = np.array([0] * 100 + [1] * 2)
    parts = partition(labels, 50, "classes(1)", 0)
    assert_partition(parts, labels, 50)
    assert sum(classes == {1} for classes in classes_of(parts, labels)) == 1


def test_natural_clients_are_writers_with_enough_samples() -> None:
    groups = np.repeat([7, 3, 9, 5], [4, 1, 2, 3])
    labels = np.arange(10) % 2
    for seed in range(20):
        parts = partition(labels, 2, "natural", seed, groups)
        assert_partition(parts, labels, 2)
        writers = [set(groups[part].tolist()) for part in parts]
        assert all(len(writer) == 1 for writer in writers)
        assert writers[0] != writers[1]
        assert {3} not in writers
        assert all(len(part) == (groups == min(who)).sum() for part, who in zip(parts, writers, strict=True))


@pytest.mark.parametrize(
    ("spec", "parsed"),
    [
        ("iid", ("iid", None)),
        ("natural", ("natural", None)),
        (" dirichlet( 0.3 ) ", ("dirichlet", 0.3)),
        ("dirichlet(1e-2)", ("dirichlet", 0.01)),
        ("dirichlet(.5)", ("dirichlet", 0.5)),
        ("shards(3)", ("shards", 3)),
        ("classes(2)", ("classes", 2)),
        ("label_skew(1)", ("label_skew", 1.0)),
    ],
)
def test_specs_are_parsed(spec: str, parsed: tuple[str, float | None]) -> None:
    assert parse_partition(spec) == parsed


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-1", "0", "", "1_0", "0x1", "1,2", "two", "1e999", "-0.0", "٣", "1)("]
)
@pytest.mark.parametrize("kind", ["dirichlet", "label_skew", "shards", "classes"])
def test_parameters_out_of_range_are_refused(kind: str, value: str) -> None:
    with pytest.raises(InputError, match=r"^partition is '.*', but [^\n]*\.$"):
        parse_partition(f"{kind}({value})")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dirichlet", "dirichlet needs a parameter"),
        ("shards", "shards needs a parameter"),
        ("iid(2)", "iid takes no parameter"),
        ("natural()", "natural takes no parameter"),
        ("shards(1.5)", "whole number of at least 1"),
        ("label_skew(1.01)", r"a number in \[0.001, 1\]"),
        ("drichlet(0.3)", "partition 'drichlet' is unknown; did you mean dirichlet"),
        ("", "partition '' is unknown"),
        ("dirichlet(0.3", "must be written like"),
        ("dirichlet 0.3", "partition 'dirichlet 0.3' is unknown; did you mean dirichlet"),
        (None, "must be written like"),
        (3, "must be written like"),
    ],
)
def test_malformed_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_partition(spec)


@pytest.mark.parametrize(
    ("clients", "spec", "message"),
    [
        (301, "iid", "clients is 301, but 600 samples are enough for 300 at most"),
        (0, "iid", "clients is 0"),
        (True, "iid", "clients is True"),
        (2.0, "iid", "clients is 2.0"),
        (100, "shards(7)", "100 clients with 7 shards each need 700 samples and there are 600"),
        (5, "classes(11)", r"partition is 'classes\(11\)', but the samples have only 10 classes"),
        (100, "classes(9)", "too few samples to give 100 clients 9 each"),
        (5, "natural", "does not say who wrote which sample"),
    ],
)
def test_impossible_requests_are_refused(clients: int, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        partition(LABELS, clients, spec, 0)


def test_more_clients_than_writers_is_refused() -> None:
    with pytest.raises(InputError, match="clients is 4, but only 3 writers have the 2 samples"):
        partition(LABELS, 4, "natural", 0, np.arange(600) % 3)


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="groups has shape"):
        partition(LABELS, 4, "natural", 0, np.zeros(5))


def test_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed is -1"):
        partition(LABELS, 4, "iid", -1)


def test_every_kind_is_explained() -> None:
    assert all(line.startswith(kind) for kind, line in PARTITIONS.items())


@pytest.mark.parametrize(
    "spec", ["iid", "dirichlet(0.05)", "dirichlet(0.5)", "dirichlet(5)", "classes(1)", "classes(3)", "label_skew(0.3)"]
)
def test_the_concentration_of_a_partition_is_what_its_clients_hold_on_average(spec: str) -> None:
    labels = np.repeat(np.arange(10), 4000)
    found = []
    for seed in range(3):
        for part in partition(labels, 100, spec, seed):
            shares = np.bincount(labels[part], minlength=10) / len(part)
            found.append((np.square(shares).sum() - 0.1) / 0.9)
    assert concentration(spec, 10) == pytest.approx(np.mean(found), abs=0.03)


def test_the_concentration_lies_between_all_classes_and_one() -> None:
    assert concentration("shards(1)", 10) == 1
    assert concentration("shards(20)", 10) == 0
    assert concentration("natural", 62) == 0


def test_the_largest_clients_are_the_writers_with_the_most_samples() -> None:
    groups = np.repeat([7, 2, 9, 4, 5], [3, 6, 1, 6, 4])
    for seed in (0, 1):
        parts = partition(np.arange(20) % 3, 3, "largest", seed, groups)
        assert [set(groups[part]) for part in parts] == [{2}, {4}, {5}]
        assert [len(part) for part in parts] == [6, 6, 4]
    with pytest.raises(InputError, match="'largest', but this dataset does not say"):
        partition(np.arange(20) % 3, 3, "largest", 0)
