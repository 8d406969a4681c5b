"""Client app: trains with the clients' part of the method, clips, and keeps its own model in the node's context."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from experiments.flower.records import KEPT, KNOBS, MODEL, ROUND, UPLOAD, arrays_of, from_knobs, to_arrays
from experiments.flower.terms import terms
from fl_core.base.errors import InputError, require
from fl_core.run.client import FederatedClient
from fl_core.run.config import FederationConfig
from fl_core.run.knobs import knob_tensors


def make_client_app(config_of: Callable[[Context], FederationConfig]) -> ClientApp:
    """Make the app of a client, whose number is the `partition-id` of its node.

    What it keeps between rounds (a personal head, a personal model) lies in the state of the node's context and is sent
    to nobody.

    Args:
        config_of: function from the node's context to the settings of the federation.
    """
    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def introduce(message: Message, context: Context) -> Message:
        """Tell which client of which federation this is; no data is read."""
        return introduction(message, context, config_of)

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        """Train for a round, and upload the clipped update."""
        config, asked = config_of(context), message.content.config_records[ROUND]
        require_terms(str(asked["terms"]), config)
        client = _client(config, int(asked["seed"]), number_of(context))
        kept = arrays_of(context.state, KEPT)
        knobs = knob_tensors(from_knobs(message.content.config_records[KNOBS]))
        paid = list(asked["telemetry"])
        upload = client.train(int(asked["index"]), arrays_of(message.content, MODEL), knobs, kept, paid)
        if upload.kept:
            context.state[KEPT] = to_arrays(upload.kept)
        sent: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
            UPLOAD: to_arrays({"update": upload.update} | {f"telemetry.{k}": v for k, v in upload.telemetry.items()}),
            ROUND: ConfigRecord({"index": int(asked["index"])}),
        }
        if asked["exact_metrics"]:
            sent["metrics"] = MetricRecord({"train_loss": upload.loss})
        return Message(RecordDict(sent), reply_to=message)

    return app


def introduction(
    message: Message,
    context: Context,
    config_of: Callable[[Context], FederationConfig],
    check: Callable[[FederationConfig, ConfigRecord], None] = lambda config, asked: None,
) -> Message:
    """Compose a client's answer to the server's question who it is, or why it takes no part.

    Args:
        message: of the server.
        context: of the node.
        config_of: function from the node's context to the settings of the federation.
        check: refuses, by an `InputError`, what the server says that its rounds ask for.
    """
    try:
        config = config_of(context)
        check(config, message.content.config_records[ROUND])
        told = ConfigRecord({"terms": terms(config), "number": number_of(context)})
    except InputError as error:  # Flower would log a traceback here, and tell the server nothing
        told = ConfigRecord({"refusal": str(error)})
    return Message(RecordDict({ROUND: told}), reply_to=message)


def number_of(context: Context) -> int:
    """Read the number of the client from its node's settings.

    Raises:
        InputError: it has none.
    """
    number = context.node_config.get("partition-id")
    require(
        isinstance(number, int) and not isinstance(number, bool),
        f"partition-id of this node is {number!r}, but it must be the client's number: "
        "flower-supernode --node-config 'partition-id=0'.",
    )
    return int(number)


def require_terms(asked: str, config: FederationConfig) -> None:
    """Refuse the message of a server of another federation, model or version."""
    own = terms(config)
    if asked != own:
        raise InputError(f"The server runs {asked}, but this client was set up for {own}; nothing was trained.")


@lru_cache(maxsize=4)
def _client(config: FederationConfig, seed: int, number: int) -> FederatedClient:
    """Make a client, once in a process."""
    return FederatedClient(config, seed, number)
