"""Server and clients of a federation as parties of their own, held against the engine that simulates them at once."""

import numpy as np
import pytest
import torch

from envs import ControlLoop, make_core
from envs.playing import decisions
from fl_core.base.errors import InputError
from fl_core.models.build import build_model
from fl_core.recipes.catalog import METHODS
from fl_core.run.client import FederatedClient
from fl_core.run.cohort import draw_cohort
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.deployable import require_deployable
from fl_core.run.knobs import knob_tensors
from fl_core.run.server import FederatedServer
from policies.catalog import CONTROLLERS

SEED = 4
SETTINGS = {"clients": 6, "rounds": 3, "local_steps": 2, "delta": 0.01, "epsilon": 40.0, "executor": "sequential"}
PROBE = {
    "knobs": "clip_median,server_learning_rate,budget_pace,telemetry_share",
    "signals": "accounted",
    "telemetry": "clip-bit",
}
MODEL = build_model("mlp", (1, 8, 8), 10)


def members(config, index):
    cohort = draw_cohort(config, [SEED], np.array([index]), np.array([True]), torch.device("cpu"))
    return cohort.members[0].tolist()


class Parties:
    """A server and its clients in one process, under a control loop."""

    def __init__(self, core, build):
        self.config = core.task.federation
        self.server = FederatedServer(self.config, core.federation.model, SEED, b"")
        self.clients = [FederatedClient(self.config, SEED, number) for number in range(self.config.clients)]
        self.kept = [{} for _ in self.clients]
        self.loop = ControlLoop(core.setting, build, core.federation.model, RunSettings(seed=SEED))

    def round(self):
        """Do one round; returns its figures."""
        now = self.loop.next_round()
        knobs, sent, uploads = knob_tensors(now.knobs), self.server.broadcast(), []
        paid = [name for name in now.noise if name != "update"]
        for number in members(self.config, now.index):
            uploads.append(self.clients[number].train(now.index, sent, knobs, self.kept[number], paid))
            self.kept[number] = uploads[-1].kept
        updates, told = [one.update for one in uploads], [one.telemetry for one in uploads]
        figures = self.server.release(now.index, knobs, now.noise, updates, told)
        self.loop.observe(figures)
        return figures


@pytest.mark.parametrize(
    ("method", "controller", "changes"),
    [
        ("dp-fedavg", "aqc", {"signals": "accounted", "telemetry": "clip-bit,accuracy,layer-norms"}),
        ("dp-fedavg", "probe", PROBE | {"rounds": 8}),
        ("fedper", "exponential-decay", {"sampling_rate": 0.6}),
        ("feddpa", "budget-exponential", {"knobs": "budget_pace"}),
        ("fedglp-adp", "log-odds", {"knobs": "layer_weights"}),
    ],
)
def test_parties_release_the_models_of_the_engine(method, controller, changes):
    build = CONTROLLERS[controller].for_env
    core = make_core(1, **SETTINGS | changes, method=method, reward="final-accuracy")
    core.reset([0], [RunSettings(seed=SEED)])
    parties = Parties(core, build)
    for _ in decisions(core, build(core)):
        figures, simulated = parties.round(), core.history[0][-1]
        np.testing.assert_allclose(parties.server.state.server, core.federation.server, atol=1e-6)
        assert figures == pytest.approx({name: simulated[name] for name in figures}, rel=1e-4, abs=1e-5)
    assert parties.loop.ledger.rows == core.federation.ledgers[0].rows
    for name, kept in core.federation.clients.items():
        for number, own in enumerate(parties.kept):
            if own:
                np.testing.assert_allclose(own[name], kept[0, number], atol=1e-6)


# ---------------------------------------------------------------- what clients do, and fail to do

KNOBS = knob_tensors({"clip_norm": 2.0, "server_learning_rate": 1.0, "average_weight": 1.0})


def server(**changes):
    config = FederationConfig(clients=20, sampling_rate=0.5, rounds=3, delta=0.01, **changes)
    return FederatedServer(config, MODEL, SEED, b"")


def released(updates, sigma=0.0, knobs=KNOBS):
    """Release updates; returns the sum, and how many of them were broken."""
    one = server()
    one.release(0, knobs, {"update": sigma}, updates, [{}] * len(updates))
    return one.state.last_release[0], one.broken


def spike(place, height):
    update = torch.zeros(MODEL.size)
    update[place] = height
    return update


def test_the_server_clips_again_what_clients_should_have_clipped():
    total, broken = released([spike(0, 1.0), spike(1, 50.0), spike(2, -1e9)])
    torch.testing.assert_close(total[:3], torch.tensor([1.0, 2.0, -2.0]), rtol=1e-5, atol=0)
    assert broken == 0


@pytest.mark.parametrize(
    "sent",
    [None, torch.full((MODEL.size,), torch.nan), spike(0, torch.inf), torch.zeros(3), torch.zeros(MODEL.size, 1)],
)
@pytest.mark.parametrize("sigma", [0.0, 1.5])
def test_a_client_that_fails_adds_nothing_and_changes_no_noise(sent, sigma):
    good = spike(1, 1.0)
    total, broken = released([good, sent], sigma)
    whole, none_broken = released([good], sigma)
    torch.testing.assert_close(total, whole, rtol=0, atol=0)
    assert (broken, none_broken) == (1, 0)


def test_nobody_releases_noise_alone():
    total, broken = released([], sigma=1.5)
    assert float(total.std()) == pytest.approx(3.0, rel=0.05)
    assert broken == 0


def test_a_secret_key_gives_noise_that_the_seed_does_not():
    one = FederatedServer(server().config, MODEL, SEED, b"k" * 32)
    one.release(0, KNOBS, {"update": 1.5}, [], [])
    assert not torch.equal(one.state.last_release[0], released([], sigma=1.5)[0])


@pytest.mark.parametrize("value", [torch.tensor([9.0]), torch.tensor([torch.nan]), torch.zeros(2), None])
def test_telemetry_is_bounded_whatever_a_client_sends(value):
    told = {} if value is None else {"clip-bit": value}
    figures = server().release(0, KNOBS, {"update": 0.0, "clip-bit": 0.0}, [spike(0, 1.0)], [told])
    most = 1.0 if value is not None and value.shape == (1,) and bool(value > 0) else 0.0
    assert figures["unclipped_share_noised"] == pytest.approx(0.5 + most * 0.5 / 10)


def test_a_message_of_another_model_is_refused_before_training():
    client = FederatedClient(FederationConfig(clients=6, delta=0.01), SEED, 0)
    with pytest.raises(InputError, match=r"lacks 'server' of shape .* it has another model"):
        client.train(0, {"server": torch.zeros(3)}, KNOBS, {})
    with pytest.raises(InputError, match="client is 6, but it must be in 0 to 5"):
        FederatedClient(FederationConfig(clients=6, delta=0.01), SEED, 6)


# ---------------------------------------------------------------- what can be deployed

DEPLOYABLE = {"dp-fedavg", "fedper", "feddpa", "fedglp-adp"}


def can_be_deployed(name):
    config = FederationConfig(method=name, **({} if METHODS[name].private else {"epsilon": float("inf")}))
    try:
        require_deployable(config, config.recipe())
    except InputError:
        return False
    return True


def test_the_methods_that_can_be_deployed_are_known():
    found = {name for name in METHODS if can_be_deployed(name)}
    assert found >= DEPLOYABLE
    assert {"local-only", "fedavg", "adp-pfl"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"placement": "distributed"}, "a client that fails takes its share of the noise with it"),
        ({"placement": "local"}, "placement is 'local'"),
        ({"sampling": "fixed"}, "sampling is 'fixed'"),
        ({"guarantee": "as-published"}, "guarantee is 'as-published'"),
        ({"sampling_rate": 0.01}, "an expected cohort of 0.2: most rounds would have nobody"),
    ],
)
def test_settings_that_cannot_be_deployed_are_refused_in_a_sentence(changes, words):
    config = FederationConfig(clients=20, delta=0.01, **changes)
    with pytest.raises(InputError, match=words):
        FederatedServer(config, MODEL, SEED, b"")
