"""Client mod: a client app of one's own trains, and what leaves the node is clipped as the round asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from experiments.flower.client import introduction, require_terms
from experiments.flower.records import KNOBS, MODEL, ROUND, UPLOAD, arrays_of, from_knobs, to_arrays
from fl_core.base.errors import InputError, require
from fl_core.models.model import Model
from fl_core.privacy.mechanism import clip_factors, scaled_uploads
from fl_core.privacy.telemetry import TELEMETRY, Witness
from fl_core.run.config import FederationConfig

ARRAYS = "arrays"
"""Record in which a client app finds the model's parameters by name, and answers with the trained ones."""
METHOD = "dp-fedavg"
"""Method whose clients do nothing but train: their own app does it as well."""
LOSS = "train_loss"

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def make_clipping_app(config_of: Callable[[Context], FederationConfig], model: Model) -> ClientApp:
    """Make a client app that a train function of one's own is registered with, by `@app.train()`.

    The function finds the model's parameters by name in `message.content["arrays"]`, and answers with the trained ones
    there (and, if exact metrics are asked for, with `train_loss` in `"metrics"`). The app answers when the server asks
    which client this is.

    Args:
        config_of: function from the node's context to the settings of the federation.
        model: that the federation trains.
    """
    app = ClientApp(mods=[make_clip_mod(config_of, model)])

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def introduce(message: Message, context: Context) -> Message:
        def check(config: FederationConfig, asked: ConfigRecord) -> None:
            _require_own_training(config)
            size, told = asked.get("parameters"), [str(name) for name in asked.get("telemetry", [])]
            require(size == model.size, f"The server's model has {size} parameters, but the app's has {model.size}.")
            _upload(torch.zeros(model.size), torch.ones(()), told, model)  # refuses what it cannot tell

        return introduction(message, context, config_of, check)

    return app


def make_clip_mod(config_of: Callable[[Context], FederationConfig], model: Model) -> Mod:
    """Make the mod that clips an update to the round's clip norm, and adds the telemetry that the round has paid for.

    Arguments as of `make_clipping_app`.
    """

    def clip(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        config = config_of(context)
        asked = message.content.config_records[ROUND]
        require_terms(str(asked["terms"]), config)
        _require_own_training(config)
        start = arrays_of(message.content, MODEL)["server"]
        require(start.shape == (model.size,), f"The server's model has {start.numel()} parameters, not {model.size}.")
        norm = torch.as_tensor(from_knobs(message.content.config_records[KNOBS])["clip_norm"]).reshape(())
        message.content[ARRAYS] = to_arrays(model.unflatten(start))
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        update = _flat(arrays_of(reply.content, ARRAYS), model) - start
        sent: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
            UPLOAD: to_arrays(_upload(update, norm, [str(name) for name in asked["telemetry"]], model)),
            ROUND: ConfigRecord({"index": int(asked["index"])}),
        }
        metrics = reply.content.metric_records.get("metrics", MetricRecord())
        if asked["exact_metrics"] and LOSS in metrics:
            sent["metrics"] = MetricRecord({LOSS: metrics[LOSS]})
        return Message(RecordDict(sent), reply_to=message)

    return clip


def _require_own_training(config: FederationConfig) -> None:
    require(
        config.method == METHOD,
        f"method is '{config.method}', but a client app of one's own does no part of it; it must be {METHOD}.",
    )


def _flat(trained: Mapping[str, Tensor], model: Model) -> Tensor:
    """Join the trained parameters to a vector `[size]`; whatever is not the model's, such as buffers, stays here."""
    pieces = []
    for name, own in model.unflatten(torch.zeros(model.size)).items():
        fits = name in trained and trained[name].shape == own.shape
        require(fits, f"The client app's answer lacks '{name}' of shape {tuple(own.shape)} in '{ARRAYS}'.")
        pieces.append(trained[name].reshape(-1).to(own.dtype))
    return torch.cat(pieces)


def _upload(update: Tensor, norm: Tensor, telemetry: list[str], model: Model) -> dict[str, Tensor]:
    """Clip an update `[size]`, and compute its terms of the sums that are paid for; NaN where training diverged."""
    row = update.reshape(1, 1, -1)
    clip = clip_factors(row, torch.ones(1, 1, dtype=torch.bool), norm.reshape(1, 1, 1))
    finite = bool(clip.finite)
    clipped = scaled_uploads(row, clip)[0, 0] if finite else update

    def layer_norms() -> Tensor:
        pieces = [torch.linalg.vector_norm(clipped[span.slice]) for span in model.layers]
        return (torch.stack(pieces) / norm).unsqueeze(0)

    def scores() -> tuple[Tensor, Tensor]:
        raise InputError("telemetry asks for accuracies or losses, but a client app of one's own tells none.")

    witness = Witness(clip.within[0], layer_norms, scores)
    terms = {f"telemetry.{name}": TELEMETRY[name].contributions(witness)[0] * finite for name in telemetry}
    return {"update": clipped} | terms
