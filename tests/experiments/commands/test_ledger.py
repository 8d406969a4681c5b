"""`ledger.json` and `dpilot ledger`: what a reviewer reads of a run, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import EnvCore, make_core
from experiments.cli import main
from experiments.records.ledger_file import FILE, RunRecord, read_record, record_of, write_record
from experiments.records.privacy import report_of
from fl_core.base.errors import InputError
from fl_core.base.sealed import digest_of
from fl_core.privacy import accounting
from fl_core.privacy.ledger import Ledger
from fl_core.run.charging import Books
from fl_core.run.config import RunSettings

SIZE: dict[str, Any] = {"clients": 8, "rounds": 3, "local_steps": 1}


def core_of(**settings: Any) -> EnvCore:
    core = make_core(1, **SIZE | settings)
    core.reset([0], [RunSettings(seed=3)])
    while not core.finished.all():
        core.step(np.full((1, len(core.knobs)), 0.1))
    return core


@pytest.fixture(scope="module")
def sound() -> RunRecord:
    core = core_of(sampling_rate=0.5, signals="accounted", knobs="clip_norm,budget_pace")
    return record_of(core, 0, "ppo:x")


@pytest.fixture(scope="module")
def published() -> RunRecord:
    return record_of(core_of(method="adp-pfl", guarantee="as-published"), 0, "fixed", ("round_fraction",))


@pytest.mark.parametrize(
    "settings", [{"guarantee": "sound"}, {"guarantee": "as-published", "set": "aggregation.weights=data"}]
)
def test_what_telemetry_takes_counts_where_updates_carry_less_noise_than_is_claimed(settings: dict[str, Any]) -> None:
    core = core_of(knobs="telemetry_share", rounds=2, sampling_rate=0.5, telemetry_share=0.1, **settings)
    joint = []
    for coordinate in (-1.0, 1.0):
        core.reset([0], [RunSettings(seed=3)])
        core.step(np.array([[coordinate]]))
        joint.append(core.federation.ledgers[0].charges[0].noise_multiplier)
    depends = abs(joint[0] / joint[1] - 1) > 1e-9
    assert depends is (settings["guarantee"] == "as-published")
    assert record_of(core, 0, "x").facts.adaptive is depends
    assert record_of(core, 0, "x", ("round_fraction",)).facts.adaptive is False


def test_the_file_holds_every_release_and_continues_exactly(sound: RunRecord, tmp_path: Path) -> None:
    write_record(tmp_path, sound)
    record = json.loads((tmp_path / FILE).read_text(), parse_constant=lambda word: pytest.fail(word))
    assert record["accountant"] == sound.ledger.accountant
    assert record["joint_noise_multipliers"] == [charge.noise_multiplier for charge in sound.ledger.charges]
    for charge, (index, releases) in zip(sound.ledger.charges, record["ledger"]["charges"], strict=True):
        assert index == charge.round
        assert releases == [[one.name, one.noise_multiplier, one.signal_class] for one in charge.releases]
        assert {name for name, _, _ in releases} == {"update", "clip-bit"}
    target = Ledger(7.5, 1e-5, 0.5, 3)
    target.load_state_dict(record["ledger"])
    assert target.charges == sound.ledger.charges
    again = read_record(tmp_path)
    assert again.facts == sound.facts
    assert again.ledger.state_dict() == sound.ledger.state_dict()
    assert again.claim is None
    assert report_of(again) == report_of(sound)


def test_clients_with_budgets_of_their_own_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = {"set": "mechanism.client_budget=own", "client_epsilon": "2,7.5", "epsilon": 7.5}
    record = record_of(core_of(**edits), 0, "fixed", ())
    write_record(tmp_path, record)
    assert [one.charges for one in read_record(tmp_path).books.clients] == [one.charges for one in record.books.clients]
    assert main(["ledger", str(tmp_path)]) == 0
    spent = [f"{one.epsilon_spent():.4g} of {one.epsilon:g}" for one in record.books.clients]
    assert f"clients' own {', '.join(spent)};" in " ".join(capsys.readouterr().out.split())


def test_a_published_run_keeps_claim_and_certificate_apart(published: RunRecord, tmp_path: Path) -> None:
    write_record(tmp_path, published)
    again = read_record(tmp_path)
    assert again.claim is not None
    assert published.claim is not None
    assert again.claim.epsilon_spent() == published.claim.epsilon_spent()
    assert again.ledger.epsilon == math.inf
    report = report_of(again)
    assert report.certified is None
    assert report.spent <= 7.5
    assert any("Jacobian risk" in one for one in report.uncovered)


@pytest.mark.parametrize(
    ("knobs", "reads", "adaptive"),
    [
        ("clip_norm", None, False),  # a clip norm scales noise and signal alike
        ("budget_pace", None, True),
        ("budget_pace,clip_norm", ("round_fraction", "release_norm_ratio"), True),
        ("budget_pace", ("round_fraction", "last_budget_pace", "budget_left", "noise_level"), False),
        ("budget_pace", (), False),
    ],
)
def test_a_run_is_adaptive_where_the_noise_follows_what_was_released(
    knobs: str, reads: tuple[str, ...] | None, adaptive: bool
) -> None:
    core = core_of(knobs=knobs, sampling_rate=0.5, rounds=1)
    books = record_of(core, 0, "x", reads)
    assert books.facts.adaptive is adaptive
    report = report_of(books)
    assert report.exact is not adaptive
    assert ("the target holds, and the odometer" in report.validity) is adaptive
    assert report_of(replace(books, facts=replace(books.facts, diverged=True))).exact is False


def test_noise_chosen_from_releases_certifies_nothing_where_no_filter_stopped_it(published: RunRecord) -> None:
    """As published no filter limits the real noise: below rate 1 its Rényi figure holds for fixed noise alone."""
    ledger = Ledger(math.inf, 1e-5, 0.5, 3)
    facts = replace(published.facts, uncovered=(), adaptive=True)
    assert report_of(RunRecord(facts, Books(ledger, published.claim))).certified is None
    assert report_of(RunRecord(replace(facts, adaptive=False), Books(ledger, published.claim))).certified == 0


def test_epsilon_after_each_round_is_that_of_the_rounds_so_far(sound: RunRecord) -> None:
    for q in (1.0, 0.3):
        whole, part = Ledger(6, 1e-5, q, 5), Ledger(6, 1e-5, q, 5)
        certified, indicative = [], []
        for index, share in enumerate((0.1, 0.3, 0.2, 0.2)):
            for ledger in (whole, part):
                sigma = ledger.noise_multiplier_for_share(share)
                ledger.charge(index, [replace(sound.ledger.charges[0].releases[0], noise_multiplier=sigma)])
            certified.append(part.epsilon_spent())
            indicative.append(accounting.epsilon(part.segments(), 1e-5, "gdp" if q == 1 else "rdp"))
        assert whole.epsilon_after_rounds() == pytest.approx(certified, rel=1e-9)
        for found, least in zip(whole.epsilon_of_noise_after_rounds(), indicative, strict=True):
            assert least * (1 - 1e-9) <= found <= least * (1.03 if q < 1 else 1 + 1e-9)  # by whole orders below rate 1


def edited(folder: Path, change: Any, seal: bool = False) -> None:
    record = json.loads((folder / FILE).read_text())
    change(record)
    if seal:
        record["digest"] = digest_of(record)
    (folder / FILE).write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "seal"),
    [
        (lambda r: r["facts"].update(adaptive=False), False),
        (lambda r: r["facts"].update(uncovered=["nothing"]), False),
        (lambda r: r["ledger"]["charges"].pop(), False),
        (lambda r: r["joint_noise_multipliers"].append(1.0), False),
        (lambda r: r.pop("digest"), False),
        (lambda r: r["ledger"]["charges"].pop(), True),  # its own sha256 shows it
        (lambda r: r["ledger"].pop("epsilon"), True),
        (lambda r: r["facts"].pop("delta", r["facts"].pop("seed")), True),
        (lambda r: r.update(facts=None), True),
        (lambda r: r.update(format=1), True),
    ],
)
def test_an_edited_file_is_refused_in_a_sentence(
    sound: RunRecord, tmp_path: Path, change: Any, seal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, sound)
    edited(tmp_path, change, seal)
    with pytest.raises(InputError):
        read_record(tmp_path)
    assert main(["ledger", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_folders_that_are_no_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([str(tmp_path)], "is not the folder of a run"),
        ([str(tmp_path / "nowhere")], "There is no folder"),
        ([], "needs the folder of a run"),
    ):
        assert main(["ledger", *arguments]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / FILE).write_text('{"format": 1, "dpil')
    assert main(["ledger", str(tmp_path)]) == 2
    assert "not valid JSON" in capsys.readouterr().err


def test_a_run_leaves_its_ledger_and_the_report_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--clients", "8", "--rounds", "4", "--local-steps", "1", "--executor", "vectorized"]
    arguments = ["--controller", "budget-linear", "--sampling-rate", "0.5", "--runs", str(tmp_path)]
    assert main(["run", *small, *arguments, "--delta", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert "no, the controller chose the noise by the round alone: figures by any accountant hold" in printed
    (folder,) = tmp_path.iterdir()
    assert main(["ledger", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    ledger = read_record(folder).ledger
    low, high = (f"{f(c.noise_multiplier for c in ledger.charges):.4g}" for f in (min, max))
    for words in (
        "unit one client, add-remove (one client more or less); against whoever sees the released models",
        "delta is 0.2, at or above 1/clients",
        "Poisson, each of 8 clients with probability 0.5",
        "central: the server adds the noise",
        f"{ledger.epsilon_spent():.4g} ({ledger.accountant}), for noise chosen adaptively",
        f"odometer {ledger.odometer():.4g}",
        f"{ledger.epsilon_by('pld'):.4g} by PLD",
        f"update accounted 4 {low} to {high}",
        "controller saw round_fraction (public)",
        "shown, not covered exact figures of the clients: train loss, participants",
    ):
        assert words in shown
    assert (folder / "ledger.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_of_a_published_run_names_all_three_figures(
    published: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, published)
    assert main(["ledger", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "claimed 7.5 of 7.5 by the paper's accounting" in shown
    assert "certified none; the noise on the updates alone" in shown
    assert "each client's exact Jacobian risk" in shown


@pytest.mark.parametrize(
    "settings", [{"method": "fedavg", "epsilon": math.inf, "knobs": "none"}, {"epsilon": math.inf}]
)
def test_runs_without_noise_promise_nothing(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, record_of(core_of(**settings), 0))
    assert main(["ledger", str(tmp_path)]) == 0
    assert "certified none: nothing limits what was released" in " ".join(capsys.readouterr().out.split())


def test_accountants_are_chosen_by_name_and_give_their_own_figures(
    sound: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, sound)
    assert main(["ledger", str(tmp_path), "--accountants", "pld", "rdp"]) == 0
    printed = capsys.readouterr().out
    for name in ("pld", "rdp"):
        value = accounting.epsilon(sound.ledger.segments(), sound.ledger.delta, name)
        assert f"{value:.4g} by {name.upper()}" in printed


@pytest.mark.parametrize(
    ("accountant", "words"),
    [("pdl", "accountant 'pdl' is unknown; did you mean pld"), ("gdp", "holds at sampling_rate 1 only")],
)
def test_an_accountant_that_does_not_fit_is_refused_before_anything_is_printed(
    accountant: str, words: str, sound: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path, sound)
    assert main(["ledger", str(tmp_path), "--accountants", accountant]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
