"""Statistics by which stable-baselines3's `VecNormalize` scales observations, kept with a controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize
from torch import Tensor

from agents.weights import Tensors
from fl_core.base.errors import InputError, require

_PREFIX = "normalization/"


def below_normalization(env: Any) -> Any:
    """Return the environment below a `VecNormalize` that scales observations; others as they are."""
    wrapper = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
    return env if wrapper is None or not wrapper.norm_obs else wrapper.venv


@dataclass(frozen=True, eq=False)
class Normalization:
    """Scaling of observations: (x - mean) / sqrt(variance + epsilon), clipped to [-clip, clip].

    Attributes:
        mean, variance: of each feature, float64 `[features]`.
        count: observations that they are of.
        epsilon: against division by zero.
        clip: largest absolute value.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    count: float
    epsilon: float
    clip: float

    @classmethod
    def of(cls, env: Any) -> Normalization | None:
        """Take the statistics of an environment's `VecNormalize`; None where it has none or leaves observations alone.

        Raises:
            InputError: they are not those of a vector of features.
        """
        wrapper = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else env
        if not isinstance(wrapper, VecNormalize) or not wrapper.norm_obs:
            return None
        moments = wrapper.obs_rms
        if not isinstance(moments, RunningMeanStd) or np.ndim(moments.mean) != 1:
            raise InputError("VecNormalize's statistics are not those of a vector of features.")
        return cls(
            np.array(moments.mean, dtype=np.float64),
            np.array(moments.var, dtype=np.float64),
            float(moments.count),
            float(wrapper.epsilon),
            float(wrapper.clip_obs),
        )

    def scale(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Scale observations `[..., features]`, as `VecNormalize.normalize_obs` does."""
        scaled = (observations - self.mean) / np.sqrt(self.variance + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def wrap(self, venv: VecEnv) -> VecNormalize:
        """Return a `VecNormalize` with these statistics: the one that is there already, or a new one around it."""
        found = unwrap_vec_normalize(venv)
        wrapper = VecNormalize(venv, norm_reward=False) if found is None else found
        wrapper.norm_obs, wrapper.epsilon, wrapper.clip_obs = True, self.epsilon, self.clip
        moments = RunningMeanStd(shape=self.mean.shape)
        moments.mean, moments.var, moments.count = self.mean.copy(), self.variance.copy(), self.count
        wrapper.obs_rms = moments  # type: ignore[assignment]  # it is declared as one for Dict observations
        return wrapper

    # ---------------------------------------------------------------- beside the weights

    def tensors(self) -> Tensors:
        """Return the statistics as tensors, by names that no weight has."""
        values = {name: torch.as_tensor(np.asarray(value, np.float64)) for name, value in vars(self).items()}
        return {f"{_PREFIX}{name}": value for name, value in values.items()}

    @classmethod
    def split(cls, tensors: Mapping[str, Tensor], features: int) -> tuple[Normalization | None, Tensors]:
        """Part statistics and weights; None where there are no statistics.

        Raises:
            InputError: they are not whole, or of another number of features.
        """
        own = {name.removeprefix(_PREFIX): one.numpy() for name, one in tensors.items() if name.startswith(_PREFIX)}
        weights = {name: one for name, one in tensors.items() if not name.startswith(_PREFIX)}
        if not own:
            return None, weights
        shapes = dict.fromkeys(("mean", "variance"), (features,)) | dict.fromkeys(("count", "epsilon", "clip"), ())
        whole = {name: value.shape for name, value in own.items()} == shapes
        require(whole, f"The statistics of the observations are not those of {features} features.")
        return cls(own["mean"], own["variance"], *(float(own[name]) for name in ("count", "epsilon", "clip"))), weights
