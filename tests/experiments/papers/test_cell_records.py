"""A finished cell is used again only where every setting and the code are those that are asked for."""

import dataclasses
import json
import re

import pytest

import fl_core.base.code_version as code_version_module
from agents.online_learner import OnlineSettings
from envs import EnvSpec
from envs.tasks import TASKS
from experiments.cli import main
from experiments.papers import cells as cells_module
from experiments.papers.cell_records import find_record, kept, read_record, unused
from experiments.papers.cells import make_cells
from experiments.papers.tables import find_table
from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig
from tests.experiments.papers.records import write_record

TABLE = find_table("fedglp-adp-table3")
TINY = ["paper", "fedglp-adp-table1", "--dataset", "digits", "--model", "mlp", "--rounds", "1", "--folder", "here"]
TINY += ["--change", "local_epochs=0", "local_steps=1", "executor=vectorized", "--blocks", "fashion-mnist"]
TINY += ["--methods", "dp-fedavg", "--cells", "epsilon=2", "--guarantees", "sound"]
RESULTS = {
    "figures": {}, "history": [], "tests": {"holdout": 0.5, "classes": 0.5, "whole": 0.5}, "diverged": False,
    "uplink_bytes": 0.0, "seconds": 1.0, "seconds_per_round": 1.0, "parameters": 10,
    "privacy": {
        "spent": 2.0, "certified": 2.0, "updates_only": 2.0, "uploads_view": None, "at_small_delta": None,
        "uncovered": [],
    },
}  # fmt: skip


def cell(**change):
    return make_cells(TABLE, ("sound",), 1, {"dataset": "digits", "model": "mlp", **change})[0]


def set_default(patch, settings, name, value):
    """Give a frozen dataclass another default, as an edit of its source would."""
    names = [field.name for field in dataclasses.fields(settings)]
    values = list(settings.__init__.__defaults__)
    values[names.index(name) - len(names)] = value
    patch.setattr(settings.__init__, "__defaults__", tuple(values))


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_setting_is_in_the_key():
    own = cell()
    kinds = (EnvSpec, FederationConfig)
    assert {field.name for kind in kinds for field in dataclasses.fields(kind)} < set(own.asked["setting"])
    assert own.asked["controller"]["name"] == "none"
    others = [
        dataclasses.replace(own, seed=own.seed + 1),
        dataclasses.replace(own, code="0" * 12),
        dataclasses.replace(own, controller="aqc"),
        cell(clip_norm=2 * own.clip_norm),
        dataclasses.replace(own, setting=own.setting.replace(evaluate_every_round=True)),
        dataclasses.replace(own, setting=own.setting.replace(test_fraction=0.25)),
    ]
    assert len({one.key for one in (own, *others)}) == 1 + len(others)
    elsewhere = dataclasses.replace(own, table="x", block="x", row="x", column="x", substitute_for="x")
    assert elsewhere.key == own.key


def change_the_usual_federation(patch):
    usual = TASKS["digits"]
    patch.setitem(
        TASKS, "digits", dataclasses.replace(usual, federation=dataclasses.replace(usual.federation, weight_decay=0.25))
    )


def change_the_usual_view(patch):
    set_default(patch, EnvSpec, "decision_rounds", 2)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (change_the_usual_federation, "setting.weight_decay is 0.0 there and 0.25 here"),
        (change_the_usual_view, "setting.decision_rounds is 1 there and 2 here"),
    ],
)
def test_a_changed_default_is_another_run(tmp_path, monkeypatch, change, difference):
    write_record(cell(), tmp_path, RESULTS)
    assert find_record(cell(), tmp_path) is not None
    change(monkeypatch)
    changed = cell()
    assert find_record(changed, tmp_path) is None
    assert unused([changed], [changed], tmp_path) == [f"1 finished run of other settings, not used: {difference}."]


def test_a_changed_range_and_a_changed_agent_are_other_runs(monkeypatch):
    own, online = cell().key, cell(controller="online-ppo").key
    with monkeypatch.context() as patch:
        patch.setattr(cells_module, "CLIP_SPAN", 4.0)
        assert cell().key != own
    set_default(monkeypatch, OnlineSettings, "buffer", 5)
    assert cell().key == own
    assert cell(controller="online-ppo").key != online


def test_the_record_must_say_what_is_asked(tmp_path):
    """Copied from another run, edited, cut short, or of a format before this one."""
    own, other = cell(), cell(test_fraction=0.25)
    write_record(other, tmp_path, RESULTS)
    other.path(tmp_path).rename(own.path(tmp_path))
    with pytest.raises(InputError, match=r"was made with setting\.test_fraction 0\.25, but here it is 0\.01"):
        read_record(own, tmp_path)
    write_record(own, tmp_path, RESULTS)
    assert read_record(own, tmp_path)["seed"] == own.seed
    rewrite(own.path(tmp_path), diverged=True)
    with pytest.raises(InputError, match="changed since it was written"):
        read_record(own, tmp_path)
    own.path(tmp_path).write_text('{"seed": 3, "settings": {}}')
    assert find_record(own, tmp_path) is None
    (line,) = unused([own], [own], tmp_path)
    assert line.startswith("1 finished run of an older version of dpilot or damaged, not used: ")
    assert "has format None, but this version of dpilot reads format 2" in line
    own.path(tmp_path).write_text("{")
    assert find_record(own, tmp_path) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seconds": "x"}, "seconds is 'x', but it must be a finite number of at least 0"),
        ({"tests": {"whole": 0.5}}, "but it must be numbers between 0 and 1 for holdout"),
        ({"tests": RESULTS["tests"] | {"whole": 1.5}}, "but it must be numbers between 0 and 1 for holdout"),
        ({"figures": {"personal_accuracy": 3}}, "figures is {'personal_accuracy': 3}, but it must be metrics"),
        ({"history": [{"train_loss": 1.0}]}, "epsilon_spent among them"),
        ({"privacy": {}}, "is no record of a cell: it lacks privacy.spent"),
        ({"privacy": RESULTS["privacy"] | {"certified": -1}}, "privacy.certified is -1, but it must be a number of"),
        ({"privacy": RESULTS["privacy"] | {"certified": "nan"}}, "privacy.certified is 'nan'"),
        ({"privacy": RESULTS["privacy"] | {"uncovered": ["labels"]}}, "certifies epsilon 2.0, although it names"),
        ({"privacy": RESULTS["privacy"] | {"basis": 3}}, "privacy.basis is 3, but it must be a text"),
    ],
)
def test_results_that_no_run_has_are_refused_and_the_table_says_why(tmp_path, change, fault):
    own = cell()
    write_record(own, tmp_path, RESULTS | change)
    with pytest.raises(InputError, match=re.escape(fault)):
        read_record(own, tmp_path)
    (line,) = unused([own], [own], tmp_path)
    assert "or damaged, not used" in line
    assert fault in line


def test_other_code_is_kept_only_where_it_is_named(tmp_path):
    own = cell()
    older = dataclasses.replace(own, code="0" * 12)
    write_record(older, tmp_path, RESULTS)
    (line,) = unused([own], [own], tmp_path)
    assert line == (
        "1 finished run of another version of the code, not used; add --keep-code 000000000000 to keep it, if nothing "
        "that has changed since can change a result."
    )
    assert kept([own], tmp_path, ()) == [own]
    assert kept([own], tmp_path, ("0" * 12,)) == [older]
    with pytest.raises(InputError, match="keep_code is '123', but no finished cell"):
        kept([own], tmp_path, ("123",))
    write_record(own, tmp_path, RESULTS)
    assert kept([own], tmp_path, ("0" * 12,)) == [own]


def test_a_run_of_other_code_and_other_settings_is_not_offered_to_be_kept(tmp_path):
    own = cell()
    older = dataclasses.replace(own, code="0" * 12, seed=own.seed + 1)
    write_record(older, tmp_path, RESULTS)
    older.path(tmp_path).rename(own.path(tmp_path))
    (line,) = unused([own], [own], tmp_path)
    assert line == f"1 finished run of other settings, not used: seed is {own.seed + 1} there and {own.seed} here."


@pytest.mark.usefixtures("undrawn")
def test_a_table_says_what_it_does_not_use_and_runs_it_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(TINY) == 0
    assert "1 run, 1 to do" in capsys.readouterr().out
    (path,) = (tmp_path / "here" / "cells").iterdir()
    version = json.loads(path.read_text())["asked"]["code"]
    monkeypatch.setattr(cells_module, "code_version", lambda *_: "0" * 12)
    assert main([*TINY, "--keep-code", version]) == 0
    assert "1 run, 0 to do" in capsys.readouterr().out
    assert main(TINY) == 0
    printed = capsys.readouterr().out
    assert f"--keep-code {version}" in printed
    assert "1 run, 1 to do" in printed
    block = json.loads((tmp_path / "here" / "result.json").read_text())["blocks"]["fashion-mnist"]
    assert block["code"] == ["0" * 12]
    assert path.exists(), "whoever takes the edit back finds it again"


def test_the_version_is_that_of_the_packages_that_can_change_a_result():
    assert code_version_module.RESULT_PACKAGES == ("fl_core", "envs", "policies", "agents")
    assert cell().code == code_version_module.code_version(*cells_module.RECORDING_MODULES)
