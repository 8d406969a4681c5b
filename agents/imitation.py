"""Imitation: a policy that begins as a clone of a hand-coded controller, before anything is learned from rewards.

Behaviour cloning (Pomerleau 1991): the controller plays training instances, and the mean of the policy's actions is
fitted to its decisions by least squares. A rule without memory is also asked about observations that no run has shown:
copies in which entries are redrawn, so that the clone ignores what the rule ignores, and follows it into settings that
the training does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor, nn

from agents.costs import IMITATED
from agents.teachers import read_teacher
from envs import EnvCore, Setting
from envs.instances import instance_seeds
from envs.knobs import knob_names
from envs.playing import RowProgress, rows_at_once
from fl_core.run.config import RunSettings
from policies.base import Controller
from policies.specs import make_controller

COPIES = 2
"""Copies of every observation with redrawn entries."""
REDRAWN, REACH = 0.5, 1.5
"""Probability that an entry of a copy is redrawn, uniformly from [-REACH, REACH]."""
STEPS, BATCH, RATE = 4000, 512, 3e-3
"""Steps of Adam, decisions in each, and their size at first; it falls to 0 along a cosine."""


@dataclass(frozen=True)
class Decisions:
    """Decisions of a controller.

    Attributes:
        observations: `[decisions, features]` of the policy.
        actions: `[decisions, knobs]` of the policy.
        rounds: federated rounds that they took.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rounds: int


def decisions_of(spec: str, setting: Setting, seed: int, progress: RowProgress) -> Decisions:
    """Let a controller play training instances; what it sets and the policy does not is left out, and so are signals.

    Args:
        spec: of the controller.
        setting: of the training.
        seed: of the redrawn entries.
        progress: told of federated rounds as they are done.

    Raises:
        InputError: its knobs and those of the policy set the same thing, or it does not fit the task.
    """
    teacher, own = read_teacher(spec), EnvCore(setting)
    names = knob_names(setting.task, setting.spec.knobs, setting.federation.recipe().knobs)
    knobs = [*names, *(one for one in teacher.knobs.split(",") if one not in names)]
    signals = setting.spec.signals if teacher.signals == "public" else teacher.signals
    whole = setting.holding(teacher.clip_norms).replace(
        knobs=",".join(knobs), signals=signals, reward="final-accuracy", instances="train"
    )
    seeds = instance_seeds("train", min(IMITATED, setting.spec.instance_count))
    rows = rows_at_once(EnvCore(whole), len(seeds))
    core = EnvCore(whole, rows)
    controller = make_controller(teacher, core)
    seen, done, rounds, remembers = [], [], 0, False
    for first in range(0, len(seeds), rows):
        chunk = seeds[first : first + rows]
        played = _play(core, controller, chunk, progress)
        seen.append(played[0])
        done.append(played[1])
        rounds += played[2]
        remembers |= played[3]
    observations, actions = np.concatenate(seen), np.concatenate(done)
    if not remembers:
        more = _redrawn(np.tile(observations, (COPIES, 1)), np.random.default_rng(seed))
        observations = np.concatenate([observations, more])
        actions = np.concatenate([actions, controller.predict(more)[0]])
    return Decisions(
        observations[:, _places([one.name for one in core.features], [one.name for one in own.features])],
        actions[:, _places([one.name for one in core.knobs], [one.name for one in own.knobs])],
        rounds,
    )


def _play(
    core: EnvCore, controller: Controller, seeds: Sequence[int], progress: RowProgress
) -> tuple[NDArray[np.float32], NDArray[np.float32], int, bool]:
    """Play a batch; returns observations and actions of all decisions, the rounds, and whether it has a memory."""
    core.finished[:] = True
    core.reset(range(len(seeds)), [RunSettings(seed=seed) for seed in seeds])
    state, start = None, np.ones(core.runs, dtype=bool)
    observations, actions, rounds = [], [], 0
    while not core.finished.all():
        active, seen = ~core.finished, core.observe()
        chosen, state = controller.predict(seen, state, start)
        core.step(chosen)
        observations.append(seen[active])
        actions.append(chosen[active])
        start = np.zeros(core.runs, dtype=bool)
        now = int(core.rounds[: len(seeds)].sum())
        progress(now - rounds)
        rounds = now
    return np.concatenate(observations), np.concatenate(actions), rounds, state is not None


def _redrawn(observations: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Redraw entries of observations by chance."""
    drawn = random.uniform(-REACH, REACH, observations.shape).astype(np.float32)
    return np.where(random.random(observations.shape) < REDRAWN, drawn, observations)


def _places(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    return [names.index(one) for one in wanted]


def clone(policy: ActorCriticPolicy, decisions: Decisions) -> float:
    """Fit the mean of a policy's actions to decisions; returns the root mean square error of a coordinate.

    Minibatches are drawn by torch's own generator, which the caller seeds.
    """
    device = policy.device
    observations = torch.from_numpy(decisions.observations).to(device)
    wanted = torch.from_numpy(decisions.actions).to(device)
    parameters = [*policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters()]
    optimizer = torch.optim.Adam(parameters, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    policy.set_training_mode(True)
    for _ in range(STEPS):
        chosen = torch.randint(len(observations), (BATCH,)).to(device)
        loss = nn.functional.mse_loss(_means(policy, observations[chosen]), wanted[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    policy.set_training_mode(False)
    with torch.no_grad():
        return float(nn.functional.mse_loss(_means(policy, observations), wanted).sqrt())


def _means(policy: ActorCriticPolicy, observations: Tensor) -> Tensor:
    """Mean actions, by the layers that act."""
    features = policy.extract_features(observations, policy.pi_features_extractor)
    assert isinstance(features, Tensor)
    latent = policy.mlp_extractor.forward_actor(features)
    means: Tensor = policy.action_net(latent)
    return means
