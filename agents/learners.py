"""State of a stable-baselines3 learner as tensors: weights, optimizers, variables and replayed decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from torch import Tensor

from agents.weights import Tensors

_REPLAY, _VARIABLE = "replay/", "variable/"
_REPLAYED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def learner_tensors(model: BaseAlgorithm) -> Tensors:
    """Collect the state of a learner, by path."""
    tensors: Tensors = {}
    for name, state in model.get_parameters().items():
        if "param_groups" in state:
            for index, slots in state["state"].items():
                tensors |= {f"{name}/{index}/{slot}": value for slot, value in slots.items()}
        else:
            tensors |= {f"{name}/{key}": value for key, value in state.items()}
    tensors |= {f"{_VARIABLE}{name}": value.detach() for name, value in _variables(model).items()}
    return tensors | _replay_tensors(model)


def load_learner(model: BaseAlgorithm, tensors: Mapping[str, Tensor]) -> None:
    """Put the state of one learner into a fresh one of its kind.

    Raises:
        ValueError, KeyError: it does not fit.
    """
    parameters: dict[str, Any] = dict(model.get_parameters())
    for name, state in parameters.items():
        mine = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}
        if "param_groups" in state:
            slots: dict[int, dict[str, Tensor]] = {}
            for key, value in mine.items():
                index, _, slot = key.partition("/")
                slots.setdefault(int(index), {})[slot] = value
            state["state"] = slots
        else:
            parameters[name] = mine
    try:
        model.set_parameters(parameters, exact_match=True, device=model.device)
    except RuntimeError as error:
        raise ValueError("weights of another shape") from error
    for name, variable in _variables(model).items():
        variable.data.copy_(_like(variable, tensors, f"{_VARIABLE}{name}"))
    _load_replay(model, tensors)


def policy_tensors(model: BaseAlgorithm) -> Tensors:
    """Copy the policy's weights."""
    return {name: value.detach().cpu().clone() for name, value in model.policy.state_dict().items()}


def is_finite(model: BaseAlgorithm) -> bool:
    """Return True if all weights of the policy and the state of all optimizers are finite."""
    parts = (value for name, value in learner_tensors(model).items() if not name.startswith(_REPLAY))
    return all(bool(torch.isfinite(value).all()) for value in parts)


def _variables(model: BaseAlgorithm) -> Tensors:
    """Variables that a learner optimises beside its policy, such as the weight of the entropy."""
    _, names = model._get_torch_save_params()
    return {name: attrgetter(name)(model) for name in names}


# ---------------------------------------------------------------- episodes, of which its log tells averages


def played_episodes(model: BaseAlgorithm) -> tuple[int, list[list[float]]]:
    """Return how many episodes have ended, and reward and length of the last of them."""
    recent = [[float(one["r"]), float(one["l"])] for one in model.ep_info_buffer or ()]
    return model._episode_num, recent


def recall_episodes(model: BaseAlgorithm, count: int, recent: Sequence[Sequence[float]]) -> None:
    """Let a learner go on after episodes that `played_episodes` returned.

    Raises:
        ValueError: a reward is none of single precision.
    """
    most = float(np.finfo(np.float32).max)
    for reward, _ in recent:
        if not -most <= reward <= most:
            raise ValueError(f"an episode's reward is {reward:g}")
    model._episode_num = count
    # Single precision, as it was noted: the mean of a list is rounded as its entries are.
    episodes = ({"r": np.float32(reward), "l": length} for reward, length in recent)
    model.ep_info_buffer = deque(episodes, maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(maxlen=model._stats_window_size)  # made together; no episode here succeeds or fails


# ---------------------------------------------------------------- replayed decisions


def _replay_tensors(model: BaseAlgorithm) -> Tensors:
    """Filled part of a replay buffer, and the position of the next decision."""
    buffer: ReplayBuffer | None = getattr(model, "replay_buffer", None)
    if buffer is None:
        return {}
    tensors = {name: torch.from_numpy(getattr(buffer, name)[: buffer.size()]) for name in _REPLAYED}
    tensors["position"] = torch.tensor([buffer.pos, int(buffer.full)])
    return {f"{_REPLAY}{name}": value for name, value in tensors.items()}


def _load_replay(model: BaseAlgorithm, tensors: Mapping[str, Tensor]) -> None:
    buffer: ReplayBuffer | None = getattr(model, "replay_buffer", None)
    if buffer is None:
        return
    position = _like(torch.zeros(2, dtype=torch.int64), tensors, f"{_REPLAY}position").tolist()
    if not 0 <= position[0] < buffer.buffer_size or position[1] not in (0, 1):
        raise ValueError(f"a replay buffer at {position}, which has {buffer.buffer_size} places")
    buffer.pos, buffer.full = position[0], bool(position[1])
    for name in _REPLAYED:
        mine = getattr(buffer, name)[: buffer.size()]
        mine[:] = _like(torch.from_numpy(mine), tensors, f"{_REPLAY}{name}").numpy()


def _like(mine: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of a state where it has the type and shape of the one that it replaces; else ValueError."""
    given = tensors[name]
    if given.dtype != mine.dtype or given.shape != mine.shape:
        raise ValueError(f"{name} is {given.dtype} {tuple(given.shape)}, not {mine.dtype} {tuple(mine.shape)}")
    return given
