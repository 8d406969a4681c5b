"""PPO that is fed by hand and whose weights are kept by the caller, so that one object serves many runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from torch import Tensor

from fl_core.run.plan import FloatArray

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OnlineSettings:
    """Hyperparameters. ACDP-pFSD states buffer, passes and the first rounds; the rest is ours."""

    buffer: int = 10
    """Decisions between two updates."""
    passes: int = 10
    """Passes over them in an update."""
    random_decisions: int = 2
    """Decisions at random at the beginning of a run."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    network: tuple[int, ...] = (32, 32)
    log_std_init: float = -1.0


class OnlineLearner:
    """A learner of stable-baselines3 without an environment.

    Its weights, and the two moments of Adam for each, travel as one array `[3, size]`: `fresh` makes one, `put` gives
    it to the learner, `taken` gets it back after an update.
    """

    def __init__(self, settings: OnlineSettings):
        """Make the learner; its weights are drawn from the present random state."""
        self.settings = settings
        self._model = self._new_model()

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self._weights())

    @property
    def is_finite(self) -> bool:
        """True if all weights are finite."""
        return all(bool(torch.isfinite(weight).all()) for weight in self._weights())

    def _new_model(self) -> PPO:
        own = self.settings
        model = PPO(
            "MlpPolicy",
            None,  # type: ignore[arg-type]
            learning_rate=own.learning_rate,
            n_steps=own.buffer,
            batch_size=own.buffer,
            n_epochs=own.passes,
            gamma=own.gamma,
            gae_lambda=own.gae_lambda,
            policy_kwargs={"net_arch": list(own.network), "log_std_init": own.log_std_init},
            device="cpu",
            _init_setup_model=False,
        )
        model.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        model.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        model.n_envs = 1
        model._setup_model()
        model.set_logger(Logger(None, []))
        return model

    def _weights(self) -> list[torch.nn.Parameter]:
        return list(self._model.policy.parameters())

    # ---------------------------------------------------------------- weights as arrays

    def fresh(self) -> NDArray[np.float32]:
        """Draw initial weights `[3, size]`, with moments of 0."""
        self._model = self._new_model()
        flat = torch.nn.utils.parameters_to_vector(self._weights()).detach().numpy()
        return np.stack([flat, np.zeros_like(flat), np.zeros_like(flat)])

    def put(self, network: NDArray[np.float32], steps: int) -> None:
        """Take weights and moments `[3, size]` as they are after a number of steps of Adam."""
        weights, first, second = (torch.from_numpy(part.copy()) for part in network)
        torch.nn.utils.vector_to_parameters(weights, self._weights())
        sizes = [weight.numel() for weight in self._weights()]
        optimizer = self._model.policy.optimizer
        optimizer.state.clear()
        for weight, one, two in zip(self._weights(), first.split(sizes), second.split(sizes), strict=True):
            optimizer.state[weight] = {
                "step": torch.tensor(float(steps)),
                "exp_avg": one.view_as(weight).clone(),
                "exp_avg_sq": two.view_as(weight).clone(),
            }

    def taken(self) -> NDArray[np.float32]:
        """Weights and moments `[3, size]`."""
        state = self._model.policy.optimizer.state
        parts = [
            torch.cat([weight.detach().flatten() for weight in self._weights()]),
            *(torch.cat([state[weight][name].flatten() for weight in self._weights()]) for name in _MOMENTS),
        ]
        return np.stack([part.numpy() for part in parts])

    # ---------------------------------------------------------------- acting and learning

    def act(self, seen: FloatArray) -> tuple[float, float, float]:
        """Sample an action for (accuracy, loss); returns action, log probability and value, NaN if diverged."""
        if not self.is_finite:
            return math.nan, math.nan, math.nan
        with torch.no_grad():
            action, value, log_probability = self._model.policy(_tensor(seen))
        return float(action), float(log_probability), float(value)

    def learn(self, buffer: FloatArray, seen: FloatArray) -> None:
        """Update from a full buffer; the run goes on, so its last state is worth what the critic says.

        Args:
            buffer: accuracy, loss, action, log probability, value and reward of each decision `[buffer, 6]`.
            seen: accuracy and loss after the last decision `[2]`.
        """
        rollout = self._model.rollout_buffer
        rollout.reset()
        for accuracy, loss, action, log_probability, value, reward in buffer:
            rollout.add(
                np.array([[accuracy, loss]]),
                np.array([[action]]),
                np.array([reward]),
                np.zeros(1),
                torch.tensor([value], dtype=torch.float32),
                torch.tensor([log_probability], dtype=torch.float32),
            )
        with torch.no_grad():
            last = self._model.policy.predict_values(_tensor(seen))
        rollout.compute_returns_and_advantage(last, np.zeros(1))
        try:
            self._model.train()
        except ValueError:  # torch refuses the distributions of weights that are no longer finite
            if self.is_finite:
                raise


def _tensor(seen: FloatArray) -> Tensor:
    return torch.as_tensor(seen, dtype=torch.float32).unsqueeze(0)


@contextlib.contextmanager
def keyed_randomness(*key: int) -> Iterator[None]:
    """Draw from NumPy's and torch's global streams as a key says; afterwards both go on as if nothing had happened."""
    before = np.random.get_state()  # noqa: NPY002  (stable-baselines3 draws from it)
    with torch.random.fork_rng(devices=[]):
        seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002
