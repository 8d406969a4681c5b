"""Budgets of the clients' own: one public ε and one filter for each, out when it trips."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_core.base.errors import InputError
from fl_core.privacy import accounting
from fl_core.privacy.mechanism import scaled_uploads
from fl_core.recipes.catalog import METHODS
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.privacy.independent import require_within_budget

DELTA = 1e-3


def config(method: str = "dp-fedavg", **changes) -> FederationConfig:
    own = {"clients": 8, "rounds": 10, "local_steps": 1, "executor": "sequential", "delta": DELTA, "epsilon": 8.0}
    return FederationConfig(method=method, **{**own, "client_epsilon": "2,8", **changes})


def plan(strength: float | None = None, share: float | None = None) -> RoundPlan:
    knobs = {} if strength is None else {"client_budget_strength": np.array([strength])}
    return RoundPlan(np.ones(1), np.ones(1), None if share is None else np.array([share]), knobs)


def uploads_of(federation: Federation) -> list[torch.Tensor]:
    """Norms of the clipped updates of the cohort, by client, in every round to come; updates are huge."""
    seen = []
    train, release = federation.executor.train, federation.releaser

    def saturated(work, images):
        models, losses = train(work, images)
        return models + 1e3, losses

    def watched(cohorts, draw):
        released = release(cohorts, draw)
        clipped = scaled_uploads(cohorts.updates, released.clipped, release._blocks)
        seen.append(torch.linalg.vector_norm(clipped[0], dim=-1))
        return released

    federation.executor.train, federation.releaser = saturated, watched
    return seen


def test_at_full_strength_every_client_lasts_to_the_end_with_a_clip_of_its_own():
    federation = Federation(config())
    seen = uploads_of(federation)
    while not federation.done.all():
        federation.run_round(plan())
    ratio = accounting.gdp_mu(2.0, DELTA) / accounting.gdp_mu(8.0, DELTA)
    for norms in seen:
        assert norms.tolist() == pytest.approx([ratio, 1.0] * 4, rel=1e-4)
    low, high = federation.charging.books[0].clients
    assert len(low.charges) == len(high.charges) == 10
    assert 1.99 < low.epsilon_spent() <= 2.0
    assert 7.99 < high.epsilon_spent() <= 8.0
    require_within_budget(low)
    require_within_budget(high)


def test_at_no_strength_a_small_budget_is_spent_at_full_clip_and_its_clients_leave():
    federation = Federation(config())
    seen = uploads_of(federation)
    while not federation.done.all():
        federation.run_round(plan(strength=0.0))
    precision = (accounting.gdp_mu(2.0, DELTA) / accounting.gdp_mu(8.0, DELTA)) ** 2
    stays = math.floor(10 * precision)  # rounds that the small budget pays for at q = 1
    assert 0 < stays < 10
    assert [len(norms) for norms in seen] == [8] * stays + [4] * (10 - stays)
    require_within_budget(federation.charging.books[0].clients[0])
    assert float(seen[-1].max()) == pytest.approx(1.0, rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    rate=st.sampled_from([1.0, 0.5]),
    telemetry=st.sampled_from([0.0, 0.3]),
    decisions=st.lists(st.tuples(st.floats(0, 2), st.floats(1e-3, 1.0)), min_size=1, max_size=10),
)
def test_no_sequence_of_decisions_spends_more_than_any_clients_budget(rate, telemetry, decisions):
    """ε by PLD of what each client's data went through: noise over its own clip, in the rounds before it was out."""
    made = config(sampling_rate=rate, telemetry_share=telemetry, client_epsilon="2,4,8", local_steps=1)
    federation = Federation(made)
    federation.executor.train = lambda work, images: (work.parameters, torch.zeros(len(work.parameters)))
    history: dict[int, list] = {0: [], 1: [], 2: []}
    for strength, share in decisions:
        lasting = federation.charging.books[0].lasting
        report = federation.run_round(plan(strength, share))
        if not report.ran[0]:
            break
        charge = federation.ledgers[0].charges[-1]
        shares = federation.charging.client_shares()[0]
        for group in range(3):
            if shares[group] > 0:
                part = lasting[group] ** strength
                history[group].append((charge.noise_multiplier / part, rate, 1))
    for group, epsilon in enumerate((2.0, 4.0, 8.0)):
        assert accounting.epsilon(history[group], DELTA) <= epsilon
        require_within_budget(federation.charging.books[0].clients[group])


def test_telemetry_weighs_clients_by_the_same_part():
    """Else a client with a small budget would pay more for its bit than for its update."""
    made = config(telemetry_share=0.5, epsilon=8.0)
    federation = Federation(made)
    federation.releaser = _Quiet(federation.releaser)
    scores = []
    for seed in range(60):
        federation.start([0], [RunSettings(seed=seed)])
        report = federation.run_round(plan())
        paid = {one.name: one.noise_multiplier for one in federation.ledgers[0].charges[0].releases}
        ratio = federation.charging.books[0].lasting[0]
        expected = 4 * (1 + ratio)  # everybody is within the clip norm: the weighted share is 1
        scores.append((report.figures["unclipped_share_noised"][0] - 1) * 2 * expected / paid["clip-bit"])
    assert stats.kstest(scores, "norm").pvalue > 1e-3


class _Quiet:
    """A release in which every update is within the clip norm."""

    def __init__(self, release):
        self._release = release

    def __call__(self, cohorts, draw):
        released = self._release(cohorts, draw)
        return replace(released, clipped=replace(released.clipped, within=cohorts.present))


def test_clients_that_are_out_are_never_drawn_again_and_keep_their_state():
    federation = Federation(config("fedper", sampling_rate=0.7))
    before = None
    while not federation.done.all():
        federation.run_round(plan(strength=0.0))
        out = np.flatnonzero(federation.charging.client_shares()[0] == 0)
        if len(out):
            if before is not None:
                assert torch.equal(federation.clients["local"][0, out], before)
            before = federation.clients["local"][0, out].clone()
    assert before is not None


def test_budgets_of_the_clients_own_bound_their_updates_whatever_is_said_of_risks():
    """exact_risk is about measured risks; it must not turn a smaller clip into noise that nobody adds."""
    plain, other = (Federation(config(set=edits)) for edits in ("", "exact_risk=true"))
    seen = [uploads_of(one) for one in (plain, other)]
    for one in (plain, other):
        one.run_round(plan())
    assert torch.equal(seen[0][0], seen[1][0])
    small, large = other.charging.books[0].lasting
    assert (seen[1][0] <= torch.tensor([small, large] * 4) * (1 + 1e-4)).all()


def test_a_saved_run_continues_with_its_clients_budgets():
    one, other = Federation(config()), Federation(config())
    for _ in range(3):
        one.run_round(plan(strength=0.0))
    other.load_state_dict(one.state_dict())
    while not one.done.all():
        first, second = one.run_round(plan(strength=0.0)), other.run_round(plan(strength=0.0))
        assert first.figures["participants"] == second.figures["participants"]
    assert torch.equal(one.server, other.server)


def test_a_saved_run_whose_clients_budgets_were_edited_is_refused():
    federation = Federation(config())
    federation.run_round(plan())
    state = federation.state_dict()
    state["plain"]["books"][0]["clients"][0]["charges"] = []
    with pytest.raises(InputError, match="edited or is damaged"):
        federation.load_state_dict(state)


def test_a_run_with_another_budget_scales_its_clients_budgets():
    federation = Federation(config())
    federation.start([0], [RunSettings(seed=0, epsilon=4.0)])
    assert [one.epsilon for one in federation.charging.books[0].clients] == [1.0, 4.0]


def test_a_run_without_a_budget_is_refused_where_clients_have_their_own():
    federation = Federation(config())
    with pytest.raises(InputError, match=r"epsilon is inf, but clients have budgets of their own, client_epsilon"):
        federation.start([0], [RunSettings(seed=0, epsilon=math.inf)])


@pytest.mark.parametrize("method", [name for name, recipe in METHODS.items() if recipe.private and name != "adp-pfl"])
def test_every_private_method_runs_with_budgets_of_its_clients(method):
    federation = Federation(config(method, rounds=2))
    seen = uploads_of(federation)
    report = federation.run_round(plan())
    assert report.ran.all()
    small, large = federation.charging.books[0].lasting
    assert (seen[0] <= torch.tensor([small, large] * 4) * (1 + 1e-4)).all()
    assert float(seen[0].max()) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client_epsilon": "2,x"}, "An entry of client_epsilon is 'x', but it must be a number"),
        ({"client_epsilon": "0,8"}, "must be above 0 and the largest equal to epsilon 8"),
        ({"client_epsilon": "2,4"}, "the largest equal to epsilon 8"),
        ({"client_epsilon": "2,nan,8"}, "An entry of client_epsilon is 'nan', but it must be a number"),
        ({"client_epsilon": "8,inf", "epsilon": math.inf}, "must be above 0"),
        ({"client_epsilon": ",".join(["8"] * 9)}, "9 budgets for 8 clients"),
        ({"method": "adp-pfl"}, r"shares budgets by risk; add --set client_budget=own"),
        ({"guarantee": "as-published"}, "needs guarantee sound"),
        ({"method": "fedavg", "epsilon": math.inf}, "releases nothing with noise"),
        ({"client_epsilon": "", "set": "client_budget=own"}, "client_epsilon names no budgets"),
    ],
)
def test_budgets_that_make_no_sense_are_refused_in_a_sentence(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)
