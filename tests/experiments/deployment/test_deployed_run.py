"""Runs kept in a folder: begun, killed between charge and release, and gone on with."""

import json
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO

from agents import TrainingConfig, load_controller, train
from envs import ControlLoop, Setting
from experiments.deployment.deployed_run import DeployedRun
from experiments.records.charge_journal import read_journal
from experiments.records.ledger_file import read_record
from experiments.records.privacy import noise_text, report_of
from fl_core.base.catalogue import forget_read_files
from fl_core.base.errors import InputError
from fl_core.models.layout import Outline
from tests.fuzz import reseal, survivors

SETTING = Setting.of(clients=20, rounds=6, sampling_rate=0.5, epsilon=6.0, delta=0.01, noise="secret")
LAYOUT = Outline({"body": 2, "head": 1}, classes=2)


def opened(folder, controller="budget-exponential:1", setting=SETTING, layout=LAYOUT, **more):
    return DeployedRun(folder, setting, controller, layout, **more)


def play(run, rounds=100):
    """Do rounds; returns (index, noise multiplier, clip norm) of each."""
    done = []
    while len(done) < rounds and (now := run.next_round()) is not None:
        done.append((now.index, now.noise_multiplier, now.clip_norm))
        run.observe_release(np.full(3, 1.0 + now.index), np.ones(3))
    return done


def test_a_run_that_goes_on_does_what_an_unbroken_one_does(tmp_path):
    with opened(tmp_path / "whole") as run:
        whole = play(run)
    broken = []
    for _ in range(6):
        with opened(tmp_path / "broken") as run:
            broken += play(run, 1)
    assert broken == whole
    assert len(whole) == 6
    with opened(tmp_path / "broken") as run:
        assert run.over
        assert run.next_round() is None
    one, other = (read_record(tmp_path / name) for name in ("whole", "broken"))
    assert one.ledger.rows == other.ledger.rows
    assert one.facts == other.facts
    assert (one.facts.rounds_done, one.facts.noise, one.facts.adaptive) == (6, "secret", False)


def kill_in_round(folder, rounds, at):
    """Do rounds in a process of its own, and kill it in the next one."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        return
    try:
        run = opened(folder)
        play(run, rounds)
        if at == "charge":  # after the line is on disk, before anybody gets the round
            charge = run.charging.on_charge
            run.charging.on_charge = lambda row, charges: (charge(row, charges), os.kill(os.getpid(), signal.SIGKILL))
        run.next_round()
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


@pytest.mark.parametrize(("at", "rounds"), [("charge", 0), ("charge", 2), ("release", 2)])
def test_a_kill_between_charge_and_release_loses_the_round_and_keeps_its_charge(tmp_path, at, rounds):
    kill_in_round(tmp_path, rounds, at)
    assert len(read_journal(tmp_path / "charges.jsonl").rounds) == rounds + 1
    assert len(read_record(tmp_path).ledger.charges) == rounds + 1
    with opened(tmp_path) as run:
        assert [index for index, _, _ in play(run)] == list(range(rounds + 1, 6))
    record = read_record(tmp_path)
    assert [row[0] for row in record.ledger.rows] == list(range(6))
    assert record.ledger.epsilon_spent() <= 6.0
    assert report_of(record).certified == 6.0


def test_a_killed_beginning_begins_anew(tmp_path):
    opened(tmp_path).close()
    (tmp_path / "ledger.json").unlink()
    with opened(tmp_path) as run:
        assert len(play(run)) == 6


def test_two_processes_cannot_have_a_run(tmp_path):
    with opened(tmp_path), pytest.raises(InputError, match="is open in another process"):
        opened(tmp_path)
    opened(tmp_path).close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setting": SETTING.replace(clients=21)}, "clients is 20, but in the run to go on it is 21"),
        ({"setting": SETTING.replace(epsilon=5.0)}, "is of another run"),
        ({"controller": "budget-exponential:2"}, "is of another run: its facts.controller is budget-exponential:1"),
        ({"layout": Outline({"body": 3}, classes=2)}, r"was made with layers.* start anew"),
    ],
)
def test_another_run_is_refused(tmp_path, changes, words):
    with opened(tmp_path) as run:
        play(run, 1)
    with pytest.raises(InputError, match=words):
        opened(tmp_path, **changes)
    with opened(tmp_path) as run:
        assert run.rounds == 1


def test_edited_files_are_refused(tmp_path):
    with opened(tmp_path) as run:
        play(run, 2)
    for name in ("charges.jsonl", "control.json", "ledger.json"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("update", "udpate").replace('"observed": 2', '"observed": 1'))
        with pytest.raises(InputError, match="changed since it was written"):
            opened(tmp_path)
        (tmp_path / name).write_text(text)
    opened(tmp_path).close()


@pytest.mark.parametrize(
    ("controller", "setting"),
    [
        ("aqc", SETTING),
        ("random", SETTING.replace(knobs="clip_change,budget_pace", decision_rounds=3)),
    ],
)
def test_any_edit_of_a_saved_state_is_refused_in_a_sentence_or_changes_no_charge(tmp_path, controller, setting):
    told = {"unclipped_share_noised": 0.4} if controller == "aqc" else {}

    def do(run, rounds):
        while run.rounds < rounds and (now := run.next_round()) is not None:
            assert np.isfinite(now.clip_norm)
            run.observe_release(np.ones(3), np.ones(3), told)

    with opened(tmp_path, controller, setting) as run:
        do(run, 4)
        run.next_round()  # charged, and lost
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    charges = read_record(tmp_path).ledger.rows

    def use():
        for path, content in kept.items():
            if path.name != "control.json":
                path.write_bytes(content)
        with opened(tmp_path, controller, setting) as run:
            assert run.rounds == 5
            do(run, 6)
        ledger = read_record(tmp_path).ledger
        assert ledger.rows[:5] == charges
        assert ledger.epsilon_spent() <= 6.0

    refused, used, faults = survivors(tmp_path / "control.json", use, 60, seed=1)
    assert faults == []
    assert refused > used > 0
    assert survivors(tmp_path / "control.json", use, 30, seed=2, seal=lambda record: record) == (30, 0, [])  # unsealed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: saved["plain"].update(ahead=7), "ahead is 7, but it must be a whole number from 0 to 1"),
        (lambda saved: saved["plain"].update(observed=9), "knows 9 rounds, but its ledger has charged 2"),
        (lambda saved: saved["plain"].update(refused=1), "refused is 1, but it must be true or false"),
        (lambda saved: saved["arrays"].pop("actions"), "lacks the array 'actions'"),
        (
            lambda saved: saved["arrays"]["clips.power"].update(values=["nan"]),
            "'clips.power' with a number that is not",
        ),
        (lambda saved: saved["arrays"]["clips.power"].update(values=[]), "no array of numbers as arrays.clips.power"),
        (lambda saved: saved.update(arrays=3), "arrays is 3, but it must hold arrays by name"),
        (lambda saved: saved["about"]["run"].update(seed=5), r"was made with run.seed 5, but here it is 0; start anew"),
    ],
)
def test_an_edited_state_is_refused_by_file_and_field(tmp_path, change, words):
    with opened(tmp_path) as run:
        play(run, 2)
    path = tmp_path / "control.json"
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(reseal(saved)))
    with pytest.raises(InputError, match=words) as refused:
        opened(tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_a_trained_controller_steers_a_run_and_one_for_other_knobs_is_refused(tmp_path):
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    own = {"clients": 6, "rounds": 2, "local_steps": 1, "delta": 0.01}
    trained = train(own, short, tmp_path / "training")
    spec = f"ppo:{trained.folder}"
    done = []
    for _ in range(2):  # it goes on with the same bundle
        with opened(tmp_path / "run", spec) as run:
            done += play(run, 3)
    assert [index for index, _, _ in done] == list(range(6))
    assert read_record(tmp_path / "run").facts.controller.startswith("ppo")
    with pytest.raises(InputError, match=r"ppo controller was trained on the signals .* shows .*last_budget_pace"):
        ControlLoop(SETTING.replace(knobs="budget_pace"), load_controller(trained.folder).for_env, LAYOUT)


@pytest.mark.parametrize("observed", [0, 1])
def test_weights_that_were_exchanged_since_the_run_was_begun_are_noticed(tmp_path, observed):
    own = {"clients": 6, "rounds": 2, "local_steps": 1, "delta": 0.01}
    bundle, kept, spec = tmp_path / "bundle", tmp_path / "kept", f"ppo:{tmp_path / 'bundle'}"
    for seed in (0, 1):
        short = TrainingConfig(
            environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,), seed=seed
        )
        train(own, short, tmp_path / f"seed{seed}")
    (tmp_path / "seed0").rename(bundle)
    with opened(tmp_path / "run", spec) as run:
        play(run, observed)
        run.next_round()  # charged
    bundle.rename(kept)
    (tmp_path / "seed1").rename(bundle)
    with pytest.raises(InputError, match=r"was made with controller.*, but here it is .*; start anew"):
        opened(tmp_path / "run", spec)
    bundle.rename(tmp_path / "seed1")
    kept.rename(bundle)
    with opened(tmp_path / "run", spec) as run:
        assert run.rounds == observed + 1


def test_weights_of_a_stable_baselines3_model_that_differ_are_noticed(tmp_path):
    env = gym.make("DPilot/Clip-v0", clients=20, rounds=6, delta=0.01)
    models = [PPO("MlpPolicy", env, n_steps=4, batch_size=4, device="cpu", seed=seed) for seed in (0, 0, 1)]
    for model in models[:2]:
        with opened(tmp_path, lambda loop, model=model: model) as run:
            play(run, 1)
    with pytest.raises(InputError, match=r"was made with controller.weights_sha256 \w{64}, but here it is \w{64}"):
        opened(tmp_path, lambda loop: models[2])


def test_a_controller_of_its_users_code_that_was_changed_is_noticed(tmp_path):
    path = tmp_path / "own.py"
    text = """from policies import FixedClip


class Own(FixedClip):
    name = "own-fixed"
"""
    path.write_text(text)
    with opened(tmp_path / "run", f"{path}:Own") as run:
        play(run, 1)
    path.write_text(text + "    label_format = 'Own'\n")
    forget_read_files()  # as a process that starts anew
    with pytest.raises(InputError, match="start anew"):
        opened(tmp_path / "run", f"{path}:Own")
    path.write_text(text)
    forget_read_files()
    opened(tmp_path / "run", f"{path}:Own").close()


def test_a_run_that_charged_nothing_gives_way_to_any_other(tmp_path):
    opened(tmp_path).close()
    with opened(tmp_path, setting=SETTING.replace(clients=21)) as run:
        play(run, 1)
    with pytest.raises(InputError, match="clients is 21, but in the run to go on it is 20"):
        opened(tmp_path)


def test_a_run_without_its_saved_state_is_refused(tmp_path):
    with opened(tmp_path) as run:
        play(run, 1)
    (tmp_path / "control.json").unlink()
    with pytest.raises(InputError, match=r"control.json' could not be read"):
        opened(tmp_path)


def test_the_ledger_says_who_draws_the_cohorts(tmp_path):
    with opened(tmp_path) as run:
        play(run)
    assert "whoever trains draws the cohorts" in noise_text(read_record(tmp_path))


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(InputError, match=r"holds thesis.txt and no ledger.json"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(InputError, match="must be the name of a folder"):
        opened("runs\0")


def test_a_closed_run_charges_and_observes_nothing(tmp_path):
    with opened(tmp_path) as run:
        run.next_round()
    before = (tmp_path / "charges.jsonl").read_bytes()
    for use in (run.give_up, lambda: run.observe_release(np.ones(3), np.ones(3)), run.next_round):
        with pytest.raises(InputError, match="is closed"):
            use()
    assert (tmp_path / "charges.jsonl").read_bytes() == before


def test_what_is_given_away_besides_stands_in_the_record(tmp_path):
    with opened(tmp_path, uncovered=("exact accuracies of clients",)) as run:
        play(run)
    assert read_record(tmp_path).facts.uncovered == ("exact accuracies of clients",)
