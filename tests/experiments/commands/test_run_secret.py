"""`dpilot run --noise secret`: the key is nowhere in the results, serves to go on, and is deleted at the end."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fl_core.run.federation as federation_module
from experiments.cli import main
from experiments.records.noise_key import key_path, load_key, save_key
from fl_core.base.errors import InputError
from tests.experiments.records.stopped import interrupted_after

PLAIN = ["run", "--clients", "8", "--rounds", "6", "--local-steps", "1", "--executor", "vectorized"]
PLAIN += ["--evaluation-samples", "20"]
COMMAND = [*PLAIN, "--noise", "secret"]
KEY = bytes(range(7, 39))


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    return tmp_path / "states/dpilot"


@pytest.fixture
def known_key(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The operating system gives a key that the test knows, so that it can be searched for."""
    monkeypatch.setattr(federation_module, "new_secret", lambda: KEY)
    return KEY


def interrupted(root: Path, command: Sequence[str] = COMMAND) -> Path:
    """Ctrl-C in the midst of the fourth round; the state was written after each one before."""
    with interrupted_after(3):
        assert main([*command, "--runs", str(root)]) == 130
    (folder,) = root.iterdir()
    return folder


def holding(key: bytes, folder: Path) -> list[str]:
    """Files of a folder in which a key stands, as bytes or as text."""
    spellings = (key, key.hex().encode(), key.hex().upper().encode(), str(list(key)).encode(), str(key).encode())
    return [one.name for one in folder.iterdir() if any(spelling in one.read_bytes() for spelling in spellings)]


def test_nothing_that_a_run_leaves_or_prints_holds_its_key(
    known_key: bytes, states: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path / "runs")
    (file,) = states.iterdir()
    assert file == key_path(folder)
    assert file.read_bytes() == known_key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(states.stat().st_mode) == 0o700
    assert {"state.json", "ledger.json", "charges.jsonl", "config.yaml"} <= {one.name for one in folder.iterdir()}
    assert holding(known_key, folder) == []
    assert main(["run", "--resume", str(folder)]) == 0
    assert holding(known_key, folder) == []
    assert list(states.iterdir()) == []
    printed = capsys.readouterr()
    assert known_key.hex() not in printed.out + printed.err


@pytest.mark.parametrize("options", [["--noise", "secret"], ["--show", "covered"]])
def test_the_state_of_an_interrupted_run_is_its_owners_alone(tmp_path: Path, options: list[str]) -> None:
    """It holds the clients' personal models and exact metrics; the other files are what may be published."""
    folder = interrupted(tmp_path / "runs", command=[*PLAIN, *options])
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}
    state = {"state.json", "state-00003.safetensors"}
    assert state < set(modes)
    assert {mode for name, mode in modes.items() if name in state} == {0o600}
    assert main(["run", "--resume", str(folder)]) == 0
    assert not state & {one.name for one in folder.iterdir()}


def test_an_interrupted_secret_run_goes_on_bit_for_bit(
    known_key: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*COMMAND, "--runs", str(tmp_path / "whole")]) == 0
    (whole,) = (tmp_path / "whole").iterdir()
    folder = interrupted(tmp_path / "runs")
    monkeypatch.setattr(federation_module, "new_secret", lambda: b"another key than that of the run")
    assert main(["run", "--resume", str(folder)]) == 0
    for name in ("rounds.csv", "summary.json", "ledger.json", "charges.jsonl"):
        assert (folder / name).read_text() == (whole / name).read_text(), name


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda path: path.unlink(), "is secret, and its key"),
        (lambda path: path.write_bytes(b"x" * 32), "its key is not the one here: without it the run cannot go on"),
        (lambda path: path.write_bytes(b"x" * 31), "has 31 bytes"),
        (lambda path: path.chmod(0o644), "has mode 644, so others can read it"),
    ],
)
def test_without_its_key_a_run_is_refused(
    change: Any, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path / "runs")
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    change(key_path(folder))
    capsys.readouterr()
    assert main(["run", "--resume", str(folder)]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert error.count("\n") == 0
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before


def test_two_secret_runs_of_one_seed_release_otherwise(tmp_path: Path) -> None:
    rows = []
    for name in ("one", "other"):
        assert main([*COMMAND, "--runs", str(tmp_path / name)]) == 0
        (folder,) = (tmp_path / name).iterdir()
        rows.append((folder / "rounds.csv").read_text().splitlines()[1].split(","))
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["privacy"]["noise"].startswith("secret: from a key of the operating system")
    assert rows[0] != rows[1]


def test_run_and_ledger_say_who_could_take_the_noise_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for noise, words in (
        ("seeded", "seeded: whoever knows the seed can subtract it"),
        ("secret", "secret: from a key of the operating system, which is kept nowhere once the run has ended; cohorts"),
    ):
        root = tmp_path / noise
        assert main([*COMMAND, "--noise", noise, "--sampling-rate", "0.5", "--runs", str(root)]) == 0
        assert words in " ".join(capsys.readouterr().out.split())
        (folder,) = root.iterdir()
        assert main(["ledger", str(folder)]) == 0
        assert words in " ".join(capsys.readouterr().out.split())


def test_a_key_among_the_results_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "runs"))
    assert main([*COMMAND, "--runs", str(tmp_path / "runs")]) == 2
    assert "among the results; set XDG_STATE_HOME" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["compare", "train", "audit"])
def test_simulations_are_seeded(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "--noise", "secret"]) == 2
    assert "noise is 'secret', but a" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_keys_of_two_folders_are_two_files(tmp_path: Path) -> None:
    one, other = tmp_path / "runs/one", tmp_path / "runs/other"
    save_key(one, KEY)
    assert load_key(one) == KEY
    assert load_key(tmp_path / "runs/../runs/one") == KEY
    with pytest.raises(InputError, match="cannot be read"):
        load_key(other)
