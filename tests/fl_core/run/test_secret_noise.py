"""Secret noise: its key comes from the operating system, stays in memory, and is asked for before a run goes on."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

import fl_core.run.federation as federation_module
from fl_core.base.errors import InputError
from fl_core.base.streams import secret_mark
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

SMALL: dict[str, Any] = {
    "clients": 6,
    "rounds": 4,
    "partition": "iid",
    "executor": "vectorized",
    "sampling_rate": 0.5,
    "telemetry_share": 0.1,
    "local_steps": 1,
    "delta": 0.1,
}
PLAN = RoundPlan.constant(1, 0.5)


def federation_of(noise: str, **settings: Any) -> Federation:
    federation = Federation(FederationConfig(**SMALL | settings, noise=noise))
    federation.start([0], [RunSettings(seed=7)])
    return federation


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"placement": "local"},
        {"method": "adp-pfl"},
        {"method": "adp-pfl", "placement": "distributed", "telemetry": "clip-bit,accuracy,loss"},
    ],
)
def test_two_secret_runs_of_one_seed_share_all_but_their_noise(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = iter(bytes([place]) * 32 for place in range(9))
    monkeypatch.setattr(federation_module, "new_secret", lambda: next(keys))  # any keys, but the same in every test
    told: list[list[np.ndarray]] = []
    releases, paid = [], []
    for _ in range(2):
        federation = federation_of("secret", **settings)
        cohorts = []
        draw = federation.draw_cohort
        monkeypatch.setattr(federation, "draw_cohort", lambda *a, d=draw, c=cohorts: c.append(d(*a)) or c[-1])
        batches = []
        plain = federation.executor.train
        monkeypatch.setattr(
            federation.executor, "train", lambda w, i, p=plain, b=batches: (b.append(w.batches), p(w, i))[1]
        )
        report = federation.run_round(PLAN)
        releases.append(federation.last_release.clone())
        paid.append({name: float(x[0]) for name, x in report.figures.items() if report.signal_class(name) != "raw"})
        told.append([cohorts[-1].client.numpy(), *(one.numpy() for one in batches[0])])
    for own, other in zip(*told, strict=True):
        np.testing.assert_array_equal(own, other)
    assert not torch.isclose(releases[0], releases[1]).any()
    noised = [name for name in paid[0] if name.endswith("_noised") and name != "risk_noised"]  # that one is clamped
    assert noised
    for name in noised:
        assert paid[0][name] != paid[1][name], name


def test_seeded_noise_does_not_change_by_this_and_has_no_key() -> None:
    own, other = federation_of("seeded"), federation_of("seeded")
    assert own.secrets == [b""]
    for one in (own, other):
        one.run_round(PLAN)
    assert torch.equal(own.last_release, other.last_release)
    assert own.state_dict()["plain"]["noise_keys"] == [""]


def test_every_run_has_a_key_of_its_own_which_no_state_or_text_tells() -> None:
    federation = Federation(FederationConfig(**SMALL, noise="secret"), runs=3)
    first = list(federation.secrets)
    federation.start([1], [RunSettings(seed=1)])
    assert len({*first, *federation.secrets}) == 4
    assert [len(key) for key in federation.secrets] == [32] * 3
    assert federation.secrets[0] == first[0]
    state = federation.state_dict()
    text = json.dumps(state["plain"]) + repr(federation) + repr(federation.config) + repr(federation.settings)
    for key in federation.secrets:
        assert key.hex() not in text
        assert repr(key) not in text
        assert secret_mark(key) in text
        for tensor in state["tensors"].values():
            assert key not in tensor.contiguous().numpy().tobytes()


def test_a_saved_run_goes_on_bit_for_bit_with_its_key_alone() -> None:
    federation = federation_of("secret")
    federation.run_round(PLAN)
    state = copy.deepcopy(federation.state_dict())
    key = federation.secrets[0]
    federation.run_round(PLAN)
    other = federation_of("secret")
    before = other.state_dict()
    with pytest.raises(InputError, match="secret, and its key is not the one here: without it the run cannot go on"):
        other.load_state_dict(state)
    assert other.state_dict()["plain"] == before["plain"]
    other.secrets[0] = b""
    with pytest.raises(InputError, match="without it the run cannot go on"):
        other.load_state_dict(state)
    state["plain"]["noise_keys"] = [""]  # who takes the mark away has seeded noise, which the run had not
    other.secrets[0] = key
    with pytest.raises(InputError, match="key is not the one here"):
        other.load_state_dict(state)
    state["plain"]["noise_keys"] = [secret_mark(key)]
    other.load_state_dict(state)
    assert other.secrets == [key]
    other.run_round(PLAN)
    assert torch.equal(other.last_release, federation.last_release)
    assert torch.equal(other.server, federation.server)


def test_a_source_of_noise_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="noise 'secrt' is unknown; did you mean secret"):
        FederationConfig(noise="secrt")
    with pytest.raises(InputError, match="noise is 'secret', but a comparison simulates runs that their seeds repeat"):
        FederationConfig(noise="secret").require_seeded_noise("a comparison")
