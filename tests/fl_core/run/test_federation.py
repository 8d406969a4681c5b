"""The batched run: rows, cohorts, broken clients, streams, saving and resuming, and what the methods are good for."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from fl_core.base.counters import stream_words
from fl_core.base.errors import InputError
from fl_core.base.streams import normal_draws, stream_seed
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from tests.fl_core.plain import (
    BODY,
    HEAD,
    METHODS,
    RELEASING,
    StubTraining,
    choose_cohorts,
    config,
    plan,
    release_of,
    same_state,
    snapshot,
)

torch.set_num_threads(1)
STATEFUL = ("fedper", "local-only", "frozen-extractor")


# ---------------------------------------------------------------- clients in, out and broken


@pytest.mark.parametrize("method", STATEFUL)
def test_a_client_outside_the_cohort_keeps_its_state_bit_for_bit(method, monkeypatch):
    choose_cohorts(monkeypatch, [1, 4], [])
    federation = Federation(config(method, sampling_rate=0.3), runs=2)
    before = federation.clients["local"].clone()
    federation.run_round(plan(2))
    changed = (federation.clients["local"] != before).any(-1)
    assert changed[0].nonzero().flatten().tolist() == [1, 4]
    assert not changed[1].any()


def break_clients(federation: Federation, values: dict[int, float], place: int) -> None:
    """Let the training of some rows end in a broken coordinate."""
    train = federation.executor.train

    def broken(work, images):
        trained, losses = train(work, images)
        for row, value in values.items():
            trained[row, place] = value
            losses[row] = value
        return trained, losses

    federation.executor.train = broken


@pytest.mark.parametrize("place", [0, BODY + 3], ids=["in-the-body", "in-the-head"])
@pytest.mark.parametrize("method", [*RELEASING, "feddpa", "fedglp-adp", "acdp-pfsd", "pmtl-ft", "adp-pfl", "ppsgd"])
def test_a_client_that_diverges_contributes_nothing_and_the_run_goes_on(method, place, monkeypatch):
    values = {1: math.nan, 2: math.inf, 3: -math.inf}
    choose_cohorts(monkeypatch, [0, 1, 2, 3, 6], [0, 6])
    federation = Federation(config(method, sampling_rate=0.5), runs=2)
    federation.start([0, 1], [RunSettings(seed=3)] * 2)
    before = {name: value.clone() for name, value in federation.clients.items()}
    break_clients(federation, values, place)
    report = federation.run_round(plan(2), evaluate=True)
    assert report.figures["rejected_updates"].tolist() == [3, 0]
    assert report.figures["participants"].tolist() == [5, 2]
    torch.testing.assert_close(release_of(federation)[0], release_of(federation)[1], atol=1e-5, rtol=1e-4)
    assert report.figures["train_loss"][0] == pytest.approx(report.figures["train_loss"][1], rel=1e-5)
    assert all(np.isfinite(value).all() or name.startswith("epsilon") for name, value in report.figures.items())
    for name, value in federation.clients.items():
        assert torch.equal(value[0, 1:4], before[name][0, 1:4])
        assert not torch.equal(value[0, 6], before[name][0, 6])
    assert federation.run_round(plan(2)).ran.all()


def test_a_client_whose_own_addition_diverges_contributes_nothing_and_keeps_what_it_had():
    """What it would upload is finite, but was trained beside something that is not."""
    federation = Federation(config("ppsgd", epsilon=math.inf))
    federation.run_round(plan())
    before, server = federation.clients["added"].clone(), federation.server.clone()
    break_clients(federation, dict.fromkeys(range(8), math.nan), BODY + 2 * HEAD - 1)
    report = federation.run_round(plan())
    assert report.figures["rejected_updates"] == 8
    assert torch.equal(federation.clients["added"], before)
    assert torch.equal(federation.server, server)


@pytest.mark.parametrize("method", ["fedavg", "dp-fedavg"])
def test_an_update_whose_norm_overflows_is_rejected_and_counted(method, monkeypatch):
    federation = Federation(config(method, epsilon=math.inf))
    server = federation.server.clone()
    break_clients(federation, dict.fromkeys(range(8), 1e30), 5)
    report = federation.run_round(plan())
    assert report.figures["rejected_updates"] == 8
    assert torch.equal(federation.server, server)


def test_local_only_clients_that_diverge_keep_the_model_they_had():
    federation = Federation(config("local-only"))
    federation.run_round(plan())
    before = federation.clients["local"].clone()
    break_clients(federation, {4: math.nan}, 0)
    report = federation.run_round(plan(), evaluate=True)
    assert report.figures["rejected_updates"] == 1
    assert torch.equal(federation.clients["local"][0, 4], before[0, 4])
    assert math.isfinite(report.figures["personal_loss"][0])


def test_an_absurd_learning_rate_ends_in_figures_not_in_an_exception():
    for method in METHODS:
        federation = Federation(config(method, rounds=6, learning_rate=1e18))
        for _ in range(6):
            federation.run_round(plan(), evaluate=True)
        assert federation.done.all()
        assert torch.isfinite(federation.server).all()  # the mean of nothing, or of clipped updates


# ---------------------------------------------------------------- rows of a batch


ROWS = (
    RunSettings(seed=11),
    RunSettings(seed=12, epsilon=3.0, partition="shards(2)"),
    RunSettings(seed=11, partition="iid", learning_rate=0.03),
)


def reaches(federation: Federation, row: int, other: Federation) -> None:
    """Row `row` and the single run `other` are in the same state."""
    torch.testing.assert_close(federation.server[row], other.server[0], atol=1e-5, rtol=1e-4)
    for name, value in federation.clients.items():
        torch.testing.assert_close(value[row], other.clients[name][0], atol=1e-5, rtol=1e-4)
    assert federation.ledgers[row].state_dict() == other.ledgers[0].state_dict()
    assert federation.rounds[row] == other.rounds[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "changes",
    [{"sampling_rate": 0.6}, {"local_epochs": 0.6, "sampling": "fixed", "sampling_rate": 0.5}],
    ids=["steps-poisson", "epochs-fixed"],
)
def test_a_row_of_a_batch_equals_the_run_alone(method, changes):
    """Rows of other seeds, partitions, budgets and rates, one of them a round behind."""
    rows = [replace(one, epsilon=None) for one in ROWS] if method == "fedavg" else list(ROWS)
    made = config(method, **changes)
    batch = Federation(made, runs=3)
    batch.start(range(3), rows)
    singles = [Federation(made) for _ in rows]
    for single, one in zip(singles, rows, strict=True):
        single.start([0], [one])
    for active in ([True, True, True], [True, False, True], [True, True, False]):
        report = batch.run_round(plan(3), np.array(active), evaluate=True)
        assert report.ran.tolist() == active
        for row, single in enumerate(singles):
            if active[row]:
                figures = single.run_round(plan(), evaluate=True).figures
                for name, value in figures.items():
                    assert report.figures[name][row] == pytest.approx(value[0], rel=2e-3, abs=2e-3), name
            else:
                assert all(np.isnan(value[row]) for value in report.figures.values())
            reaches(batch, row, single)
    assert batch.rounds.tolist() == [3, 2, 2]
    assert batch.done.tolist() == [True, False, False]
    last = batch.run_round(plan(3))
    assert last.ran.tolist() == [False, True, True]
    assert not last.refused.any()


def test_minibatches_of_a_run_do_not_depend_on_its_neighbours_longest_client():
    """Found with local_epochs: the keys were drawn for the steps of the longest client of the whole batch."""
    made = config(local_epochs=1.0, partition="iid")
    alone, among = Federation(made), Federation(made, runs=2)
    among.start([1], [RunSettings(seed=9, partition="dirichlet(0.1)")])
    stubs = StubTraining(alone), StubTraining(among)
    alone.run_round(plan())
    among.run_round(plan(2))
    (first,), (second,) = stubs[0].calls, stubs[1].calls
    steps = first.batches[0].shape[1]
    assert second.batches[0].shape[1] > steps
    assert torch.equal(second.batches[0][:8, :steps], first.batches[0])
    assert torch.equal(second.active[0][:8, :steps], first.active[0])
    assert not second.active[0][:8, steps:].any()


def test_a_client_passes_over_its_samples_once_per_local_epoch():
    federation = Federation(config(local_epochs=1.0, batch_size=4))
    stub = StubTraining(federation)
    federation.run_round(plan())
    (work,) = stub.calls
    for client in range(8):
        own = federation.tables.train.of(0, client)
        count = len(own)
        walked = work.batches[0][client][work.active[0][client]].flatten()
        assert len(walked) == 4 * math.ceil(count / 4)
        assert sorted(walked[:count].tolist()) == sorted(own.tolist())


def test_starting_a_row_leaves_the_others_untouched_and_equals_a_fresh_run():
    federation = Federation(config("fedper", sampling_rate=0.6), runs=3)
    reference = Federation(config("fedper", sampling_rate=0.6), runs=3)
    for one in (federation, reference):
        one.run_round(plan(3))
    before = federation.server.clone(), federation.clients["local"].clone()
    federation.start([1], [ROWS[1]])
    assert torch.equal(federation.server[[0, 2]], before[0][[0, 2]])
    assert torch.equal(federation.clients["local"][[0, 2]], before[1][[0, 2]])
    assert federation.rounds.tolist() == [1, 0, 1]
    fresh = Federation(config("fedper", sampling_rate=0.6))
    fresh.start([0], [ROWS[1]])
    reaches(federation, 1, fresh)
    assert not release_of(federation)[1].any()
    for _ in range(2):
        federation.run_round(plan(3))
        reference.run_round(plan(3))
        fresh.run_round(plan())
    reaches(federation, 1, fresh)
    for row in (0, 2):
        torch.testing.assert_close(federation.server[row], reference.server[row], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("rows", "starts"),
    [
        ([0, 1], [RunSettings(seed=1), RunSettings(seed=2, partition="classes(50)")]),
        ([0, 1], [RunSettings(seed=1), RunSettings(seed=2, partition="shards(2000)")]),
        ([0, 1], [RunSettings(seed=1)]),
        ([0], [RunSettings(seed=1), RunSettings(seed=2)]),
        ([0, 5], [RunSettings(seed=1), RunSettings(seed=2)]),
        ([-1], [RunSettings(seed=1)]),
    ],
    ids=["classes", "shards", "too-few", "too-many", "no-such-row", "negative-row"],
)
def test_a_start_that_is_refused_changes_nothing(rows, starts):
    federation = Federation(config("fedper"), runs=2)
    federation.run_round(plan(2))
    before = snapshot(federation)
    with pytest.raises(InputError):
        federation.start(rows, starts)
    assert same_state(before, snapshot(federation))
    untouched = Federation(config("fedper"), runs=2)
    for _ in range(2):
        untouched.run_round(plan(2))
    federation.run_round(plan(2))
    assert torch.equal(federation.server, untouched.server)


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("method", ["dp-fedavg", "fedper"])
def test_two_controllers_on_a_seed_meet_the_same_cohorts_batches_and_noise(method):
    made = config(method, sampling_rate=0.5, rounds=4, telemetry_share=0.1)
    records = []
    for clip, rate, share in ((0.1, 1.0, None), (6.0, 0.3, 0.5)):
        federation = Federation(made, runs=2)
        stub = StubTraining(federation)
        noise = []
        for _ in range(4):
            shares = None if share is None else np.full(2, share)
            figures = federation.run_round(plan(2, clip, rate, shares)).figures
            std = torch.from_numpy(clip * figures["noise_multiplier"]).unsqueeze(-1)
            noise.append(release_of(federation).double() / std)
        records.append((stub.calls, torch.stack(noise)))
    (first, noise), (second, other_noise) = records
    torch.testing.assert_close(noise, other_noise, atol=1e-5, rtol=1e-5)
    assert [len(work.parameters) for work in first] == [len(work.parameters) for work in second]
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.batches[0], other.batches[0])


def test_draws_differ_between_rounds_seeds_training_and_testing():
    federation = Federation(config("dp-fedavg-fb"), runs=2)
    stub = StubTraining(federation)
    for _ in range(2):
        federation.run_round(plan(2), evaluate=True)
    batches = [work.batches[0][:8, :3] for work in stub.calls] + [stub.calls[0].batches[0][8:]]
    for i in range(len(batches)):
        for j in range(i):
            assert (batches[i] != batches[j]).float().mean() > 0.5
    release = release_of(federation).double()
    assert abs(float(torch.nn.functional.cosine_similarity(release[0], release[1], dim=0))) < 0.1


@pytest.mark.parametrize(
    ("method", "streams"),
    [
        ("dp-fedavg-fb", {"minibatch", "noise", "telemetry", "evaluation"}),
        ("adp-pfl", {"minibatch", "noise", "telemetry", "risk"}),
        ("fed-smp", {"minibatch", "noise", "telemetry", "mask"}),
    ],
)
def test_no_draw_is_used_twice(method, streams, monkeypatch):
    """Batches, update noise, clip bit noise and test batches have draws of their own in every round and run."""
    asked, words = [], []

    def recorded(seed, stream, purpose, round_index):
        asked.append((seed, stream, round_index))
        words.append(stream_words(seed, stream, purpose, round_index))
        return words[-1]

    def recorded_noise(shape, *coordinates):
        asked.append(coordinates[:3])
        return normal_draws(shape, *coordinates)

    monkeypatch.setattr("fl_core.run.local_data.stream_words", recorded)
    monkeypatch.setattr("fl_core.run.draws.normal_draws", recorded_noise)
    federation = Federation(config(method, telemetry_share=0.1), runs=2)
    for _ in range(3):
        federation.run_round(plan(2), evaluate=True)
    assert len(asked) == len(set(asked)) == 2 * 3 * 4
    assert {stream for _, stream, _ in asked} == streams
    assert len({stream_seed(*one) for one in asked}) == len(asked)
    assert len(set(words)) == len(words) > 0


@pytest.mark.parametrize("method", ["local-only", "frozen-extractor"])
def test_knobs_that_a_method_does_not_have_are_nowhere(method):
    federation = Federation(config(method))
    assert federation.charging.knob_defaults(0) == {}
    assert federation.knob_values(plan()) == {}
    figures = federation.run_round(plan()).figures
    assert not {"clip_norm", "server_learning_rate", "noise_multiplier", "clipped_share"} & set(figures)
    with pytest.raises(InputError, match="knob 'clip_norm' is unknown"):
        federation.run_round(replace(plan(), settings={"clip_norm": np.ones(1)}))


def test_a_loss_reads_the_clip_norm_also_where_nothing_is_exchanged():
    made = config("local-only", set="term=bounded-norm,bounded-norm.weight=2")
    near, far = (Federation(made) for _ in range(2))
    near.run_round(plan(clip=0.01))
    far.run_round(plan(clip=8.0))
    start = Federation(made).clients["local"]
    assert (near.clients["local"] - start).norm() < 0.8 * (far.clients["local"] - start).norm()


def test_a_state_of_an_older_format_is_refused_in_a_sentence():
    federation = Federation(config())
    state = federation.state_dict()
    del state["plain"]["format"]
    with pytest.raises(InputError, match=r"format of the saved state is 1, but this version reads [0-9]+ only: .*\.$"):
        federation.load_state_dict(state)


def test_a_round_maps_a_state_to_the_next_and_leaves_the_servers_models_alone():
    federation = Federation(config("fedglp-adp"))
    before, server = federation.state, federation.server.clone()
    federation.run_round(plan())
    assert federation.state is not before
    assert torch.equal(before.server, server)
    assert not torch.equal(federation.server, server)
    assert set(federation.state.tensors()) == set(before.tensors())


def test_equal_seeds_give_equal_runs():
    federation = Federation(config("fedper", sampling_rate=0.5), runs=2)
    federation.start([0, 1], [RunSettings(seed=4)] * 2)
    for _ in range(2):
        report = federation.run_round(plan(2), evaluate=True)
    torch.testing.assert_close(federation.server[0], federation.server[1], atol=1e-6, rtol=1e-5)
    assert all(value[0] == pytest.approx(value[1], rel=1e-4) for value in report.figures.values())


def test_looking_at_a_run_does_not_change_it():
    seen, unseen = (Federation(config("dp-fedavg-fb", sampling_rate=0.5)) for _ in range(2))
    for _ in range(3):
        seen.evaluate()
        seen.run_round(plan(), evaluate=True)
        seen.state_dict()
        unseen.run_round(plan())
    assert same_state(snapshot(seen), snapshot(unseen))


# ---------------------------------------------------------------- saving and resuming

LENGTH = 4


def resumable(method: str, index: int) -> Federation:
    changes = [
        {"sampling_rate": 0.6, "telemetry_share": 0.2},
        {"placement": "local", "optimizer": "adam", "learning_rate": 0.01},
        {"local_epochs": 0.3, "sampling": "fixed", "sampling_rate": 0.5},
    ][index]
    if method not in ("dp-fedavg", "dp-fedavg-fb", "fedper"):
        changes.pop("telemetry_share", None)
    return Federation(config(method, rounds=LENGTH, **changes), runs=2)


def plan_of(round_index: int):
    shares = np.array([0.3, 0.9]) if round_index == 1 else None
    return plan(2, clip=0.3 * (round_index + 1), rate=1 / (round_index + 1), shares=shares)


@settings(max_examples=20, deadline=None)
@given(method=some.sampled_from(METHODS), index=some.integers(0, 2), split=some.integers(0, LENGTH))
def test_a_run_resumed_between_any_two_rounds_continues_bit_for_bit(method, index, split):
    whole = resumable(method, index)
    starts = [RunSettings(seed=8), RunSettings(seed=9, partition="iid", learning_rate=0.05)]
    if method != "fedavg":
        starts[1] = replace(starts[1], epsilon=4.0)
    whole.start([0, 1], starts)
    reports, saved = [], None
    for round_index in range(LENGTH):
        if round_index == split:
            saved = whole.state_dict()
        reports.append(whole.run_round(plan_of(round_index), evaluate=True))
    saved = saved or whole.state_dict()
    text = json.dumps(saved["plain"], allow_nan=False)
    resumed = resumable(method, index)
    resumed.run_round(plan_of(0))
    resumed.load_state_dict({"tensors": saved["tensors"], "plain": json.loads(text)})
    for round_index in range(split, LENGTH):
        report = resumed.run_round(plan_of(round_index), evaluate=True)
        for name, value in reports[round_index].figures.items():
            np.testing.assert_array_equal(report.figures[name], value, err_msg=name)
        assert report.refused.tolist() == reports[round_index].refused.tolist()
    assert same_state(snapshot(whole), snapshot(resumed))


def test_a_saved_state_is_a_copy():
    federation = Federation(config("fedper"))
    saved = federation.state_dict()
    before = saved["tensors"]["server"].clone(), json.dumps(saved["plain"])
    federation.run_round(plan())
    assert torch.equal(saved["tensors"]["server"], before[0])
    assert json.dumps(saved["plain"]) == before[1]
    federation.load_state_dict(saved)
    federation.run_round(plan())
    assert torch.equal(saved["tensors"]["server"], before[0])


def test_an_epsilon_written_as_a_whole_number_is_the_same_budget():
    saved = Federation(config(epsilon=8)).state_dict()
    Federation(config(epsilon=8.0)).load_state_dict(saved)
    infinite = Federation(config(epsilon=math.inf))
    infinite.start([0], [RunSettings(seed=1, epsilon=math.inf)])
    text = json.dumps(infinite.state_dict()["plain"], allow_nan=False)
    infinite.load_state_dict({**infinite.state_dict(), "plain": json.loads(text)})
    assert infinite.settings[0].epsilon == math.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "dp-fedavg"),
        ("epsilon", 100.0),
        ("delta", 1e-3),
        ("sampling_rate", 0.5),
        ("sampling", "fixed"),
        ("placement", "local"),
        ("rounds", 4),
        ("clients", 9),
        ("batch_size", 4),
        ("telemetry_share", 0.5),
        ("model", "cnn2"),
        ("partition", "iid"),
        ("guarantee", "as-published"),
        ("set", "term=proximal"),
    ],
)
def test_the_state_of_another_configuration_is_refused(field, value):
    federation = Federation(config("fedper"))
    federation.run_round(plan())
    before = snapshot(federation)
    foreign = Federation(replace(config("fedper"), **{field: value}))
    with pytest.raises(InputError, match=f"^{field} of the saved run is {value}, but here it is "):
        federation.load_state_dict(foreign.state_dict())
    assert same_state(before, snapshot(federation))


def edit_charge(state):
    state["plain"]["books"][1]["ledger"]["charges"][0][1][0][1] *= 10  # pretend that more noise was added


def forget_charges(state):
    state["plain"]["books"][0] = Federation(config("fedper")).charging.books[0].state_dict()


def rewind(state):
    state["plain"]["rounds"][0] = 0  # the same noise once more


def skip(state):
    state["plain"]["rounds"][0] = 3


def overshoot(state):
    state["plain"]["rounds"] = [7, 7]


def raise_budget(state):
    state["plain"]["settings"][0]["epsilon"] = "1000.0"


def drop_row(state):
    for part in ("settings", "rounds", "books"):
        state["plain"][part].pop()


def drop_books(state):
    state["plain"]["books"].pop()


def drop_ledger(state):
    del state["plain"]["books"][0]["ledger"]


def drop_field(state):
    del state["plain"]["config"]["delta"]


def drop_tensor(state):
    del state["tensors"]["clients.kept.local"]


def reshape_tensor(state):
    state["tensors"]["server"] = state["tensors"]["server"][:1]


def cast_tensor(state):
    state["tensors"]["server"] = state["tensors"]["server"].double()


def bad_rounds(state):
    state["plain"]["rounds"] = [1.5, "1"]


def no_settings(state):
    state["plain"]["settings"] = [{}, {}]


def bad_settings(state):
    state["plain"]["settings"][0]["partition"] = "everything"


def not_a_state(state):
    state.clear()


EDITS = (
    edit_charge,
    forget_charges,
    rewind,
    skip,
    overshoot,
    raise_budget,
    drop_row,
    drop_books,
    drop_ledger,
    drop_field,
    drop_tensor,
    reshape_tensor,
    cast_tensor,
    bad_rounds,
    no_settings,
    bad_settings,
    not_a_state,
)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_state_is_refused_in_a_sentence_and_changes_nothing(edit):
    federation = Federation(config("fedper"), runs=2)
    federation.run_round(plan(2))
    state = federation.state_dict()
    state = {"tensors": state["tensors"], "plain": json.loads(json.dumps(state["plain"]))}
    federation.run_round(plan(2))
    before = snapshot(federation)
    edit(state)
    with pytest.raises(InputError, match=r"\.$"):
        federation.load_state_dict(state)
    assert same_state(before, snapshot(federation))
    assert federation.run_round(plan(2)).ran.all()


@pytest.mark.parametrize("method", ["dp-fedavg", "fedper"])
def test_a_round_lost_to_an_error_stays_paid_for_and_the_run_can_go_on(method):
    federation = Federation(config(method))
    train = federation.executor.train
    before = federation.server.clone()

    def interrupted(work, images):
        raise KeyboardInterrupt

    federation.executor.train = interrupted
    with pytest.raises(KeyboardInterrupt):
        federation.run_round(plan())
    federation.executor.train = train
    assert torch.equal(federation.server, before)
    assert federation.rounds.tolist() == [1]
    assert len(federation.ledgers[0].charges) == 1
    federation.load_state_dict(federation.state_dict())
    report = federation.run_round(plan())
    assert report.ran.all()
    assert [charge.round for charge in federation.ledgers[0].charges] == [0, 1]


def test_more_rounds_than_planned_are_impossible():
    federation = Federation(config())
    for _ in range(3):
        assert federation.run_round(plan()).ran.all()
    before = snapshot(federation)
    report = federation.run_round(plan())
    assert not report.ran.any()
    assert not report.refused.any()
    assert same_state(before, snapshot(federation))


def test_settings_are_plain_values():
    assert json.loads(json.dumps(asdict(ROWS[1]))) == asdict(ROWS[1])


# ---------------------------------------------------------------- what the methods are good for


@pytest.fixture(scope="module")
def personal_accuracy():
    """Personal accuracy `[seeds]` without noise, two shards of digits for each of 20 clients, by method and steps."""

    def run(method: str, steps: int) -> np.ndarray:
        made = config(
            method, epsilon=math.inf, clients=20, rounds=12, partition="shards(2)", local_steps=steps, batch_size=16
        )
        federation = Federation(made, runs=4)
        while not federation.done.all():
            federation.run_round(plan(4, clip=2.0))
        return federation.evaluate()["personal_accuracy"]

    return {(method, steps): run(method, steps) for method in METHODS for steps in (1, 5)}


def test_personal_models_beat_the_global_one_where_clients_differ(personal_accuracy):
    for method in ("fedper", "local-only"):
        gain = personal_accuracy[method, 5] - personal_accuracy["dp-fedavg", 5]
        assert (gain > 0.05).all()


def test_tuning_the_head_for_a_test_helps(personal_accuracy):
    assert (personal_accuracy["dp-fedavg-fb", 5] > personal_accuracy["dp-fedavg", 5] + 0.02).all()


def test_a_longer_local_phase_lifts_those_who_train_alone(personal_accuracy):
    for method in ("local-only", "frozen-extractor"):
        assert (personal_accuracy[method, 5] > personal_accuracy[method, 1]).all()


def test_noise_costs_accuracy():
    made = config(clients=20, rounds=12, partition="iid", batch_size=16)
    accuracy = {}
    for epsilon in (math.inf, 4.0, 0.5):
        federation = Federation(replace(made, epsilon=epsilon), runs=4)
        while not federation.done.all():
            federation.run_round(plan(4))
        accuracy[epsilon] = federation.evaluate()["global_accuracy"].mean()
    assert accuracy[math.inf] > accuracy[4.0] > accuracy[0.5]
    assert accuracy[math.inf] > 0.6
    assert accuracy[0.5] < 0.3
