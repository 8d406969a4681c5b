import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from experiments.cli import main
from experiments.commands.catalog import COMMANDS
from experiments.commands.completion import SHELLS
from experiments.commands.options import config_arguments, last_value, parse
from fl_core.base.errors import InputError

SMALL = {"clients": 10, "rounds": 3, "local_steps": 2, "executor": "vectorized"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(content, name="config.yaml"):
    path = Path(name)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_runs_own_configuration_repeats_it_and_options_on_the_command_line_win(capsys):
    assert main(["run", "--config", str(written({"federation": SMALL, "seed": 4})), "--epsilon", "5"]) == 0
    (first,) = Path("runs").iterdir()
    assert main(["run", "--config", str(first / "config.yaml"), "--runs", "again", "--seed", "5"]) == 0
    (second,) = Path("again").iterdir()
    one, two = (yaml.safe_load((run / "config.yaml").read_text()) for run in (first, second))
    assert one["federation"]["epsilon"] == 5
    assert one["seed"] == 4
    assert one["federation"]["rounds"] == 3
    assert two == one | {"seed": 5, "runs": "again"}


def test_a_training_is_repeated_with_the_agents_options_and_the_clients_apart():
    options = {"training": {"learning_rate": 0.02, "device": "cpu"}, "federation": SMALL | {"learning_rate": 0.3}}
    train = COMMANDS["train"].load()
    command = parse("train", train, config_arguments("train", train, written(options))).command
    assert (command.training.learning_rate, command.federation.learning_rate) == (0.02, 0.3)


def test_a_configuration_names_the_task_whose_settings_are_the_defaults():
    path = written({"task": "digits-q0.2", "seed": 1})
    command = COMMANDS["run"].load()
    arguments = config_arguments("run", command, path)
    assert last_value(arguments, "task") == "digits-q0.2"


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({"federation": {"set": ""}}, ""),
        ({"set": "sparsification=random"}, "sparsification=random"),
        ("federation: {set: 'sparsification=random, sparsity=0.2'}", "sparsification=random, sparsity=0.2"),
    ],
)
def test_groups_may_be_left_out_and_texts_are_kept_whole(content, value):
    arguments = config_arguments("run", COMMANDS["run"].load(), written(content))
    parsed = parse("run", COMMANDS["run"].load(), arguments)
    assert parsed.command.federation.set == value


def test_lists_negative_and_infinite_numbers_are_read():
    compare = COMMANDS["compare"].load()
    path = written(
        "controllers: [aqc, 'fixed:1']\nvary: []\nhindsight: true\nfederation: {epsilon: .inf, clients: -3}\n"
    )
    arguments = config_arguments("compare", compare, path)
    assert arguments == ["--controllers", "aqc", "fixed:1", "--vary", "--hindsight", "--epsilon=inf", "--clients=-3"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("command: train", "holds options of dpilot train, not of dpilot run"),
        ("epsion: 4", "did you mean --epsilon"),
        ("federation: {rounds: many}", "--rounds is 'many', but it must be a whole number"),
        ("[1, 2]", "must hold options by name"),
        ("4: 5", "a name in it is no text"),
        ("", "must hold options by name"),
        ("a: [", "is not plain YAML"),
        ("x: !!python/object:os.system {}", "is not plain YAML"),
        ("seed: 2020-01-01", "it must be a whole number"),
        ("seed: {a: 1}", "no such group"),
        ("federation: {4: 1}", "a name in it is no text"),
        ("seed: [[1]]", "seed is [[1]], but it must be a whole number"),
        ("rounds: true", "rounds is True, but it must be a whole number"),
        ("federation: {epsilon: [1, 2]}", "epsilon is [1, 2], but it must be a number"),
        ("loggers: [[1]]", "list of more than texts and numbers"),
        ("epsilon: 2\nepsilon: 9", "stands twice: 'epsilon'"),
        ("[" * 3000, "is not plain YAML"),
        ("config: other.yaml", "names another in config"),
        ("nosuch: 1", "Unrecognized options: --nosuch=1; options of the file"),
        ("federation: {clients: -1}", "clients is -1"),
        ("task: digit", "did you mean digits"),
    ],
)
def test_a_configuration_that_does_not_fit_is_one_sentence_that_names_its_file(content, sentence, capsys):
    path = written(content)
    assert main(["run", "--config", str(path)]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert f"file '{path}'" in printed.err
    assert printed.err.strip().count("\n") == 0
    assert printed.out == ""


def test_a_configuration_that_is_not_there_is_one_sentence(capsys):
    assert main(["run", "--config", "nowhere.yaml"]) == 2
    assert "nowhere.yaml' could not be read" in capsys.readouterr().err


def test_json_is_all_that_is_on_standard_output(capsys):
    config = str(written({"federation": SMALL}))
    assert main(["run", "--config", config, "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["status"] == "complete"
    assert result["rounds"] == 3
    assert json.loads((Path(result["folder"]) / "summary.json").read_text()).items() <= result.items()
    assert "Records:" in printed.err


def test_quiet_prints_nothing_but_errors_and_warnings(capfd):
    config = str(written({"federation": SMALL | {"delta": 0.2}}))
    assert main(["run", "--config", config, "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert all(line.startswith("dpilot: warning:") for line in err.splitlines())
    assert err
    assert main(["run", "--controller", "nobody", "--quiet"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "controller 'nobody' is unknown" in err


def test_every_command_returns_what_json_can_hold(capsys):
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    for arguments in (
        ["list", "tasks"],
        ["paper"],
        ["train", *small, "--episodes", "2", "--environments", "2", "--validation-instances=1", "--decision-rounds=1"],
        ["compare", *small, "--controllers", "fixed", "--seeds", "2"],
        ["audit", *small, "--canaries", "20"],
    ):
        assert main([*arguments, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result
    assert main(["run", *small, "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["folder"]
    assert main(["ledger", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["privacy"]["target"] == 7.5


def test_help_shows_the_names_that_an_option_takes(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    for choice in ("--sampling {poisson,fixed}", "--train-on {all,proxy,target}", "--show {all,covered}"):
        assert choice in text


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dpilot ")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_a_completion_of_every_command(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(capsys):
    main(["completion", "bash"])
    Path("completion.sh").write_text(capsys.readouterr().out)
    for words, expected in (("ru", "run"), ("compare --first", "--first-seed")):
        typed = words.split()
        script = f"source ./completion.sh; COMP_WORDS=(dpilot {words}); COMP_CWORD={len(typed)}; "
        script += f'_tyro_dpilot dpilot {typed[-1]} dpilot; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split()[0] == expected


def test_a_comparison_starts_at_the_seed_that_it_is_told(capsys):
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    results = []
    for first in ("0", "1"):
        assert main(["compare", *small, "--controllers", "fixed", "--seeds", "2", "--first-seed", first, "--json"]) == 0
        folder = json.loads(capsys.readouterr().out)["folder"]
        comparison = json.loads((Path(folder) / "comparison.json").read_text())
        results.append([episode["seed"] for episode in comparison["controllers"][0]["episodes"]])
    assert results[0][1] == results[1][0]
    assert results[0][0] + 1 == results[1][0]


def test_other_commands_are_refused_their_options():
    with pytest.raises(InputError, match="Unrecognized"):
        parse("list", COMMANDS["list"].load(), ["--sampling", "poisson"])


def test_a_typed_budget_takes_the_place_of_a_files_other_way_to_state_it(capsys):
    assert main(["run", "--config", str(written({"federation": SMALL})), "--noise-multiplier", "4"]) == 0
    (run,) = Path("runs").iterdir()
    told = yaml.safe_load((run / "config.yaml").read_text())["federation"]
    assert told["noise_multiplier"] == 4
    assert "epsilon" not in told
    assert main(["ledger", str(run)]) == 0
    again = ["run", "--config", str(run / "config.yaml"), "--runs", "again"]
    assert main(again) == 0
    assert main([*again, "--epsilon", "5"]) == 0
    chosen = [
        yaml.safe_load((one / "config.yaml").read_text())["federation"] for one in sorted(Path("again").iterdir())
    ]
    assert [(one.get("epsilon"), one["noise_multiplier"]) for one in chosen] == [(None, 4.0), (5.0, None)]
    assert main([*again, "--epsilon", "5", "--noise-multiplier", "2"]) == 2
    assert main(["run", "--noise-multiplier", "much"]) == 2
    printed = capsys.readouterr()
    assert "epsilon is 5.0, but each follows from the other; give one; options of the file" in printed.err
    assert "--noise-multiplier is much, but it must be a number." in printed.err
