"""Whole rounds on a stand-in for a GPU: nothing is mixed with the CPU, nothing waits, and figures are read once."""

import contextlib
import math
import warnings

import numpy as np
import pytest
import torch

import fl_core.run.footprint as footprint
from fl_core.base import transfers
from fl_core.data.datasets import Dataset
from fl_core.models.catalog import MODELS
from fl_core.privacy.mechanism import PLACEMENTS
from fl_core.privacy.telemetry import TELEMETRY
from fl_core.recipes.catalog import METHODS
from fl_core.recipes.recipe import GUARANTEES
from fl_core.run.client_store import ClientStore
from fl_core.run.config import FederationConfig
from fl_core.run.evaluation import EVALUATED
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from fl_core.run.release import Releaser
from fl_core.training.optimizers import OPTIMIZERS
from tests.fl_core.stand_in import DEVICE, Refused, StandIn, There, stand_in

torch.set_num_threads(1)
READ_BEFORE = {("fedglp-adp", "as-published")}
"""Charged for what its clients' own layer weights certify of the noise: read before the round, beside the figures."""


COMPARED = ("adp-pfl", "fed-smp", "feddpa", "fedglp-adp")
"""Methods of which the numbers are compared with those of the CPU; the settings compare those of dp-fedavg."""


def config_of(method: str = "dp-fedavg", **changes) -> FederationConfig:
    base = {
        "model": "mlp-small",
        "clients": 5,
        "rounds": 3,
        "local_steps": 2,
        "batch_size": 4,
        "evaluation_samples": 40,
    }
    base |= {"executor": "vectorized", "delta": 1e-3, "epsilon": 8.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if METHODS.find(method).private or not METHODS.find(method).exchanges:
            return FederationConfig(**base | {"method": method} | changes)
        return FederationConfig(**base | {"method": method, "epsilon": math.inf} | changes)


def played(federation: Federation, rounds: int = 2, device: StandIn | None = None) -> tuple[list, list[int]]:
    """Figures of rounds, and how often each read from the device."""
    plan = RoundPlan.constant(federation.runs, clip_norm=0.5, server_learning_rate=0.9)
    figures, reads = [], []
    for _ in range(rounds):
        before = device.reads if device else 0
        figures.append(federation.run_round(plan, evaluate=True).figures)
        reads.append(device.reads - before if device else 0)
    return figures, reads


def played_there(config: FederationConfig, dataset: Dataset | None = None, rounds: int = 2) -> tuple[list, list[int]]:
    with stand_in() as device:
        federation = Federation(config, 2, dataset)
        assert isinstance(federation.server, There)
        device.playing = True
        return played(federation, rounds, device)


def same(there: list, here: list) -> None:
    for ours, theirs in zip(there, here, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            # Equal scores may be chosen among otherwise where the GPU's bound of a count is not the CPU's.
            np.testing.assert_allclose(ours[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_plays_on_a_device_and_is_read_once_a_round(method, guarantee):
    config = config_of(method, guarantee=guarantee)
    figures, reads = played_there(config)
    assert reads == [2 if (method, guarantee) in READ_BEFORE else 1] * 2
    if method in COMPARED and guarantee == "sound":
        same(figures, played(Federation(config, 2))[0])


EVERYTHING = ",".join(TELEMETRY)
SETTINGS = {
    **{f"{place} noise": {"placement": place} for place in PLACEMENTS},
    **{name: {"optimizer": name, "weight_decay": 0.01} for name in OPTIMIZERS},
    "momentum": {"momentum": 0.5},
    "one by one": {"executor": "sequential"},
    "timed": {"executor": "auto"},
    "chunks": {"memory_limit_mib": 1, "batch_size": 64},
    "Poisson cohorts, empty ones as well": {"sampling_rate": 0.2},
    "fixed cohorts": {"sampling": "fixed", "sampling_rate": 0.4},
    "empty cohorts of noisy uploads": {"sampling_rate": 0.2, "placement": "distributed"},
    "telemetry": {"telemetry_share": 0.2, "telemetry": EVERYTHING},
    "a clip bit": {"bit_noise": 4.0},
    "epochs": {"local_epochs": 1},
    "budgets": {"client_epsilon": "2,8"},
    "classes": {"evaluation": "classes"},
    "the whole test set": {"evaluation": "whole"},
    "some clients": {"evaluation_clients": 3},
    "changed images": {"augmentation": "crop(1),flip", "input_normalization": "0.5/0.5", "model": "cnn2"},
    "secret noise": {"noise": "secret"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_plays_on_a_device_and_is_read_once_a_round(name):
    config = config_of(**SETTINGS[name])
    figures, reads = played_there(config)
    assert reads == [1, 1]
    if name in ("local noise", "adam", "empty cohorts of noisy uploads", "telemetry", "changed images"):
        same(figures, played(Federation(config, 2))[0])


ASIDE = {
    "stacked": {},
    "one by one": {"executor": "sequential", "momentum": 0.5},
    "timed": {"executor": "auto"},
    "chunks": {"memory_limit_mib": 1, "batch_size": 64},
    "Fisher information": {"method": "feddpa"},
    "risk": {"method": "adp-pfl"},
    "adapted copies": {"method": "pmtl-ft"},
    "telemetry of accuracies": {"telemetry_share": 0.2, "telemetry": EVERYTHING},
    "cohorts of random size": {"sampling_rate": 0.4, "local_epochs": 0.5},
    "classes": {"evaluation": "classes"},
    "some clients": {"evaluation_clients": 3},
    "changed images": {"augmentation": "crop(1),flip", "input_normalization": "0.5/0.5", "model": "cnn2"},
}
"""Settings that read images in a way of their own."""


def large_set() -> Dataset:
    """Random images of 1.1 MiB, more than `image_memory_mib=1`."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1600, 1, 28, 28), generator=draw).to(torch.uint8)
    labels = torch.arange(1600) % 10
    return Dataset("random", images[:1500], labels[:1500], images[1500:], labels[1500:], classes=10, scale=255.0)


def equal(found: list, expected: list) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value, err_msg=name)


@pytest.mark.parametrize("name", ASIDE)
def test_images_that_do_not_fit_stay_on_the_host_and_change_nothing(name):
    changes = {"partition": "iid", "clients": 10} | ASIDE[name]
    method = changes.pop("method", "dp-fedavg")
    there, aside = config_of(method, **changes), config_of(method, image_memory_mib=1, **changes)
    figures, reads = played_there(aside, large_set())
    assert reads == [1, 1]
    if name != "timed":  # may choose otherwise
        equal(figures, played_there(there, large_set())[0])
        here = Federation(aside, 2, large_set())
        assert here.images.aside
        equal(played(here)[0], played(Federation(there, 2, large_set()))[0])


def test_images_take_half_of_the_free_memory_of_a_device_at_most(monkeypatch):
    for free, fits in ((2.0**20, False), (2.0**22, True)):
        monkeypatch.setattr(footprint, "free_bytes", lambda device, free=free: free)
        with stand_in():
            placed, aside = footprint.place_images(large_set(), DEVICE, 0)
            assert aside == (not fits)
            assert isinstance(placed.train_images, There) == fits
            assert isinstance(placed.train_labels, There)


def test_rows_that_are_on_the_device_alone_are_read_back_for_images_on_the_host():
    with stand_in() as device:
        federation = Federation(config_of(image_memory_mib=1, partition="iid"), 1, large_set())
        run, client = torch.zeros(2, dtype=torch.int64, device=DEVICE), torch.arange(2, device=DEVICE)
        device.playing = True
        federation.fisher(federation.server.expand(2, -1), run, client)
        assert device.reads == 2


def test_copies_aside_are_waited_for_and_keep_their_memory(monkeypatch):
    asked: list[str] = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            asked.append(f"{self.name} waits for {other.name}")

    class Copy:
        def record_stream(self, stream):
            asked.append(f"kept for {stream.name}")

    @contextlib.contextmanager
    def within(stream):
        asked.append(f"in {stream.name}")
        yield
        asked.append("out")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copying"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("computing"))
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(transfers, "to_device", lambda tensor, device: asked.append("copied") or Copy())
    transfers.to_device_aside(torch.zeros(1), torch.device("cuda:7"))
    assert asked == ["in copying", "copied", "out", "computing waits for copying", "kept for computing"]


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_plays_on_a_device(model, executor):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 3, 32, 32), generator=draw).to(torch.uint8)
    labels = torch.arange(12) % 3
    dataset = Dataset("random", images, labels, images, labels, classes=3, scale=255.0)
    config = config_of(model=model, clients=2, local_steps=1, batch_size=2, executor=executor)
    with stand_in() as device:
        federation = Federation(config, 1, dataset)
        device.playing = True
        figures, reads = played(federation, 1, device)
    assert reads == [1]
    assert np.isfinite(figures[0]["train_loss"]).all()


def test_a_run_is_saved_from_a_device_and_goes_on_there():
    config = config_of("fedper")
    with stand_in() as device:
        federation = Federation(config, 2)
        played(federation, 1, device)
        other = Federation(config, 2)
        other.load_state_dict(federation.state_dict())
        same(played(other, 1, device)[0], played(federation, 1, device)[0])


@pytest.mark.parametrize("limit", [0, 1], ids=["on the device", "in a file"])
def test_what_clients_keep_is_read_only_where_it_lies_on_the_host(limit):
    with stand_in() as device:
        store = ClientStore({"kept": torch.zeros(3, device=DEVICE)}, 1, 4, DEVICE, limit)
        store.restart(0, {"kept": torch.ones(3, device=DEVICE)})
        run, client = torch.zeros(2, dtype=torch.int64, device=DEVICE), torch.arange(2, device=DEVICE)
        device.playing = True
        store.seat([np.array([0, 1])])
        store.put("kept", run, client, torch.full((2, 3), 5.0, device=DEVICE))
        kept = store.get("kept", run, client)
        # Once what was there already, then seats and values that are put, and the seats of what is got.
        assert device.reads == (4 if limit else 0)
        assert kept.cpu().tolist() == [[5.0] * 3] * 2


# ---------------------------------------------------------------- the stand-in itself

PLANTED = {
    "a number": lambda there: there.sum().item(),
    "a branch": lambda there: bool((there > 0).any()),
    "an int": lambda there: int(there.sum()),
    "a list": lambda there: there.tolist(),
    "an array": lambda there: there.numpy(),
    "a tensor of the CPU": lambda there: there + torch.zeros(there.shape),
    "a matrix of the CPU": lambda there: there @ torch.zeros(there.shape[-1], 2),
    "indices of the CPU": lambda there: there[torch.arange(1)],
    "a mask": lambda there: there[there > 0],
    "a mask that is set": lambda there: there.clone().__setitem__(there > 0, 0.0),
    "places": lambda there: (there > 0).nonzero(),
    "different values": lambda there: there.unique(),
    "repeats": lambda there: there[0].repeat_interleave((there[0] > 0).long()),
    "equality": lambda there: torch.equal(there, there),
    "an upload": lambda there: torch.zeros(3).to(there.device),
    "an upload that does not wait": lambda there: torch.zeros(3).to(there.device, non_blocking=True),
    "a list of numbers": lambda there: there[0, :2] + torch.tensor([1.0, 2.0], device=there.device),
}


def with_planted(monkeypatch, plant) -> list[int]:
    release = Releaser.__call__

    def planted(self, cohorts, draw):
        plant(cohorts.updates.flatten(0, 1))
        return release(self, cohorts, draw)

    monkeypatch.setattr(Releaser, "__call__", planted)
    return played_there(config_of(), rounds=1)[1]


@pytest.mark.parametrize("name", PLANTED)
def test_the_device_refuses(name, monkeypatch):
    with pytest.raises((Refused, TypeError, RuntimeError)):
        with_planted(monkeypatch, PLANTED[name])


def test_the_device_counts_what_is_read(monkeypatch):
    assert with_planted(monkeypatch, lambda there: there.cpu()) == [2]


def test_the_device_lets_through_what_a_gpu_does(monkeypatch):
    def harmless(there):
        there.clone()[0] = 2.0
        there * torch.tensor(2.0)
        there[:, 0].masked_fill(there[:, 0] > 0, 1.0)
        torch.zeros(3).pin_memory().to(there.device, non_blocking=True)

    assert with_planted(monkeypatch, harmless) == [1]


def test_evaluation_is_part_of_what_is_read_once():
    assert set(played_there(config_of(), rounds=1)[0][0]) >= EVALUATED
