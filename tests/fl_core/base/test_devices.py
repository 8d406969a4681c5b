"""Names of devices: numbers of CUDA devices are read, and those that are not there are refused in a sentence."""

from __future__ import annotations

import pytest
import torch

from agents.config import TrainingConfig
from fl_core.base.devices import check_device, find_device
from fl_core.base.errors import InputError
from fl_core.data.datasets import load_dataset
from fl_core.run.config import FederationConfig


def cuda_devices(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("make", [FederationConfig, TrainingConfig])
def test_a_numbered_device_is_taken_where_it_is_there(monkeypatch, make):
    cuda_devices(monkeypatch, 2)
    for device in ("cuda", "cuda:0", "cuda:1"):
        assert make(device=device).device == device
    assert FederationConfig(device="cuda:1").resolve_device() == torch.device("cuda", 1)


def test_a_dataset_is_refused_a_device_that_is_not_there(monkeypatch):
    cuda_devices(monkeypatch, 1)
    with pytest.raises(InputError, match=r"^device is 'cuda:7', but this machine has cuda:0\.$"):
        load_dataset("digits", device="cuda:7")


@pytest.mark.parametrize("make", [FederationConfig, TrainingConfig])
@pytest.mark.parametrize(
    ("count", "device", "sentence"),
    [
        (0, "cuda", "device is 'cuda', but this machine has no usable CUDA device; use cpu or auto."),
        (0, "cuda:1", "device is 'cuda:1', but this machine has no usable CUDA device; use cpu or auto."),
        (1, "cuda:1", "device is 'cuda:1', but this machine has cuda:0."),
        (3, "cuda:3", "device is 'cuda:3', but this machine has cuda:0 to cuda:2."),
    ],
)
def test_a_device_that_is_not_there_is_refused_in_a_sentence(monkeypatch, make, count, device, sentence):
    cuda_devices(monkeypatch, count)
    with pytest.raises(InputError) as refused:
        make(device=device)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("device", ["cuda:", "cuda:-1", "cuda:x", "cuda:1\n", "cuda:99999", "cpu:0", "CUDA:0", 1, None])
def test_what_is_no_device_is_unknown(monkeypatch, device):
    cuda_devices(monkeypatch, 2)
    with pytest.raises(InputError, match=r"device .* is unknown"):
        check_device(device)


def test_auto_takes_the_first_cuda_device_or_the_cpu(monkeypatch):
    cuda_devices(monkeypatch, 2)
    assert find_device("auto") == torch.device("cuda")
    cuda_devices(monkeypatch, 0)
    assert find_device("auto") == torch.device("cpu")
