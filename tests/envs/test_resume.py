import json

import numpy as np
import pytest

from envs import make_core
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings

SETTINGS = {"rounds": 5, "clients": 8, "executor": "vectorized", "sampling_rate": 0.5}


def act(core, index):
    core.step(np.full((core.runs, len(core.knobs)), 0.3 * index - 0.5))


@pytest.mark.parametrize(
    "extra",
    [
        {"method": "fedper"},
        {"signals": "accounted"},
        {"signals": "paper", "reward": "paper"},
        {"method": "fedavg", "epsilon": float("inf"), "knobs": "none"},  # its epsilon spent is no number of JSON
    ],
)
def test_a_saved_environment_continues_bit_for_bit(extra):
    core = make_core(2, **SETTINGS, **extra)
    core.reset([0, 1], [RunSettings(seed=5), RunSettings(seed=6)])
    for index in range(2):
        act(core, index)
    state = core.state_dict()
    state["plain"] = json.loads(json.dumps(state["plain"], allow_nan=False))
    other = make_core(2, **SETTINGS, **extra)
    other.load_state_dict(state)
    assert np.array_equal(core.observe(), other.observe())
    for index in range(2, 5):
        act(core, index)
        act(other, index)
        assert np.array_equal(core.observe(), other.observe())
    assert core.finished.all()
    assert other.finished.all()
    assert core.history == other.history
    assert [core.final_accuracy(row) for row in (0, 1)] == [other.final_accuracy(row) for row in (0, 1)]


def test_a_state_of_other_settings_is_refused():
    core = make_core(1, **SETTINGS)
    core.reset([0], [RunSettings(seed=5)])
    with pytest.raises(InputError, match="rounds of the saved run is 5"):
        make_core(1, **SETTINGS | {"rounds": 6}).load_state_dict(core.state_dict())
