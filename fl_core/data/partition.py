"""Partitions of training samples over clients, from the federated learning literature, by name.

A partition is written `kind` or `kind(parameter)`, for example `iid`, `dirichlet(0.3)` or `classes(2)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fl_core.base.arrays import BoolArray, IndexArray
from fl_core.base.bounds import Bounds
from fl_core.base.errors import InputError, require, require_count, require_name
from fl_core.base.streams import numpy_generator

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
        parts = np.array_split(rng.permutation(len(labels)), clients)
    elif kind == "dirichlet":
        parts = _dirichlet(labels, clients, parameter, rng)
    elif kind == "shards":
        parts = _shards(labels, clients, int(parameter), rng)
    elif kind in ("natural", "largest"):
        parts = _natural(labels, clients, groups, rng if kind == "natural" else None)
    else:
        parts = _classes(labels, clients, _classes_each(labels, kind, parameter, spec), spec, rng)
    return [np.sort(part).astype(np.int64) for part in parts]


def _members(labels: np.ndarray, rng: np.random.Generator) -> list[IndexArray]:
    """Group the samples by class, shuffled within each; classes that do not occur are left out."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    return np.split(order, np.cumsum(sizes)[:-1])


def _dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[IndexArray]:
    """Share each class out by Dir(α), then top up the poorest clients (Yurochkin et al. 2019)."""
    parts: list[list[IndexArray]] = [[] for _ in range(clients)]
    for members in _members(labels, rng):
        proportions = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for part, share in zip(parts, np.split(members, cuts), strict=True):
            part.append(share)
    return _top_up([np.concatenate(part) for part in parts], rng)


def _top_up(parts: list[IndexArray], rng: np.random.Generator) -> list[IndexArray]:
    """Give clients below the minimum random samples of the client that holds most at that moment."""
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < MINIMUM_SAMPLES):
        while sizes[client] < MINIMUM_SAMPLES:
            donor = int(sizes.argmax())
            given = int(rng.integers(sizes[donor]))
            parts[client] = np.append(parts[client], parts[donor][given])
            parts[donor] = np.delete(parts[donor], given)
            sizes[client] += 1
            sizes[donor] -= 1
    return parts


def _shards(labels: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> list[IndexArray]:
    """Deal out contiguous shards of the samples sorted by label (McMahan et al. 2017)."""
    count = clients * each
    require(
        count <= len(labels),
        f"partition is 'shards({each})', but {clients} clients with {each} shards each need {count} samples and there "
        f"are {len(labels)}.",
    )
    shards = np.array_split(np.concatenate(_members(labels, rng)), count)
    owned = rng.permutation(count).reshape(clients, each)
    return [np.concatenate([shards[shard] for shard in row]) for row in owned]


def _classes_each(labels: np.ndarray, kind: str, parameter: float, spec: str) -> int:
    """Compute the number of classes that each client holds."""
    present = len(np.unique(labels))
    each = int(parameter) if kind == "classes" else max(1, round(parameter * present))
    require(each <= present, f"partition is '{spec}', but the samples have only {present} classes.")
    return each


def _classes(labels: np.ndarray, clients: int, each: int, spec: str, rng: np.random.Generator) -> list[IndexArray]:
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
    holds = _draw_holders(_spread(capacity, clients * each, rng), clients, each, rng)
    parts: list[list[IndexArray]] = [[] for _ in range(clients)]
    for member, column in zip(members, holds.T, strict=True):
        holders = rng.permutation(np.flatnonzero(column))
        if len(holders):
            for client, share in zip(holders, np.array_split(member, len(holders)), strict=True):
                parts[client].append(share)
    return [np.concatenate(part) for part in parts]


def _spread(capacity: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Count the clients that hold each class: as evenly as the capacities allow, `total` altogether."""
    level = 0
    while np.minimum(capacity, level + 1).sum() <= total and level < capacity.max():
        level += 1
    holders: np.ndarray = np.minimum(capacity, level)
    rising = rng.permutation(np.flatnonzero(capacity > level))[: total - int(holders.sum())]
    holders[rising] += 1
    return holders


def _draw_holders(holders: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> BoolArray:
    """Draw a bool table [clients, classes] with `each` classes per row and `holders` clients per column.

    Clients choose in turn, classes weighted by the places they have left. A class with as many places as there are
    clients left must be taken; there are never more than `each` of those, so the last client can always be served.
    """
    table = np.zeros((clients, len(holders)), dtype=np.bool_)
    left = holders.copy()
    for client in range(clients):
        # Efraimidis and Spirakis 2006: the largest u^(1/w) are a weighted draw without replacement.
        keys = np.where(left > 0, rng.random(len(left)) ** (1 / np.maximum(left, 1)), -1.0)
        keys[left == clients - client] = 2.0
        chosen = np.argsort(keys)[-each:]
        table[client, chosen] = True
        left[chosen] -= 1
    return table


def _natural(
    labels: np.ndarray, clients: int, groups: np.ndarray | None, rng: np.random.Generator | None
) -> list[IndexArray]:
    """Give each client the samples of one writer, drawn among those with enough of them; without `rng` the largest."""
    if groups is None:
        kind = "largest" if rng is None else "natural"
        raise InputError(f"partition is '{kind}', but this dataset does not say who wrote which sample.")
    groups = np.asarray(groups)
    require(
        groups.shape == labels.shape, f"groups has shape {groups.shape}, but it must be that of labels, {labels.shape}."
    )
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    able = np.flatnonzero(sizes >= MINIMUM_SAMPLES)
    require(
        clients <= len(able),
        f"clients is {clients}, but only {len(able)} writers have the {MINIMUM_SAMPLES} samples that a client needs.",
    )
    samples = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    if rng is None:  # of writers with equally many samples, those with the lower numbers
        return [samples[writer] for writer in np.argsort(-sizes, kind="stable")[:clients]]
    return [samples[writer] for writer in rng.choice(able, clients, replace=False)]
