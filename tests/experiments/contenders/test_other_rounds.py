"""Controllers that act for another number of rounds than the setting's, at the same epsilon."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs import Setting
from envs.instances import instance_seeds
from experiments.cli import main
from experiments.contenders.bench import Bench
from experiments.contenders.comparing import compare
from experiments.contenders.other_rounds import OtherRoundsSearch
from experiments.contenders.preparing import make_players, parse_contender
from experiments.contenders.specs import read_spec, rounds_named
from fl_core.base.errors import InputError
from tests.experiments.contenders.small_runs import SMALL, mean_accuracy


@pytest.mark.parametrize(
    ("spec", "name", "own", "choices"),
    [
        ("probe@120", "probe@120", 40, (120,)),
        (" fixed:0.50@2x ", "fixed:0.5@2x", 40, (80,)),
        ("fixed@0.01x", "fixed@0.01x", 40, (1,)),
        ("pretrained:joint@tuned", "pretrained:joint@tuned", 5, (2, 5, 10)),
        ("online-ppo:3@1.5x", "online-ppo:3@1.5x", 4, (6,)),
    ],
)
def test_specs_are_read_in_one_spelling(spec: str, name: str, own: int, choices: tuple[int, ...]) -> None:
    found = read_spec(spec)
    assert str(found).endswith(name.removeprefix("online-ppo"))
    assert parse_contender(spec).name.partition("@")[2] == name.partition("@")[2]
    assert rounds_named(found, own) == max(choices)
    assert found.rounds.of(own) == choices  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("probe@0", "rounds is '0', but it must be a whole number of at least 1"),
        ("probe@-3", "rounds is '-3', but it must be"),
        ("probe@1.5", "rounds is '1.5', but it must be a whole number"),
        ("probe@0x", "a multiple of the run's own above 0, as 2x"),
        ("probe@infx", "controller 'probe@infx' is unknown"),
        ("probe@1ex", "rounds is '1ex', but it must be"),
        ("probe@2x@3x", "controller 'probe@2x' is unknown"),
        ("tuned:rounds@2x", "searched in rounds of its own"),
        ("tuned:exponential-decay@2x", "searched in rounds of its own"),
        ("nosuch@2x", "nosuch"),
    ],
)
def test_wrong_specs_are_refused_in_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(InputError, match="controller") as refusal:
        read_spec(spec)
    assert words in str(refusal.value)


def test_each_plays_its_own_rounds_at_the_same_epsilon_and_their_accuracy_is_that_of_a_run_so_long() -> None:
    bench = Bench(Setting.of(**SMALL, instances="test"), 1)
    seeds = instance_seeds("test", 2)
    players = make_players(["fixed:0.5", "fixed:0.5@2x", "fixed:0.5@3"], bench)
    found = compare(players, bench, seeds, "")
    for rounds, result in zip((4, 8, 3), found.controllers, strict=True):
        assert {one.rounds for one in result.episodes} == {rounds}
        assert [one.epsilon_spent for one in result.episodes] == pytest.approx([found.epsilon] * 2, rel=1e-3)
        mean = sum(one.global_accuracy for one in result.episodes) / 2
        assert mean == pytest.approx(mean_accuracy(rounds, seeds, "target", 0.5), abs=1e-6)
    assert [player.search_rounds for player in players] == [0, 0, 0]


def test_the_tuned_number_is_the_best_of_a_plain_recomputation() -> None:
    bench = Bench(Setting.of(**SMALL, instances="test"), 2)
    contender = parse_contender("fixed:0.5@tuned")
    search = contender.search(bench)
    assert isinstance(search, OtherRoundsSearch)
    found = bench.outcome(search)
    plain = {rounds: mean_accuracy(rounds, instance_seeds("train", 2), "proxy", 0.5) for rounds in (2, 4, 8)}
    assert found.scores == pytest.approx(plain, abs=1e-6)
    assert plain[found.rounds] == pytest.approx(max(plain.values()), abs=1e-6)
    player = contender.prepare(bench)
    assert player.setting.federation.rounds == found.rounds
    assert player.search_rounds == 2 * (2 + 4 + 8) == sum(one.rounds for one in player.releases)
    assert (player.tuned_population, contender.tuned_population(bench)) == ("proxy", "proxy")
    assert f"for {found.rounds} rounds" in player.label


def test_what_derives_from_a_search_searches_at_the_given_rounds() -> None:
    bench = Bench(Setting.of(**SMALL, instances="test"), 1)
    longer = bench.with_rounds(8)
    (player,) = make_players(["exponential-decay@2x"], bench)
    assert player.search_rounds == longer.best_clip.rounds == 13 * 8
    assert longer is bench.with_rounds(8)
    assert bench.with_rounds(4) is bench


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--controller", "probe@2x"], "changes rounds, which a run is given"),
        (["compare", "--controllers", "probe@2x", "--noise-multiplier", "4"], "but noise_multiplier is given"),
        (["compare", "--controllers", "exponential-decay@tuned"], "needs a search beside that of its rounds"),
        (["compare", "--controllers", "fixed@9999999"], "more than 1,000,000"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()
