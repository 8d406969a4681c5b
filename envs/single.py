"""The `gymnasium.Env` face: one run, one row of the core."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from envs.core import make_core
from envs.resets import choose_instance, read_seed
from envs.rows import Row


class DPilotEnv(Row, gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A differentially private federated run; one step is one decision about its next round or rounds.

    Keyword arguments are the fields of `envs.EnvSpec` and, to replace a task's settings, of
    `fl_core.run.config.FederationConfig` (`epsilon=4`, `method="fedper"`, ...). The clients are proxies, made to train
    on; with `instances="test"`, or `population="target"`, they are those that a controller is meant for.

    Examples:
        >>> env = DPilotEnv(task="digits", clients=6, rounds=2, reward="final-accuracy")
        >>> print(env.knobs)
        knob       range     scale  default  what it sets
        clip_norm  0.1 to 8  log    1        clip norm C of the client updates
        >>> observation, info = env.reset(seed=1)
        >>> observation, reward, terminated, truncated, info = env.step(np.array([-1.0]))
        >>> info["round"], round(info["clip_norm"], 3), terminated
        (1, 0.1, False)
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(self, render_mode: str | None = None, **settings: Any):
        """Build the environment.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        super().__init__(make_core(1, **settings), 0, render_mode)

    @override
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: chooses within the spec's set of instances, and what later resets draw from it; without one, an
                instance is drawn.
            options: `instance`, which names one (an `int`, of any set), and `epsilon`, `partition`, `learning_rate` or
                `update_scale` of this episode.

        Raises:
            InputError: the seed or an option is not allowed; nothing has changed then.
        """
        seed = None if seed is None else read_seed("seed", seed)
        super().reset(seed=seed)
        self.core.reset([0], [choose_instance(self.core.pool, self.np_random, seed, options, self.instance)])
        return self.core.observe()[0], self.core.info(0)

    @override
    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply one decision. An episode ends by `terminated`; there is no truncation.

        Raises:
            InputError: there is not one coordinate per knob.
            ResetNeeded: no episode has begun, or it is over.
        """
        if self.core.finished[0]:
            raise gym.error.ResetNeeded("There is no episode, or it is over; call reset() before step().")
        rewards, ended = self.core.step(np.asarray(action)[np.newaxis])
        return self.core.observe()[0], float(rewards[0]), bool(ended[0]), False, self.core.info(0)
