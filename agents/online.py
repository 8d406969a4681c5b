"""PPO that learns within the very run that it controls, from what it sees there, without any training before."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from torch import Tensor

from agents.learned import core_of
from fl_core.base.errors import InputError, require, require_count, require_name
from fl_core.run.plan import FloatArray

State = tuple[NDArray[Any], ...]
NAME = "online-ppo"
SEEN = {"accounted": ("accuracy_noised", "loss_noised"), "paper": ("trimmed_accuracy", "trimmed_loss")}
"""The state that the agent sees, accuracy and loss, by the signal set that shows it."""
TELEMETRY = ("accuracy", "loss")
"""What the run's telemetry must pay for where the agent sees accounted signals."""
KNOBS = "clip_norm"
_EPISODE, _DECISION, _FILLED = range(3)


@dataclass(frozen=True)
class OnlineSettings:
    """How the agent learns. ACDP-pFSD states buffer, passes and the first rounds; the rest is ours."""

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


@dataclass(frozen=True)
class OnlineSpec:
    """The controller as named by a user: `online-ppo[:accounted|:paper][:SEED]`.

    Attributes:
        signals: signal set that it sees; empty takes accounted signals where the guarantee is sound, and as published
            the exact ones, as the paper does.
        seed: of weights and exploration.
    """

    signals: str = ""
    seed: int = 0

    def __str__(self) -> str:
        return ":".join([NAME, *([self.signals] if self.signals else []), *([str(self.seed)] if self.seed else [])])

    def signals_in(self, guarantee: str) -> str:
        """The signal set that it sees under a guarantee."""
        return self.signals or ("accounted" if guarantee == "sound" else "paper")


def parse_online(text: str) -> OnlineSpec:
    """Read a spec.

    Raises:
        InputError: a part of it is neither a signal set nor a seed.
    """
    name, *pieces = text.split(":")
    require_name("controller", name, [NAME])
    signals = pieces.pop(0) if pieces and not pieces[0].isdecimal() else ""
    if signals:
        require_name(f"signals of controller '{NAME}'", signals, SEEN)
    require(
        not pieces or (len(pieces) == 1 and pieces[0].isdecimal()),
        f"controller '{text}' does not end with a seed; write {NAME}[:accounted|:paper][:SEED].",
    )
    return OnlineSpec(signals, int(pieces[0]) if pieces else 0)


class OnlinePPO:
    """An agent per run that learns from the run's own observations (ACDP-pFSD, Algorithm 2).

    State is (accuracy, loss), as observed; reward of a decision is the loss that it removed plus the accuracy that it
    gained (eq. 11-13), computed from the same two numbers: whatever noise the observation has, the reward has, too.
    Actions are random in the first rounds, then the policy's. When the buffer is full, PPO learns from it and the
    buffer is emptied. Weights, optimizer and buffer are in the state that `predict` returns, arrays `[runs, ...]`, so
    that `predict` is a function of its arguments and a run can be continued from what was saved of it.
    """

    def __init__(
        self,
        columns: tuple[int, int],
        features: int,
        chance_loss: float,
        signals: str,
        seed: int = 0,
        settings: OnlineSettings | None = None,
    ):
        """Prepare the agent; it keeps nothing of the environment but what is given here.

        Args:
            columns: places of accuracy and loss in the observation.
            features: size of the observation.
            chance_loss: ln(classes): the cross-entropy in which the loss is measured.
            signals: signal set, for the label.
            seed: of weights and exploration.
            settings: how it learns.
        """
        require_count("seed", seed, least=0)
        self.signals, self.seed, self.settings = signals, seed, settings or OnlineSettings()
        self._columns, self._features, self._chance_loss = list(columns), features, chance_loss
        with _randomness(seed):
            self._model = self._new_model()

    @classmethod
    def for_env(cls, env: Any, seed: int = 0, settings: OnlineSettings | None = None) -> OnlinePPO:
        """An agent for any face of an environment.

        Raises:
            InputError: the environment shows no accuracy and loss, or has other knobs than the clip norm.
        """
        core = core_of(env)
        names = [feature.name for feature in core.features]
        shown = next((name for name, pair in SEEN.items() if set(pair) <= set(names)), "")
        require(
            bool(shown),
            f"controller '{NAME}' reads accuracy and loss, which this environment does not show; make it with signals "
            f"'paper', or with signals 'accounted' and telemetry '{','.join(TELEMETRY)}'.",
        )
        knobs = ",".join(knob.name for knob in core.knobs)
        require(
            knobs == KNOBS, f"controller '{NAME}' sets the knob '{KNOBS}', but the environment's knobs are {knobs}."
        )
        accuracy, loss = (names.index(name) for name in SEEN[shown])
        chance_loss = math.log(core.federation.model.classes)
        return cls((accuracy, loss), len(names), chance_loss, shown, seed, settings)

    @property
    def label(self) -> str:
        """A readable name for figures and tables."""
        exact = "exact" if self.signals == "paper" else self.signals
        return f"online PPO ({exact} signals, seed {self.seed})"

    def describe(self) -> dict[str, Any]:
        """Name and parameters, as JSON-able values."""
        own = asdict(self.settings) | {"network": list(self.settings.network)}
        return {"name": NAME, "parameters": {"signals": self.signals, "seed": self.seed, **own}}

    def reward(self, before: FloatArray, after: FloatArray) -> float:
        """Loss removed plus accuracy gained between two observed pairs of (accuracy, loss) features.

        Features are 2 x accuracy - 1, and loss / ln(classes) - 1.
        """
        gained, removed = (after[0] - before[0]) / 2, (before[1] - after[1]) * self._chance_loss
        return float(removed + gained)

    # ---------------------------------------------------------------- acting

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], State]:
        """Learn from what the last decision led to, and decide; the signature is that of a stable-baselines3 model.

        Args:
            observation: `[features]` or `[n, features]`.
            state: what the call before returned; None at first.
            episode_start: whether each observation is the first of a run `[n]`: its agent begins anew.
            deterministic: without effect: an agent that does not explore cannot learn.

        Returns:
            Actions `[1]` or `[n, 1]`, float32 in [-1, 1], and the state for the next call.

        Raises:
            InputError: the observation is of another environment.
        """
        array = np.asarray(observation, dtype=np.float64)
        if array.ndim not in (1, 2) or array.shape[-1] != self._features:
            raise InputError(
                f"observation has shape {array.shape}, but controller '{NAME}' was made for {self._features} features."
            )
        seen = np.atleast_2d(array)[:, self._columns]
        counts, networks, buffers = self._unpack(state, len(seen))
        starts = np.zeros(len(seen), dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        actions = np.zeros((len(seen), 1), dtype=np.float32)
        for row in range(len(seen)):
            if state is None or starts[row]:
                counts[row] = [0 if state is None else counts[row, _EPISODE] + 1, 0, 0]
                networks[row] = self._fresh(row, counts[row])
                buffers[row] = 0.0
            actions[row] = self._decide(row, seen[row], counts[row], networks[row], buffers[row])
        return (actions[0] if array.ndim == 1 else actions), (counts, networks, buffers)

    def _unpack(self, state: State | None, rows: int) -> tuple[NDArray[np.int64], NDArray[np.float32], FloatArray]:
        """Copies of counters `[rows, 3]`, weights and moments `[rows, 3, size]`, and transitions `[rows, B, 6]`."""
        if state is not None:
            counts, networks, buffers = (np.array(part) for part in state)
            return counts, networks, buffers
        size = sum(weight.numel() for weight in self._weights())
        buffers = np.zeros((rows, self.settings.buffer, 6))
        return np.zeros((rows, 3), dtype=np.int64), np.zeros((rows, 3, size), dtype=np.float32), buffers

    def _decide(
        self,
        row: int,
        seen: FloatArray,
        counts: NDArray[np.int64],
        network: NDArray[np.float32],
        buffer: FloatArray,
    ) -> float:
        """One run's decision; counters, weights and buffer are changed in place.

        The buffer's columns are accuracy, loss, action, log probability, value and reward; the one row beyond those
        that are filled waits for its reward.
        """
        decision = int(counts[_DECISION])
        counts[_DECISION] += 1
        with _randomness(self.seed, row, int(counts[_EPISODE]), decision + 1):
            if decision < self.settings.random_decisions:
                return float(2 * torch.rand(1, dtype=torch.float64) - 1)
            updates = max(0, decision - self.settings.random_decisions - 1) // self.settings.buffer
            self._put(network, steps=updates * self.settings.passes)
            if decision > self.settings.random_decisions:
                last = buffer[counts[_FILLED]]
                last[5] = self.reward(last[:2], seen)
                counts[_FILLED] += 1
                if counts[_FILLED] == self.settings.buffer:
                    self._learn(buffer, seen)
                    network[:] = self._taken()
                    counts[_FILLED] = 0
            with torch.no_grad():
                action, value, log_probability = self._model.policy(_tensor(seen))
            buffer[counts[_FILLED]] = [*seen, float(action), float(log_probability), float(value), 0.0]
            return float(np.clip(float(action), -1.0, 1.0))

    # ---------------------------------------------------------------- learning

    def _learn(self, buffer: FloatArray, seen: FloatArray) -> None:
        """An update of PPO from a full buffer; the run goes on, so its last state is worth what the critic says."""
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
        self._model.train()

    def _new_model(self) -> PPO:
        """A learner of stable-baselines3 that is fed by hand, so that it needs no environment."""
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

    def _fresh(self, row: int, counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Initial weights, and moments of Adam that are 0, as when it begins."""
        with _randomness(self.seed, row, int(counts[_EPISODE]), 0):
            self._model = self._new_model()
        flat = torch.nn.utils.parameters_to_vector(self._weights()).detach().numpy()
        return np.stack([flat, np.zeros_like(flat), np.zeros_like(flat)])

    def _put(self, network: NDArray[np.float32], steps: int) -> None:
        """Give the learner a run's weights, and the moments of Adam after so many steps."""
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

    def _taken(self) -> NDArray[np.float32]:
        """The learner's weights and moments."""
        state = self._model.policy.optimizer.state
        parts = [
            torch.cat([weight.detach().flatten() for weight in self._weights()]),
            *(torch.cat([state[weight][name].flatten() for weight in self._weights()]) for name in _MOMENTS),
        ]
        return np.stack([part.numpy() for part in parts])


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _tensor(seen: FloatArray) -> Tensor:
    return torch.as_tensor(seen, dtype=torch.float32).unsqueeze(0)


@contextlib.contextmanager
def _randomness(*key: int) -> Iterator[None]:
    """Random numbers that follow from a key; everybody else's go on as if nothing had happened."""
    before = np.random.get_state()  # noqa: NPY002  (stable-baselines3 draws from it)
    with torch.random.fork_rng(devices=[]):
        seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002
