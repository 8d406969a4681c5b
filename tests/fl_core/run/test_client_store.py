"""Persistent tensors of clients, against one plain array with a row for everybody."""

import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.base.errors import InputError
from fl_core.run.client_store import ClientStore
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.plain import config, plan

RUNS, CLIENTS = 2, 7
LIKE = {"own": torch.zeros(3), "risk": torch.zeros(())}


def made(limit: int = 0) -> ClientStore:
    store = ClientStore(LIKE, RUNS, CLIENTS, torch.device("cpu"), limit)
    for run in range(RUNS):
        store.restart(run, {"own": torch.full((3,), run + 1.0), "risk": torch.tensor(0.5 * run)})
    return store


def start() -> dict[str, np.ndarray]:
    return {
        "own": np.repeat(np.array([[[1.0]], [[2.0]]]), CLIENTS, 1) * np.ones(3),
        "risk": np.repeat(np.array([[0.0], [0.5]]), CLIENTS, 1),
    }


def assert_holds(store: ClientStore, plain: dict[str, np.ndarray]) -> None:
    run, client = (torch.from_numpy(axis.flatten()) for axis in np.indices((RUNS, CLIENTS)))
    rows = store.rows(run, client)
    assert set(rows) == set(plain) == set(store.names)
    for name, value in plain.items():
        np.testing.assert_array_equal(store.everybody(name).numpy(), value)
        np.testing.assert_array_equal(rows[name].numpy(), value.reshape(RUNS * CLIENTS, *value.shape[2:]))


moves = st.lists(
    st.one_of(
        st.tuples(st.just("restart"), st.integers(0, RUNS - 1)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("put"), st.lists(st.sets(st.integers(0, CLIENTS - 1)), min_size=RUNS, max_size=RUNS)),
    ),
    max_size=12,
)


@pytest.mark.parametrize("limit", [0, 1])
@settings(max_examples=80, deadline=None, derandomize=True)
@given(script=moves)
def test_any_course_equals_a_plain_array(limit, script):
    """Whoever takes part, whichever run starts anew, wherever it is saved and read back; in memory and in a file."""
    store, plain = made(limit), start()
    for number, (move, what) in enumerate(script):
        if move == "restart":
            store.restart(what, {"own": torch.full((3,), -float(number)), "risk": torch.tensor(9.0)})
            plain["own"][what], plain["risk"][what] = -float(number), 9.0
        elif move == "save":
            store = made(limit).with_tensors(store.tensors())
        else:
            members = [np.array(sorted(one), dtype=np.int64) for one in what]
            store.seat(members)
            run = torch.from_numpy(np.repeat(np.arange(RUNS), [len(one) for one in members]))
            client = torch.from_numpy(np.concatenate(members))
            values = torch.arange(3.0 * len(run)).view(-1, 3) + number
            store.put("own", run, client, values)
            store.put("risk", run, client, values[:, 0])
            place = (run.numpy(), client.numpy())
            plain["own"][place], plain["risk"][place] = values.numpy(), values[:, 0].numpy()
        assert_holds(store, plain)


def test_only_those_who_took_part_take_memory_and_their_places_are_used_again():
    store = ClientStore(LIKE, 1, 1_000_000, torch.device("cpu"))
    store.restart(0, {name: value + 1 for name, value in LIKE.items()})
    for episode in range(5):
        for first in range(0, 40, 10):
            store.seat([np.arange(first, first + 10) * 1000 + episode])
        assert len(store.tensors()["kept.own"]) == 40
        store.restart(0, LIKE)
    assert len(store._values["own"]) <= 1 + 2 * 40


def test_past_the_limit_tensors_lie_in_a_file_that_is_gone_with_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ClientStore({"own": torch.zeros(1000)}, 1, 100, torch.device("cpu"), memory_limit=50_000)
    store.seat([np.arange(5)])
    assert not _is_mapped(store)
    store.seat([np.arange(50)])
    assert _is_mapped(store)
    assert list(tmp_path.iterdir()) == []


def _is_mapped(store: ClientStore) -> bool:
    """True if the first tensor lies in a mapped file that has no name any more."""
    place = next(iter(store._values.values())).data_ptr()
    with open("/proc/self/maps") as maps:
        spans = [(line.split()[0].split("-"), line) for line in maps]
    return any(int(low, 16) <= place < int(high, 16) and "deleted" in line for (low, high), line in spans)


def test_a_place_that_cannot_hold_them_is_told(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    store = ClientStore({"own": torch.zeros(1000)}, 1, 100, torch.device("cpu"), memory_limit=1)
    with pytest.raises(InputError, match=r"client_memory_mib is exceeded, and '/nonexistent' cannot hold what"):
        store.seat([np.arange(5)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("took_part", torch.tensor([[0, 7]])),
        ("took_part", torch.tensor([[2, 0]])),
        ("took_part", torch.tensor([[0, 1], [0, 1]])),
        ("took_part", torch.tensor([0, 1])),
        ("took_part", torch.tensor([[0.0, 1.0]])),
        ("kept.own", torch.zeros(2, 3)),
        ("kept.own", torch.zeros(1, 3, dtype=torch.float64)),
        ("start.risk", torch.zeros(3)),
    ],
)
def test_saved_tensors_that_do_not_fit_are_refused(name, value):
    store = made()
    store.seat([np.array([3]), np.array([], dtype=np.int64)])
    with pytest.raises(InputError, match=rf"clients\.{name} of the saved run"):
        made().with_tensors(store.tensors() | {name: value})


def test_a_run_whose_clients_lie_in_a_file_equals_one_in_memory():
    """fedper keeps heads; the file is used from the first byte past 1 MiB."""
    settings = {"clients": 200, "sampling_rate": 0.5, "rounds": 3, "partition": "iid", "delta": 1e-3}
    found = []
    for limit in (0, 1):
        federation = Federation(config("local-only", **settings, client_memory_mib=limit))
        for _ in range(3):
            report = federation.run_round(plan(), evaluate=True)
        found.append((federation.clients, report.figures["personal_loss"], _is_mapped(federation.state.clients)))
    (memory, loss, no), (file, same, yes) = found
    assert (no, yes) == (False, True)
    assert loss == same
    assert all(torch.equal(memory[name], file[name]) for name in memory)


def test_a_federation_of_many_keeps_the_tensors_of_its_cohorts_only():
    federation = Federation(
        FederationConfig(method="fedper", clients=600, partition="iid", sampling_rate=0.02, rounds=2, delta=1e-4)
    )
    federation.run_round(RoundPlan.constant(1))
    saved = federation.state_dict()["tensors"]
    assert 0 < len(saved["clients.kept.local"]) < 40
    again = Federation(federation.config)
    again.load_state_dict(federation.state_dict())
    assert torch.equal(again.clients["local"], federation.clients["local"])
