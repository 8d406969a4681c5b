"""Searching a family's parameters: the plan and its cost, and that the best is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs import Setting, make_core
from experiments.contenders.bench import Bench, Needs
from experiments.contenders.environments import Environments
from experiments.contenders.preparing import make_players, parse_contender
from experiments.contenders.search import Rung, grid, play_each, rungs, search_runs
from experiments.workers.runner import Watch
from fl_core.base.errors import InputError
from policies import View, make_controller, parse_controller

SMALL: dict[str, Any] = {
    "task": "digits",
    "clients": 6,
    "rounds": 2,
    "local_steps": 1,
    "executor": "vectorized",
    "evaluation_samples": 50,
}


def test_stages_end_with_all_instances_and_reuse_what_was_run() -> None:
    assert rungs(36, 8) == (Rung(36, 2), Rung(12, 4), Rung(4, 8))
    assert search_runs(rungs(36, 8)) == 36 * 2 + 12 * 2 + 4 * 4
    assert rungs(13, 1) == (Rung(13, 1),)
    assert rungs(4, 3) == (Rung(4, 2), Rung(2, 3))


@pytest.mark.parametrize(
    ("family", "count"),
    [("fixed", 13), ("exponential-decay", 36), ("server-lr-decay", 52), ("exponential-decay:2:0.5", None)],
)
def test_grids_lie_inside_the_ranges(family: str, count: int | None) -> None:
    spec = parse_controller(family)
    view = View.of(make_core(1, **SMALL, knobs=spec.knobs))
    if count is None:
        with pytest.raises(InputError, match="leaves nothing to search"):
            grid(spec, view)
        return
    made = grid(spec, view)
    assert len(made) == count
    assert all(0.1 < one["clip_norm" if "clip_norm" in one else "start"] < 8 for one in made)
    assert len({tuple(one.values()) for one in made}) == count


def test_a_search_returns_the_best_of_a_plain_recomputation() -> None:
    needs = Needs("server_learning_rate,clip_norm")
    bench = Bench(Setting.of(**SMALL, instances="test"), 2)
    search = bench.family_search(parse_controller("server-lr-decay:0.7"), needs)
    done: list[int] = []
    [found] = bench.environments.runner.run_plans([search.plan()], done.append)
    assert sum(done) == found.rounds == search.rounds == 4 * 2 * 2
    assert (found.candidates, found.runs, found.instances, found.population) == (4, 8, 2, "proxy")
    assert found.values["clip_norm"] == 0.7
    setting = Setting.of(**SMALL, knobs=needs.knobs, reward="final-accuracy", instances="train", population="proxy")
    assert setting == bench.searching(needs)
    environments = Environments()
    core = environments.of(setting)
    scores = {}
    for end in (0.06, 0.12, 0.25, 0.5):
        policy = make_controller(f"server-lr-decay:0.7:{end}", core)
        plans = [play_each([policy], [seed], setting, environments) for seed in (1_000_000, 1_000_001)]
        each = [final for [final] in environments.runner.run_plans(plans, Watch())]
        scores[end] = float(np.mean(each))
    assert found.score == pytest.approx(max(scores.values()), abs=0.011)
    assert scores[found.values["end"]] == pytest.approx(max(scores.values()), abs=0.011)


def test_contenders_say_what_their_search_took() -> None:
    contenders = make_players(
        ["tuned:client-budget", "fixed"], Bench(Setting.of(**SMALL, method="adp-pfl", instances="test"), 1)
    )
    tuned = contenders[0]
    assert tuned.name == "tuned:client-budget"
    assert tuned.label.startswith("tuned client budgets (kappa")
    assert tuned.search_rounds == 4 * 2
    assert "best of 4 parameter settings in 4 runs" in tuned.tuned_on
    core = make_core(1, tuned.setting)
    assert tuned.builds[0](core).label in tuned.label  # type: ignore[attr-defined]
    assert contenders[1].search_rounds == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tuned", "names no family; write tuned:FAMILY"),
        ("tuned:", "names no family"),
        ("tuned:exponential", "controller 'exponential' is unknown; did you mean exponential-decay"),
        ("tuned:best-fixed", "names 'best-fixed', which has no parameters to search"),
        ("tuned:none", "names 'none', which has no parameters to search"),
        ("tuned:constant:clip_norm=1", "names 'constant', which has no parameters to search"),
        ("tunde:fixed", "controller 'tunde' is unknown; did you mean tuned"),
    ],
)
def test_bad_families_are_refused_in_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_contender(spec)
    assert str(caught.value).endswith(".")


def test_a_family_that_the_method_lacks_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="knob 'layer_weights' does not exist in method 'dp-fedavg'"):
        make_players(["tuned:log-odds"], Bench(Setting.of(**SMALL), 1))
    with pytest.raises(InputError, match="leaves nothing to search"):
        make_players(["tuned:random"], Bench(Setting.of(**SMALL), 1))
