"""The range of the clip norm follows what is given, for the controller that it is given to alone."""

from __future__ import annotations

import pytest

from envs import Setting
from envs.playing import decisions
from experiments.contenders.bench import Bench
from experiments.contenders.preparing import check, parse_contenders
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings

SMALL = {"clients": 6, "rounds": 3, "local_steps": 1, "instances": "test", "executor": "vectorized"}


def applied(spec: str) -> tuple[tuple[float, float], list[float]]:
    """The range of the knob for a controller, and the clip norms that its rounds had."""
    bench = Bench(Setting.of("digits", **SMALL))
    (contender,) = parse_contenders([spec])
    check([contender], bench)
    core = contender.core(bench)
    core.reset([0], [RunSettings(seed=1)])
    for _ in decisions(core, contender.policy(core)):
        pass
    return core.task.clip_range, [float(one["clip_norm"]) for one in core.history[0]]


@pytest.mark.parametrize(
    ("spec", "clip_range", "clips"),
    [
        ("fixed:0.01", (0.01, 8.0), [0.01] * 3),
        ("fixed:30", (0.1, 30.0), [30.0] * 3),
        ("fixed:0.5", (0.1, 8.0), [0.5] * 3),
        ("constant:clip_norm=0.02,server_learning_rate=0.5", (0.02, 8.0), [0.02] * 3),
        ("exponential-decay:20:0.05", (0.05, 20.0), [20.0, 1.0, 0.05]),
        ("linear-decay:0.05:0.01", (0.01, 8.0), [0.05, 0.03, 0.01]),
        ("server-lr-decay:0.01:0.5", (0.01, 8.0), [0.01] * 3),
        ("tail-average:2:0.01", (0.01, 8.0), [0.01] * 3),
    ],
)
def test_a_given_clip_norm_is_applied_outside_the_tasks_range(
    spec: str, clip_range: tuple[float, float], clips: list[float]
) -> None:
    found_range, found = applied(spec)
    assert found_range == clip_range
    assert found == pytest.approx(clips, rel=1e-6)


def test_other_controllers_of_a_command_keep_the_tasks_range() -> None:
    bench = Bench(Setting.of("digits", **SMALL))
    wide, usual = parse_contenders(["fixed:0.01", "fixed:0.5"])
    assert wide.core(bench).task.clip_range == (0.01, 8.0)
    assert usual.core(bench).task.clip_range == (0.1, 8.0)
    assert wide.core(bench).setting == usual.core(bench).setting.holding([0.01])
    record = wide.core(bench).setting.as_record()
    assert record["lowest_clip_norm"] == 0.01
    assert Setting.from_record(record) == wide.core(bench).setting


@pytest.mark.parametrize(
    "spec", ["fixed:1e7", "constant:clip_norm=1e-9", "linear-decay:1:1e-8", "constant:clip_norm=-1"]
)
def test_what_is_no_clip_norm_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"clip_norm is .*, but it must be a number in \[1e-06, 1e\+06\]"):
        check(parse_contenders([spec]), Bench(Setting.of("digits", **SMALL)))
