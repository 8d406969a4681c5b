"""Arguments of stable-baselines3's policies, read off their weights and the text of their keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from agents.algorithms import ACTIVATIONS, ALGORITHMS, POLICY_KEYWORDS
from agents.weights import Tensors

_WITHOUT_EFFECT = ("lstm_hidden_size", "log_std_init", "net_arch", "normalize_images", "optimizer_class", "ortho_init")
"""Keywords of a policy that the weights tell, or that do not change how it acts."""
_FLATTEN = "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"


class NeedsPickle(ValueError):
    """A part of a model that its text and its weights do not tell; the message names it."""


def policy_arguments(algo: str, weights: Tensors, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Read the arguments of a policy off its weights and its keywords.

    Args:
        algo: its algorithm.
        weights: of the policy.
        keywords: that it was made with; a class stands as its text.

    Raises:
        NeedsPickle: a keyword cannot be told from its text, or is not known here.
    """
    _refuse_own_parts(keywords)
    usual = ALGORITHMS[algo].options
    actor, critic = _PARTS["log_std_init" in usual]
    first = next((one for one in actor if any(name.startswith(one) for name in weights)), actor[0])
    network = _widths(weights, first)
    value_network = _widths(weights, critic)
    if "log_std_init" not in usual:
        value_network = value_network[:-1]
        network = network[:-1] if first == "actor.mu." else network
    arguments: dict[str, Any] = {"network": network, "activation": _activation(algo, keywords)}
    if value_network != network:
        arguments["value_network"] = value_network
    if "log_std_init" in usual:
        arguments["log_std_init"] = 0.0  # where it began; the weights hold what became of it
    if "lstm_size" in usual:
        arguments["lstm_size"] = int(weights["lstm_actor.weight_hh_l0"].shape[1])
    further = {name: keywords[name] for name in POLICY_KEYWORDS if keywords.get(name) not in (None, False)}
    further |= {name: keywords[name] for name in _TRUE_UNLESS_SAID if keywords.get(name) is False}
    return arguments | ({"keywords": further} if further else {})


_PARTS = {
    True: (("mlp_extractor.policy_net.",), "mlp_extractor.value_net."),
    False: (("actor.latent_pi.", "actor.mu."), "critic.qf0."),
}
"""Where the weights of actor and critic lie, of learners from episodes and of those with replay."""
_TRUE_UNLESS_SAID = ("enable_critic_lstm", "full_std", "share_features_extractor")


def _refuse_own_parts(keywords: Mapping[str, Any]) -> None:
    for name, value in keywords.items():
        plain = name == "features_extractor_class" and value == _FLATTEN
        empty = name in ("features_extractor_kwargs", "lstm_kwargs") and not value
        settled = name in (*_WITHOUT_EFFECT, *POLICY_KEYWORDS, "activation_fn", "optimizer_kwargs")
        if not (plain or empty or settled):
            raise NeedsPickle(f"its policy was made with {name} {value if isinstance(value, str) else 'of its own'}")


def _widths(weights: Tensors, part: str) -> list[int]:
    """Widths of the layers of a part, in the order in which they are numbered."""
    layers = {
        int(name.removeprefix(part).partition(".")[0]): int(value.shape[0])
        for name, value in weights.items()
        if name.startswith(part) and name.endswith(".weight") and value.ndim == 2
    }
    return [layers[place] for place in sorted(layers)]


def _activation(algo: str, keywords: Mapping[str, Any]) -> str:
    text = keywords.get("activation_fn")
    if text is None:
        return "tanh" if "log_std_init" in ALGORITHMS[algo].options else "relu"  # stable-baselines3's own
    for name, made in ACTIVATIONS.items():
        if text == str(getattr(nn, made)):
            return name
    raise NeedsPickle(f"its policy was made with the activation {text}")
