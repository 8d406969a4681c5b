"""A client app of one's own trains in plain PyTorch; the mod clips what it uploads, and speaks with the server."""

import pytest
import torch

from envs import Setting
from experiments.records.charge_journal import read_journal
from fl_core.base.errors import InputError

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from experiments.flower.mod import make_clipping_app
from experiments.flower.records import KNOBS, MODEL, ROUND, UPLOAD, arrays_of, to_arrays
from experiments.flower.strategy import model_of
from experiments.flower.terms import terms
from tests.experiments.flower.process_grid import ProcessGrid, in_a_task  # noqa: F401  (a fixture)
from tests.experiments.flower.test_strategy import strategy

SETTING = Setting.of(clients=4, rounds=3, local_steps=1, delta=0.01, epsilon=40.0, executor="sequential")
MODEL_OF_ALL = model_of(SETTING)


def train(module):
    """Two steps of SGD on data of the client's own."""
    torch.manual_seed(1)
    inputs, labels = torch.randn(12, 1, 8, 8), torch.randint(0, 10, (12,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()


def own_app(setting, change=lambda state: state):
    """The client app of a user: it knows nothing of DPilot but the mod."""
    app = make_clipping_app(lambda context: setting.federation, MODEL_OF_ALL)

    @app.train()
    def on_train(message, context):
        module = MODEL_OF_ALL.make_module()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(module)
        content = {"arrays": ArrayRecord(change(module.state_dict())), "metrics": MetricRecord({"train_loss": 0.5})}
        return Message(RecordDict(content), reply_to=message)

    return app


def asked(clip_norm, start, telemetry=(), setting=SETTING, exact=False):
    """A server's message of a round."""
    told = {"terms": terms(setting.federation), "index": 0, "seed": 0, "telemetry": list(telemetry)}
    content = {
        MODEL: to_arrays({"server": start}),
        KNOBS: ConfigRecord({"clip_norm": clip_norm}),
        ROUND: ConfigRecord(told | {"exact_metrics": exact}),
    }
    return Message(RecordDict(content), 1000, "train")


def reply_of(message, app=None):
    context = Context(0, 1000, {"partition-id": 2}, RecordDict(), {})
    return (app or own_app(SETTING))(message, context)


def plain_update(start):
    module = MODEL_OF_ALL.make_module()
    torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
    train(module)
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach() - start


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_an_update_is_clipped_to_the_clip_norm_of_the_round(share):
    start = MODEL_OF_ALL.initial(0)
    update = plain_update(start)
    clip_norm = share * float(update.norm())
    uploaded = arrays_of(reply_of(asked(clip_norm, start, ["clip-bit", "layer-norms"])).content, UPLOAD)
    torch.testing.assert_close(uploaded["update"], update * min(1.0, share))
    assert float(uploaded["telemetry.clip-bit"]) == (1.0 if share > 1 else -1.0)
    spans = [uploaded["update"][span.slice].norm() / clip_norm for span in MODEL_OF_ALL.layers]
    torch.testing.assert_close(uploaded["telemetry.layer-norms"], torch.stack(spans))


def test_a_federation_of_such_apps_releases_the_mean_of_their_clipped_updates(tmp_path):
    setting = SETTING.replace(epsilon=1e6, delta=0.01, rounds=1)  # hardly any noise
    grid = ProcessGrid(setting)
    grid.app = own_app(setting)
    with_mod = strategy(tmp_path, setting, "fixed:0.5")
    start = with_mod.server.broadcast()["server"].clone()
    with_mod.start(grid)
    update = plain_update(start)
    expected = start + update * min(1.0, 0.5 / float(update.norm()))
    torch.testing.assert_close(with_mod.server.broadcast()["server"], expected, atol=1e-3, rtol=0)


def test_a_controller_that_reads_the_clip_bit_steers_such_apps(tmp_path):
    grid = ProcessGrid(SETTING)
    grid.app = own_app(SETTING)
    steered = strategy(tmp_path, SETTING.replace(signals="accounted"), "aqc")
    steered.start(grid)
    assert len(read_journal(tmp_path / "charges.jsonl").rounds) == 3
    assert steered.failures == [0, 0, 0]


def test_exact_losses_are_sent_only_if_they_are_asked_for():
    start = MODEL_OF_ALL.initial(0)
    assert "metrics" not in reply_of(asked(1.0, start)).content
    assert reply_of(asked(1.0, start, exact=True)).content["metrics"]["train_loss"] == 0.5


def test_training_that_diverged_is_told_as_such_and_adds_to_no_sum():
    app = own_app(SETTING, lambda state: {name: value * float("nan") for name, value in state.items()})
    uploaded = arrays_of(reply_of(asked(1.0, MODEL_OF_ALL.initial(0), ["clip-bit"]), app).content, UPLOAD)
    assert not torch.isfinite(uploaded["update"]).any()
    assert float(uploaded["telemetry.clip-bit"]) == 0.0


@pytest.mark.parametrize(
    ("message", "change", "sentence"),
    [
        (lambda start: asked(1.0, start[:7]), lambda state: state, "The server's model has 7 parameters"),
        (lambda start: asked(1.0, start, ["accuracy"]), lambda state: state, "tells none"),
        (lambda start: asked(1.0, start), lambda state: dict(list(state.items())[1:]), "lacks '"),
        (
            lambda start: asked(1.0, start, setting=SETTING.replace(clients=5)),
            lambda state: state,
            "nothing was trained",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(message, change, sentence):
    with pytest.raises(InputError, match=sentence):
        reply_of(message(MODEL_OF_ALL.initial(0)), own_app(SETTING, change))


def test_a_method_with_clients_of_its_own_is_refused():
    setting = SETTING.replace(method="feddpa")
    with pytest.raises(InputError, match="it must be dp-fedavg"):
        reply_of(asked(1.0, MODEL_OF_ALL.initial(0), setting=setting), own_app(setting))
