import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from envs.generators import SETTINGS, parse_generator
from experiments import cli
from experiments.cli import main
from experiments.commands.catalog import COMMANDS
from experiments.commands.lists import LISTS
from experiments.records.tensorboard import TAGS
from fl_core.base.errors import InputError

SMALL = ["--clients", "10", "--rounds", "3", "--local-steps", "2", "--executor", "vectorized"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "command 'rnu' is unknown; did you mean run"),
        (["run", "--epsilon", "-1"], "epsilon is -1.0, but it must be above 0"),
        (["run", "--epsilon", "nan"], "epsilon is nan"),
        (["run", "--delta", "1"], "delta is 1.0"),
        (["run", "--delta", "0"], "delta is 0.0"),
        (
            ["run", "--epsilon", "0.01", "--delta", "1e-12", "--sampling-rate", "0.1", "--noise-schedule", "adaptive"],
            "needs more than",
        ),
        (["run", "--telemetry-share", "1"], "telemetry_share is 1.0"),
        (["run", "--controller", "budget-exponential:9"], "needs budget_pace"),
        (["run", "--controller", "budget-step:0"], "ratio of controller 'budget-step' is 0"),
        (["ledger"], "needs the folder of a run"),
        (["run", "--sampling-rate", "0"], "sampling_rate is 0.0"),
        (["run", "--sampling-rate", "1.5"], "sampling_rate is 1.5"),
        (["run", "--rounds", "0"], "rounds is 0"),
        (["run", "--epsion", "4"], "did you mean --epsilon"),
        (["run", "--clients", "many"], "many"),
        (["run", "--clients", "5000"], "clients is 5000"),
        (["run", "--partition", "classes(11)"], "only 10 classes"),
        (["run", "--partition", "dirichlet(0)"], "dirichlet(0)"),
        (["run", "--task", "digit"], "task 'digit' is unknown; did you mean digits"),
        (["run", "--method", "dp-fedav"], "did you mean dp-fedavg"),
        (["run", "--method", "fedavg"], "set epsilon to inf"),
        (["run", "--method", "local-only", "--controller", "fixed"], "none"),
        (["run", "--model", "lenet"], "at least 28x28"),
        (["run", "--dataset", "digit"], "did you mean digits"),
        (["run", "--controller", "aqcc"], "did you mean aqc"),
        (["run", "--controller", "fixed:0"], "fixed"),
        (["run", "--controller", "fixed:nan"], "nan"),
        (["run", "--controller", "fixed:1e9"], "[1e-06, 1e+06]"),
        (["run", "--controller", "ppo:nowhere"], "nowhere"),
        (["run", "--controller", "pretrained:jont"], "pretrained controller 'jont' is unknown; did you mean joint"),
        (
            ["run", "--controller", "pretrained:joint", "--method", "fedavg", "--epsilon", "inf"],
            "'clip_median' does not",
        ),
        (["run", "--seed", "-1"], "seed is -1"),
        (["compare", "--controllers", "fixed", "fixed"], "twice"),
        (["compare", "--controllers", "fixed:1", "fixed:1.0"], "names 'fixed:1' twice"),
        (["compare", "--method", "local-only", "--controllers", "none", "--hindsight"], "knob 'clip_norm' does not"),
        (["compare", "--seeds", "0"], "seeds is 0"),
        (["compare", "--seeds", "5000", "--vary", "epsilon=4,8"], "takes 2,400,000 federated rounds"),
        (["compare", "--first-seed", "-1"], "first_seed is -1"),
        (["train", "--signals", "pulbic"], "did you mean public"),
        (["train", "--knobs", "clip"], "did you mean clip_norm"),
        (["train", "--knobs", "none"], "knobs is 'none', but a training needs at least one to set."),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["train", "--network", ","], "--network is ',', but it must be whole numbers."),
        (["list", "task"], "did you mean tasks"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_status_2(arguments, sentence, capsys, folder):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert sentence.lower() in printed.err.lower()
    assert printed.err.strip().count("\n") == 0
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert list(folder.iterdir()) == []


def test_the_module_run_as_a_program_exits_with_the_status_of_the_command(folder):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", "lst"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[1])},
    )
    assert done.returncode == 2
    assert "command 'lst' is unknown" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status"), [([], 0), (["--help"], 0), (["-h"], 0), (["--version"], 0), (["lst"], 2), (["run\0"], 2)]
)
def test_what_names_no_command_is_answered_without_the_heavy_libraries(arguments, status):
    heavy = {"torch", "stable_baselines3", "gymnasium", "scipy", "matplotlib", "pandas", "opacus"}
    code = (
        f"import sys; from experiments.cli import main; status = main({arguments!r}); "
        f"print('loaded:', *sorted(sys.modules.keys() & {heavy!r})); sys.exit(status)"
    )
    root = Path(cli.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_help_explains_every_option_with_the_task_as_default(capsys):
    assert main([]) == 0
    overview = capsys.readouterr().out
    assert all(command in overview for command in COMMANDS)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--task", "digits", "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Privacy budget epsilon" in text
    assert "(default: 7.5)" in text


@pytest.mark.parametrize("what", LISTS)
def test_every_list_prints(what, capsys):
    assert main(["list", what]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 4


def test_without_a_name_the_lists_are_listed(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in [*LISTS, "dp-fedavg", "clip_scale", "mixed-scale", "prioritized"])
    with pytest.raises(SystemExit):
        main(["list", "--help"])
    explained = capsys.readouterr().out
    assert all(name in explained for name in LISTS)


def test_a_generator_of_ones_own_can_be_written_from_its_list(capsys):
    """Every setting that the list calls a range takes one, every other only values."""
    assert main(["list", "generators"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    ranges = {name for name in SETTINGS if f" {name}" in words.split("SETTING=LOW..HIGH")[1].split("SETTING=A|B")[0]}
    for name in SETTINGS:
        assert name in words.split("SETTING=A|B")[1]
        with contextlib.nullcontext() if name in ranges else pytest.raises(InputError, match=r"VALUE\|VALUE"):
            parse_generator(f"{name}=2..3")


def test_a_run_leaves_its_records(folder, capsys):
    assert main(["run", "--controller", "exponential-decay:2:0.5", "--seed", "3", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "epsilon            7.5 certified, 7.5 spent of 7.5" in printed
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("digits__exponential-decay-2-0.5__3__")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["federation"]["rounds"] == 3
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["epsilon_spent"] <= 7.5
    assert summary["epsilon_pld"] <= 7.5
    assert summary["figure_classes"]["clipped_share"] == "raw"
    lines = (run / "rounds.csv").read_text().splitlines()
    assert len(lines) == 4
    clips = [float(line.split(",")[lines[0].split(",").index("clip_norm")]) for line in lines[1:]]
    assert clips == pytest.approx([2, 1, 0.5], rel=1e-3)
    events = EventAccumulator(str(run)).Reload()
    for name in ("global_accuracy", "personal_accuracy", "clip_norm", "epsilon_spent", "epsilon_left", "clipped_share"):
        assert len(events.Scalars(TAGS[name])) == 3


def test_the_same_run_twice_gives_the_same_rounds(folder):
    for _ in range(2):
        assert main(["run", "--seed", "4", "--sampling-rate", "0.5", *SMALL]) == 0
    first, second = ((run / "rounds.csv").read_bytes() for run in (folder / "runs").iterdir())
    assert first == second


@pytest.mark.parametrize("method", ["fedavg", "dp-fedavg", "dp-fedavg-fb", "fedper", "local-only", "frozen-extractor"])
def test_every_method_runs_from_the_command_line(method, folder, capsys):
    epsilon = ["--epsilon", "inf"] if method == "fedavg" else []
    controller = [] if method not in ("fedavg", "local-only", "frozen-extractor") else ["--controller", "none"]
    assert main(["run", "--method", method, *epsilon, *controller, *SMALL]) == 0
    assert "personal accuracy" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_rounds(folder, monkeypatch, capsys):
    from envs import EnvCore

    step = EnvCore.step

    def interrupted(self, actions, rows=None):
        if self.federation.rounds[0] == 2:
            raise KeyboardInterrupt
        return step(self, actions, rows)

    monkeypatch.setattr(EnvCore, "step", interrupted)
    assert main(["run", *SMALL]) == 130
    (run,) = (folder / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert len((run / "rounds.csv").read_text().splitlines()) == 3


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_leaves_a_report_at_equal_epsilon(folder, capsys):
    controllers = ["fixed:0.5", "best-fixed", "server-lr-decay", "aqc", "random"]
    arguments = ["compare", "--controllers", *controllers, "--seeds", "2", "--search-instances", "1", *SMALL]
    assert main(arguments) == 0
    (run,) = (folder / "runs").iterdir()
    comparison = json.loads((run / "comparison.json").read_text())
    assert [controller["name"] for controller in comparison["controllers"]] == controllers
    for controller in comparison["controllers"]:
        assert [episode["seed"] for episode in controller["episodes"]] == [3_000_000, 3_000_001]
        for episode in controller["episodes"]:
            assert 7.4 < episode["epsilon_spent"] <= 7.5
            assert episode["epsilon_pld"] <= 7.5
    by_name = {controller["name"]: controller for controller in comparison["controllers"]}
    assert by_name["best-fixed"]["search_rounds"] == 13 * 3
    assert by_name["fixed:0.5"]["search_rounds"] == 0
    assert by_name["aqc"]["signal_classes"] == ["public", "accounted"]
    update = by_name["fixed:0.5"]["episodes"][0]["trajectory"]["noise_multiplier"][0]
    paid = by_name["aqc"]["episodes"][0]["trajectory"]["noise_multiplier"][0]
    assert paid == pytest.approx(update / 0.9**0.5, rel=1e-6)
    assert (run / "report.html").exists()
    assert (run / "report.md").exists()


def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(folder, monkeypatch, capsys):
    import errno

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fl_core.base.files.os.fsync", full)
    assert main(["run", *SMALL]) == 2
    assert "No space left on device" in capsys.readouterr().err
    (run,) = (folder / "runs").iterdir()
    assert [path.name for path in run.iterdir() if "tfevents" not in path.name] == []


@pytest.mark.parametrize("command", ["run", "compare", "train"])
def test_runs_that_cannot_be_written_are_refused_in_a_sentence_before_any_work(command, folder, monkeypatch, capsys):
    def begun(*_, **__):
        raise AssertionError("a round was played")

    monkeypatch.setattr("fl_core.run.federation.Federation.run_round", begun)
    (folder / "runs").write_text("a file, not a folder")
    assert main([command]) == 2
    error = capsys.readouterr().err
    assert "runs" in error
    assert error.strip().count("\n") == 0
