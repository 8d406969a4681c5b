"""A command makes each different environment, and parses each different thing, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import envs.setting as setting_module
import experiments.contenders.preparing as preparing
import fl_core.run.config as config_module
from envs import EnvCore
from envs.acting import Policy
from experiments.cli import main
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation

OPTIONS = ["--clients", "10", "--delta", "0.05", "--rounds", "2", "--local-steps", "1", "--executor", "vectorized"]
OPTIONS += ["--guarantee", "as-published"]  # whose recipe is an edit of the sound one


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count environments, federations, configurations, recipes and contenders; runs go to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    found: Counter[str] = Counter()

    def counted(owner: Any, name: str, what: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def spy(*arguments: Any, **named: Any) -> Any:
            found[what] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, spy)

    counted(EnvCore, "__init__", "environments")
    counted(Federation, "__init__", "federations")
    counted(FederationConfig, "__post_init__", "configurations")
    counted(config_module, "edit", "recipes")
    counted(preparing, "contender_of", "contenders")
    config_module._recipe.cache_clear()
    setting_module._with_federation.cache_clear()
    return found


def test_a_run_makes_its_environment_and_nothing_else(counts: Counter[str]) -> None:
    """Configurations: as asked for, and with the schedule of its noise settled by what the controller sets."""
    assert main(["run", "--controller", "fixed:0.5", *OPTIONS]) == 0
    assert counts == {"environments": 1, "federations": 1, "configurations": 2, "recipes": 1, "contenders": 1}


def test_a_run_with_a_search_makes_one_environment_per_number_of_rows(counts: Counter[str]) -> None:
    """The run's own; the search's nine and four values on two training instances, of clients of another population.

    Configurations: of these clients and of those of the search, each with its noise's schedule open and settled.
    """
    assert main(["run", "--controller", "best-fixed", "--search-instances", "2", *OPTIONS]) == 0
    assert counts == {"environments": 3, "federations": 3, "configurations": 4, "recipes": 1, "contenders": 1}


def test_a_comparison_makes_each_different_environment_once(counts: Counter[str]) -> None:
    """Two views (clip norm alone; clip norm with accounted signals) of one row, in which controllers are checked, and
    of two rows, one for each seed, in which they play; and the two of the search.

    Configurations: as asked for, and of the clients of the search, each with its noise's schedule open and settled;
    with the accounted signals paid for and the schedule settled.
    """
    controllers = ["fixed", "best-fixed", "exponential-decay", "aqc"]
    arguments = ["compare", "--controllers", *controllers, "--seeds", "2", "--search-instances", "2", *OPTIONS]
    assert main(arguments) == 0
    assert counts == {"environments": 6, "federations": 6, "configurations": 5, "recipes": 1, "contenders": 4}


def test_instances_that_no_batch_can_share_have_environments_of_their_own(counts: Counter[str]) -> None:
    """The one in which controllers are checked, and one for each number of clients, with two seeds of two runs."""
    vary = ["--vary", "clients=8,12", "epsilon=3,6"]
    assert main(["compare", "--controllers", "fixed:0.5", "fixed:1", "--seeds", "1", *OPTIONS, *vary]) == 0
    assert counts["environments"] == 1 + 2 + 2  # of one row to check the instances in, of two rows to play them in
    assert counts["contenders"] == 2


@pytest.mark.parametrize(
    ("controllers", "words"),
    [
        (["best-fixed", "fixed:-1"], "clip_norm of controller 'fixed' is -1"),
        (["best-fixed", "tuned:log-odds"], "knob 'layer_weights' does not exist"),
        (["tuned:exponential-decay", "fixed:1e9"], "clip_norm is 1000000000.0"),
        (["best-fixed", "ppo:nowhere"], "'nowhere' is no folder"),
        (["best-fixed", "fixed:1", "fixed:1.0"], "names 'fixed:1' twice"),
        (["best-fixed", "online-ppo:accounted:x"], "does not end with a seed"),
    ],
)
def test_all_controllers_are_refused_before_anything_is_run(
    controllers: list[str], words: str, counts: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def refuse(*_: Any) -> Policy:
        raise AssertionError("a round was run")

    monkeypatch.setattr(Federation, "run_round", refuse)
    assert main(["compare", "--controllers", *controllers, *OPTIONS]) == 2
    assert words in capsys.readouterr().err
    assert not list(Path().iterdir())
