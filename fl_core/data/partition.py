"""Partitions of training samples over clients, from the federated learning literature, by name.

A partition is written `kind` or `kind(parameter)`, for example `iid`, `dirichlet(0.3)` or `classes(2)`.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from fl_core.base.arrays import IndexArray
from fl_core.base.bounds import Bounds
from fl_core.base.errors import InputError, require, require_count, require_name
from fl_core.base.libraries import numpy as np
from fl_core.base.streams import numpy_generator
from fl_core.data.class_holders import draw_holders, spread_holders

_NOBODY = -1
"""Owner of a sample that no client holds."""
MINIMUM_SAMPLES = 2
"""Every client holds at least one training and one test sample."""

PARTITIONS: Mapping[str, str] = MappingProxyType(
    {
        "iid": "iid: shuffled and dealt out evenly",
        "dirichlet": "dirichlet(alpha): each class is split by shares drawn from Dir(alpha); small alpha, few classes",
        "shards": "shards(s): sorted by label, cut into clients*s shards, s for each client at random",
        "classes": "classes(k): each client holds k classes; a class is shared evenly by those who hold it",
        "label_skew": "label_skew(f): as classes(k), with k the fraction f of all classes (at least 1)",
        "natural": "natural: each client is a writer of the dataset, drawn at random",
        "largest": "largest: the writers with the most samples, a choice that epsilon does not cover",
    }
)
"""Kind -> one line for help texts."""

_WHOLE = frozenset({"shards", "classes"})
_REAL = frozenset({"dirichlet", "label_skew"})
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_PARAMETERS = {
    "dirichlet": Bounds(1e-3, 1e6, "with less each class goes to one client, with more to all alike"),
    "label_skew": Bounds(1e-3, 1, "it is a share of the classes"),
}


def parse_partition(spec: str) -> tuple[str, float | None]:
    """Split a partition's name into its kind and parameter; that of `iid`, `natural` and `largest` is None.

    Raises:
        InputError: the kind is unknown, or its parameter is missing, superfluous or out of range.
    """
    match = re.fullmatch(r"([^()]*)(?:\((.*)\))?", spec.strip()) if isinstance(spec, str) else None
    require(match is not None, f"partition is '{spec}', but it must be written like iid or dirichlet(0.3).")
    assert match is not None
    kind, written = match[1].strip(), match[2]
    require_name("partition", kind, PARTITIONS)
    if kind not in _WHOLE | _REAL:
        require(written is None, f"partition is '{spec}', but {kind} takes no parameter.")
        return kind, None
    require(written is not None, f"partition is '{spec}', but {kind} needs a parameter: {PARTITIONS[kind]}.")
    return kind, _parameter(spec, kind, written.strip())


def concentration(spec: str, classes: int) -> float:
    """Rate how few classes a client holds, from the partition's name alone: 0 for all evenly, 1 for a single one.

    (E Σ_k p_k² − 1/K) / (1 − 1/K), with p_k the shares of the K classes in a client's samples: 1/(Kα + 1) for shares
    drawn from Dir(α), (K − s)/(s(K − 1)) for s equal ones. The name `natural` does not say who owns which sample; it
    counts as 0.
    """
    kind, parameter = parse_partition(spec)
    if kind in ("iid", "natural", "largest") or parameter is None:
        return 0.0
    if kind == "dirichlet":
        return 1 / (classes * parameter + 1)
    held = max(1, round(parameter * classes)) if kind == "label_skew" else parameter
    return max(0.0, (classes - held) / (held * (classes - 1)))


def _parameter(spec: str, kind: str, written: str) -> float:
    if kind in _WHOLE:
        value = float(written) if re.fullmatch("[0-9]{1,9}", written) else math.nan
        require(value >= 1, f"partition is '{spec}', but the parameter of {kind} must be a whole number of at least 1.")
        return int(value)
    value = float(written) if _NUMBER.fullmatch(written) else math.nan
    bounds = _PARAMETERS[kind]
    allowed = f"{bounds.allowed}: {bounds.why}"
    require(bounds.hold(value), f"partition is '{spec}', but the parameter of {kind} must be {allowed}.")
    return value


def partition(
    labels: np.ndarray, clients: int, spec: str, seed: int, groups: np.ndarray | None = None
) -> list[IndexArray]:
    """Distribute samples over clients.

    Args:
        labels: integer [n], the label of each sample.
        clients: number of clients, at least 1.
        spec: a name as `parse_partition` reads it.
        seed: the run's seed; the draws come from its stream `partition`.
        groups: integer [n], the natural client of each sample; needed by `natural` and `largest` only.

    Returns:
        For each client the sorted indices of its samples, at least `MINIMUM_SAMPLES`; no sample has two owners.

    Raises:
        InputError: the name is wrong, or the request cannot be met with these samples.
    """
    sample, owner = partition_owners(labels, clients, spec, seed, groups)
    return np.split(sample, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def partition_owners(
    labels: np.ndarray, clients: int, spec: str, seed: int, groups: np.ndarray | None = None
) -> tuple[IndexArray, IndexArray]:
    """Distribute samples over clients, as two arrays, which a million clients fit into; see `partition`.

    Returns:
        The samples that have an owner, and their owners, sorted by owner and then by sample.
    """
    kind, written = parse_partition(spec)
    parameter = written or 0.0
    require_count("clients", clients)
    require_count("seed", seed, least=0)
    labels = np.asarray(labels)
    require(labels.ndim == 1, f"labels has shape {labels.shape}, but it must have one dimension.")
    require(
        len(labels) >= MINIMUM_SAMPLES * clients,
        f"clients is {clients}, but {len(labels)} samples are enough for {len(labels) // MINIMUM_SAMPLES} at most, "
        f"with {MINIMUM_SAMPLES} each.",
    )
    rng = numpy_generator(seed, "partition")
    if kind == "iid":
        owner = _dealt(len(labels), rng.permutation(len(labels)), np.arange(clients))
    elif kind == "dirichlet":
        owner = _dirichlet(labels, clients, parameter, rng)
    elif kind == "shards":
        owner = _shards(labels, clients, int(parameter), rng)
    elif kind in ("natural", "largest"):
        owner = _natural(labels, clients, groups, rng if kind == "natural" else None)
    else:
        owner = _classes(labels, clients, _classes_each(labels, kind, parameter, spec), spec, rng)
    sample = np.flatnonzero(owner != _NOBODY)
    sample = sample[np.argsort(owner[sample], kind="stable")]
    return sample, owner[sample]


def _dealt(count: int, samples: IndexArray, owners: IndexArray) -> IndexArray:
    """Give each owner, in turn, an even stretch of the samples; the owner of each of `count` samples."""
    owner = np.full(count, _NOBODY)
    owner[samples] = np.repeat(owners, _even_sizes(len(samples), len(owners)))
    return owner


def _even_sizes(samples: int, parts: int) -> IndexArray:
    """Sizes of parts that differ by one at most, the larger ones first."""
    return samples // parts + (np.arange(parts) < samples % parts)


def _members(labels: np.ndarray, rng: np.random.Generator) -> list[IndexArray]:
    """Group the samples by class, shuffled within each; classes that do not occur are left out."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    return np.split(order, np.cumsum(sizes)[:-1])


def _dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> IndexArray:
    """Share each class out by Dir(α), then top up the poorest clients (Yurochkin et al. 2019)."""
    owner = np.full(len(labels), _NOBODY)
    classes = _members(labels, rng)
    for members in classes:
        proportions = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return _top_up(owner, np.concatenate(classes), clients, rng)


def _top_up(owner: IndexArray, order: IndexArray, clients: int, rng: np.random.Generator) -> IndexArray:
    """Give clients below the minimum random samples of the client that holds most at that moment.

    Args:
        owner: of each sample `[n]`.
        order: the samples `[n]`, in the order in which owners list theirs.
        clients: number of clients.
        rng: draws the samples that are given away.
    """
    sizes = np.bincount(owner, minlength=clients)
    poor = np.flatnonzero(sizes < MINIMUM_SAMPLES)
    if not len(poor):
        return owner
    listed = order[np.argsort(owner[order], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    richest = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(richest)
    lists: dict[int, list[int]] = {}
    for client in np.repeat(poor, MINIMUM_SAMPLES - sizes[poor]).tolist():
        size, donor = richest[0]
        if donor not in lists:
            lists[donor] = listed[starts[donor] : starts[donor] + sizes[donor]].tolist()
        owner[lists[donor].pop(int(rng.integers(-size)))] = client
        heapq.heapreplace(richest, (size + 1, donor))  # who is poor never gets as many as those who give
    return owner


def _shards(labels: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> IndexArray:
    """Deal out contiguous shards of the samples sorted by label (McMahan et al. 2017)."""
    count = clients * each
    require(
        count <= len(labels),
        f"partition is 'shards({each})', but {clients} clients with {each} shards each need {count} samples and there "
        f"are {len(labels)}.",
    )
    ordered = np.concatenate(_members(labels, rng))
    owner_of_shard = np.empty(count, dtype=np.int64)
    owner_of_shard[rng.permutation(count)] = np.repeat(np.arange(clients), each)
    return _dealt(len(labels), ordered, owner_of_shard)


def _classes_each(labels: np.ndarray, kind: str, parameter: float, spec: str) -> int:
    """Compute the number of classes that each client holds."""
    present = len(np.unique(labels))
    each = int(parameter) if kind == "classes" else max(1, round(parameter * present))
    require(each <= present, f"partition is '{spec}', but the samples have only {present} classes.")
    return each


def _classes(labels: np.ndarray, clients: int, each: int, spec: str, rng: np.random.Generator) -> IndexArray:
    """Deal each class out evenly among the clients that hold it (Li et al. 2022, "#C = k")."""
    members = _members(labels, rng)
    # With two classes or more, one sample of each is enough for a client.
    least = MINIMUM_SAMPLES if each == 1 else 1
    capacity = np.minimum([len(member) // least for member in members], clients)
    require(
        int(capacity.sum()) >= clients * each,
        f"partition is '{spec}', but the classes have too few samples to give {clients} clients {each} each; "
        "ask for fewer clients or fewer classes.",
    )
    holds = draw_holders(spread_holders(capacity, clients * each, rng), clients, each, rng)
    owner = np.full(len(labels), _NOBODY)
    for member, column in zip(members, holds.T, strict=True):
        holders = rng.permutation(np.flatnonzero(column))
        if len(holders):
            owner[member] = np.repeat(holders, _even_sizes(len(member), len(holders)))
    return owner


def _natural(
    labels: np.ndarray, clients: int, groups: np.ndarray | None, rng: np.random.Generator | None
) -> IndexArray:
    """Give each client the samples of one writer, drawn among those with enough of them; without `rng` the largest."""
    if groups is None:
        kind = "largest" if rng is None else "natural"
        raise InputError(f"partition is '{kind}', but this dataset does not say who wrote which sample.")
    groups = np.asarray(groups)
    require(
        groups.shape == labels.shape, f"groups has shape {groups.shape}, but it must be that of labels, {labels.shape}."
    )
    _, writer, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    able = np.flatnonzero(sizes >= MINIMUM_SAMPLES)
    require(
        clients <= len(able),
        f"clients is {clients}, but only {len(able)} writers have the {MINIMUM_SAMPLES} samples that a client needs.",
    )
    largest = np.argsort(-sizes, kind="stable")[:clients]  # of equally large writers those with the lower numbers
    chosen = largest if rng is None else rng.choice(able, clients, replace=False)
    client_of = np.full(len(sizes), _NOBODY)
    client_of[chosen] = np.arange(clients)
    return client_of[writer]
