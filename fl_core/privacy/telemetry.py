"""Paid telemetry: what a round tells of its clients beside their updates, with noise that the ledger is charged for.

Each client of the cohort contributes a vector of norm at most 1, and the noised sum is released. Adding a signal is
adding a line to `TELEMETRY`: reports, the ledger and the observations of controllers follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fl_core.base.errors import InputError, require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.base.values import read_list


@dataclass(frozen=True)
class Witness:
    """Measurements of the clients of a round's cohort, one row each; exact and private.

    Attributes:
        within: whether the update needed no clip `[rows]` (bool).
        layer_norms: norm of each layer of the clipped update over C `[rows, layers]`.
        scores: accuracy, and cross-entropy over its chance level ln(classes), of the client's model as it was just
            trained, on the client's own hold-out `[rows]` each.
    """

    within: Tensor
    layer_norms: Callable[[], Tensor]
    scores: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Telemetry:
    """A line of the catalogue.

    Attributes:
        figure: what reports and observations call the noised mean.
        summary: what it is.
        low, high: range of a client's value; what lies beyond is cut off.
        measure: the values of the clients `[rows, values]`.
        per_layer: whether there is one value per layer of the model.
    """

    figure: str
    summary: str
    low: float
    high: float
    measure: Callable[[Witness], Tensor]
    per_layer: bool = False

    def contributions(self, witness: Witness) -> Tensor:
        """Compute each client's term of the sum `[rows, values]`, of norm at most 1 whatever it measured.

        A single value counts from the middle of its range, so that half the range is the most that a client moves.
        """
        values = self.measure(witness).nan_to_num(self._neutral, self.high, self.low).clamp(self.low, self.high)
        scaled = (values - self._neutral) / self._reach
        norms: Tensor = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        return torch.div(scaled, norms.clamp_min(1.0))

    def figures(self, layers: Iterable[str]) -> list[str]:
        """Name the metrics of its values, for a model with these layers."""
        return [f"{self.figure}{PER_LAYER}{layer}" for layer in layers] if self.per_layer else [self.figure]

    def estimate(self, mean: Tensor) -> Tensor:
        """Convert a noised mean contribution `[..., values]` to the metric; noise may push it out of its range."""
        return self._neutral + self._reach * mean

    @property
    def _neutral(self) -> float:
        """The value that contributes nothing."""
        return self.low if self.per_layer else (self.low + self.high) / 2

    @property
    def _reach(self) -> float:
        return self.high - self._neutral


def _within(witness: Witness) -> Tensor:
    return witness.within.float().unsqueeze(-1)


def _accuracy(witness: Witness) -> Tensor:
    return witness.scores()[0].unsqueeze(-1)


def _loss(witness: Witness) -> Tensor:
    return witness.scores()[1].unsqueeze(-1)


def _layer_norms(witness: Witness) -> Tensor:
    return witness.layer_norms()


TELEMETRY: dict[str, Telemetry] = {
    "clip-bit": Telemetry(
        "unclipped_share_noised",
        "noised share of clients within the clip norm (quantile bit, Andrew et al. 2021)",
        0.0,
        1.0,
        _within,
    ),
    "accuracy": Telemetry(
        "accuracy_noised",
        "noised mean accuracy of the clients' models after local training, on their hold-outs",
        0.0,
        1.0,
        _accuracy,
    ),
    "loss": Telemetry(
        "loss_noised",
        "noised mean loss of the same models over chance level, each client's cut off at 2",
        0.0,
        2.0,
        _loss,
    ),
    "layer-norms": Telemetry(
        "layer_norm_noised",
        "noised mean norm of each layer of the clipped updates over the clip norm",
        0.0,
        1.0,
        _layer_norms,
        per_layer=True,
    ),
}
"""Everything that telemetry can pay for, by the name of its release."""

CLIP_BIT = "clip-bit"
PER_LAYER = "."
"""Between the name of a figure and that of the layer it is for."""


def parse_telemetry(text: str) -> dict[str, float]:
    """Shares of the telemetry's privacy by release, of a list such as `clip-bit` or `accuracy=0.7,loss=0.3`.

    Names without numbers share equally.

    Raises:
        InputError: a name is unknown or repeated, or the shares do not sum to 1.
    """
    entries = [piece.partition("=") for piece in read_list("telemetry", text)]
    names = [name.strip() for name, _, _ in entries]
    require(bool(names), "telemetry is empty, but it must name at least one release; clip-bit is the usual one.")
    for name in names:
        require_name("telemetry", name, TELEMETRY)
        require(names.count(name) == 1, f"telemetry is '{text}', but each release may be named only once.")
    given = [share.strip() for _, equals, share in entries if equals]
    if not given:
        return dict.fromkeys(names, 1 / len(names))
    require(len(given) == len(names), f"telemetry is '{text}', but either all its releases need a share or none.")
    shares = {name: _share(text, share) for name, share in zip(names, given, strict=True)}
    total = sum(shares.values())
    require(abs(total - 1) <= 1e-6, f"telemetry is '{text}', but its shares sum to {total:g}, and they must sum to 1.")
    return shares


def _share(text: str, share: str) -> float:
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise InputError(f"telemetry is '{text}', but a share must be a number above 0 and at most 1, not '{share}'.")
    return value


def by_figure(figure: str) -> Telemetry | None:
    """The telemetry behind a figure, or behind one layer's part of it."""
    name = figure.partition(PER_LAYER)[0]
    return next((one for one in TELEMETRY.values() if one.figure == name), None)


def figures_of(name: str, mean: Tensor, layers: tuple[str, ...]) -> Mapping[str, Tensor]:
    """Reported figures `[runs]` of a release's noised mean contribution `[runs, values]`."""
    values = TELEMETRY[name].estimate(mean)
    return {figure: values[:, index] for index, figure in enumerate(TELEMETRY[name].figures(layers))}
