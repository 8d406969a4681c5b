"""Options of the agent and of the federation cannot be taken for each other."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from agents.config import TrainingConfig
from experiments import main
from experiments.commands.options import parse, with_config
from experiments.commands.owners import AMBIGUOUS, bare_options
from experiments.commands.run import RunCommand
from experiments.commands.train import TrainCommand
from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig


def parsed(*arguments: str) -> TrainCommand:
    read = with_config("train", TrainCommand, arguments, lambda typed: bare_options("train", TrainCommand, typed))
    command = parse("train", TrainCommand, read).command
    assert isinstance(command, TrainCommand)
    return command


def test_each_owner_gets_its_own_learning_rate() -> None:
    command = parsed("--agent.learning-rate", "3e-4", "--federation.learning_rate=0.7", "--federation.batch-size", "64")
    assert command.training.learning_rate == 3e-4
    assert (command.federation.learning_rate, command.federation.batch_size) == (0.7, 64)
    assert parsed("--agent.gamma", "0.9", "--seed", "3", "--clients", "9").training.gamma == 0.9


@pytest.mark.parametrize("name", AMBIGUOUS)
@pytest.mark.parametrize("form", ["--{} 3", "--{}=3"])
def test_a_bare_name_that_either_could_have_is_refused_with_both_spellings(name: str, form: str) -> None:
    with pytest.raises(InputError, match=f"--{name} could be .* write --federation.{name} for that of the clients"):
        parsed(*form.format(name).split())
    with pytest.raises(InputError, match="could be"):
        parsed(*form.format(name.replace("-", "_")).split())


def test_no_other_name_has_two_owners() -> None:
    """A field of both classes would be parsed as one of them without a word."""
    both = {one.name for one in fields(TrainingConfig)} & {one.name for one in fields(FederationConfig)}
    assert both <= {name.replace("-", "_") for name in AMBIGUOUS}


def test_a_file_is_read_alike(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("learning_rate: 0.5\n")
    with pytest.raises(InputError, match="--learning-rate could be"):
        parsed("--config", str(file))
    file.write_text("training: {learning_rate: 0.002}\nfederation: {learning_rate: 0.5}\n")
    command = parsed("--config", str(file), "--agent.learning-rate", "0.01")
    assert (command.training.learning_rate, command.federation.learning_rate) == (0.01, 0.5)


def test_a_command_without_an_agent_keeps_bare_names() -> None:
    arguments = bare_options("run", RunCommand, ["--learning-rate", "0.5", "--federation.batch-size=8"])
    assert arguments == ["--learning-rate", "0.5", "--batch-size=8"]


def test_an_unknown_option_of_an_owner_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--agent.lerning-rate", "1"]) == 2
    assert "option of the agent 'lerning_rate' is unknown; did you mean learning_rate" in capsys.readouterr().err
