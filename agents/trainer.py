"""The loop of a training: one update of the policy after the other, the best on validation kept.

Each update begins with fresh episodes, and with random numbers that follow from (seed, update). What a checkpoint holds
(what the learner knows, its replay buffer and the curriculum's scores among it) is therefore all there is, and a
training that was interrupted and resumed equals one that was not, bit for bit on the same machine with as many threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import set_random_seed

from agents.algorithms import ALGORITHMS
from agents.blueprint import Blueprint, knob_records
from agents.bundle import check_saving, load_controller, save_controller
from agents.checkpoint import TrainingState, save_checkpoint
from agents.config import TrainingConfig
from agents.costs import ReferenceRuns, decisions_per_episode, is_validated, rounds_ahead
from agents.curricula import CURRICULA, Instances, mean_by_instance
from agents.imitation import clone, decisions_of
from agents.learners import (
    is_finite,
    learner_tensors,
    load_learner,
    played_episodes,
    policy_tensors,
    recall_episodes,
)
from agents.logs import Bar, EpisodeRecorder, log_entry, log_parameters, open_logger
from agents.provenance import environment_record
from agents.results import Measurements, TrainingResult
from agents.rollouts import Rollouts, processes_of_rows
from agents.update_log import UpdateLog
from agents.validation import Validation
from agents.weights import Tensors
from envs import EnvCore, Setting
from envs.rewards import find_reward
from envs.signals import FEATURE_BOUND
from fl_core.base.code_version import code_version
from fl_core.base.errors import FileError, InputError

CONTROLLER = "controller"
"""Folder of the saved controller, inside the training's folder."""
_INITIAL_WEIGHTS, _IMITATION = 1 << 30, (1 << 30) + 1


class Trainer:
    """A training, from its beginning or from a checkpoint."""

    def __init__(self, setting: Setting, config: TrainingConfig, parallel: str, folder: Path):
        self.setting, self.config, self.parallel, self.folder = setting, config, parallel, folder
        self.core = EnvCore(setting)  # never stepped: what an environment shows, asks and counts
        self.rounds = self.core.longest
        self.decisions = decisions_per_episode(self.rounds, self.core.spec.decision_rounds)
        self.updates = config.updates(self.decisions)
        self.instances = Instances(
            self.core.spec.instance_count,
            config.seed,
            config.environments,
            config.episodes_per_instance,
            config.curriculum,
            self.updates,
        )
        self.validation = Validation(setting, config.validation_instances)
        self.progress = TrainingState()
        self.best: Tensors = {}
        self.learner: Tensors = {}
        self.log = UpdateLog(folder)
        self.needs_references = find_reward(self.core.spec.reward).needs_reference
        self.references = ReferenceRuns(processes_of_rows(config.environments, parallel))

    def run(self, on_update: Callable[[Measurements], None] | None, show_progress: bool) -> TrainingResult:
        """Run the remaining updates.

        Args:
            on_update: told of every update.
            show_progress: whether to show a progress bar.

        Raises:
            InputError: the learner cannot be made or saved, its checkpoint does not fit, or a file cannot be written.
        """
        start = time.monotonic()
        resumed = bool(self.learner)
        logger = open_logger(self.folder, self.progress.decisions + 1 if resumed else None)
        ahead = rounds_ahead(self.config, self.progress.update, self.updates, self.rounds, self.needs_references)
        bar = Bar(show_progress, ahead, f"Training {self.config.algo} on {self.core.task.name}")
        rollouts: Rollouts | None = None
        try:
            rollouts = Rollouts(self.setting, self.config.environments, self.parallel, self.config.gamma)
            model = self._make_learner(rollouts)
            check_saving(self._blueprint({"seed": self.config.seed, "cost": vars(self.progress.cost)}), model.policy)
            model.set_logger(logger)
            recorder = EpisodeRecorder(bar, self.config.instance_baseline)
            if resumed:
                self._recall()
            else:
                log_parameters(logger, self._about()["config"] | self.setting.as_record())
                self._imitate(model, bar)
                self._measure(rollouts, bar)
                self._finish_update(model, rollouts, bar, None, on_update)
            while self.progress.update < self.updates:
                self._update(model, rollouts, recorder, bar)
                self._finish_update(model, rollouts, bar, recorder, on_update)
        except OSError as error:
            raise FileError(
                f"The training in '{self.folder}' had to stop: {error.strerror or error}; it can be resumed."
            ) from error
        finally:
            bar.close()
            logger.close()
            if rollouts is not None:
                rollouts.close()
        return self._result(time.monotonic() - start)

    def _make_learner(self, rollouts: Rollouts) -> BaseAlgorithm:
        """Make the learner, with initial weights from the seed or with the state of the checkpoint."""
        config = self.config
        set_random_seed(_seed_of(config.seed, _INITIAL_WEIGHTS))
        common = {"learning_rate": self._learning_rate, "gamma": config.gamma, "device": config.device}
        model = ALGORITHMS[config.algo].learner(config.options, rollouts.venv, self.decisions, **common)
        model.num_timesteps = self.progress.decisions
        model._n_updates = self.progress.gradient_updates
        if self.learner:
            try:
                load_learner(model, self.learner)
                rollouts.reward_statistics = self.progress.reward_statistics
                recall_episodes(model, self.progress.episodes, self.progress.recent)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"The weights of the checkpoint in '{self.folder}' do not fit its settings; start anew."
                ) from error
        return model

    def _learning_rate(self, _: float) -> float:
        """Step size of this update, falling linearly; the learner's own clock sees one update at a time."""
        return self.config.learning_rate * (1 - self.progress.update / self.updates)

    def _imitate(self, model: BaseAlgorithm, bar: Bar) -> None:
        """Make the policy a clone of the controller that it begins as, if it does as one."""
        if not self.config.imitate:
            return
        seed = _seed_of(self.config.seed, _IMITATION)
        decisions = decisions_of(self.config.imitate, self.setting, seed, bar.advance)
        set_random_seed(seed)
        assert isinstance(model.policy, ActorCriticPolicy)
        error = clone(model.policy, decisions)
        bar.note(f"{self.config.imitate} imitated but for {error:.3f} per coordinate")
        for cost in (self.progress.cost, self.progress.released):
            cost.imitation = decisions.rounds

    def _measure(self, rollouts: Rollouts, bar: Bar) -> None:
        """Measure the difficulty of instances, where the curriculum goes by that."""
        instances = self.instances.to_measure()
        self._count_references(self.references.measured(instances), bar)
        accuracies = rollouts.references(instances) if instances else []
        self.progress.scores = {str(seed): value for seed, value in zip(instances, accuracies, strict=True)}

    def _recall(self) -> None:
        """Mark the reference runs of earlier updates as counted, after a resumption."""
        self.references.measured(self.instances.to_measure())
        for instances in self.progress.played:
            self.references.played(instances)

    def _count_references(self, runs: int, bar: Bar) -> None:
        self.progress.cost.reference += runs * self.rounds
        self.progress.released.reference += runs * self.rounds
        bar.advance(runs * self.rounds)

    def _update(self, model: BaseAlgorithm, rollouts: Rollouts, recorder: EpisodeRecorder, bar: Bar) -> None:
        """Play an episode in every environment and learn from them."""
        config, state = self.config, self.progress
        instances = self.instances.of_update(state.update, state.scores)
        rollouts.assign(instances)
        if self.needs_references:
            self._count_references(self.references.played(instances), bar)
        seed = _seed_of(config.seed, state.update)
        set_random_seed(seed, using_cuda=model.device.type == "cuda")
        model.action_space.seed(seed)
        recorder.start(instances)
        model._last_obs = None  # makes `learn` begin with a reset
        per_update = self.decisions * config.environments
        # Algorithms with a replay buffer count episodes between two entries of the log, the others updates.
        interval = config.environments if isinstance(model, OffPolicyAlgorithm) else 1
        self._learn(model, per_update, callback=recorder, log_interval=interval, reset_num_timesteps=False)
        state.update += 1
        state.decisions = model.num_timesteps
        state.gradient_updates = int(model._n_updates)
        state.episodes, state.recent = played_episodes(model)
        state.played.append(instances)
        state.cost.training += recorder.rounds
        state.released.training += recorder.begun * self.rounds
        rewards = [float(np.mean(own)) for own in recorder.rewards]
        if not CURRICULA[config.curriculum].measured:
            state.scores |= mean_by_instance(instances, rewards)

    def _learn(self, model: BaseAlgorithm, *arguments: Any, **named: Any) -> None:
        """Let the learner play and learn; a policy that diverges ends the training, the best one so far is saved.

        Raises:
            InputError: weights are no longer finite, which the learner or an environment may have met already.
        """
        error: Exception | None = None
        try:
            model.learn(*arguments, **named)
        except ValueError as met:  # torch and the environments refuse what such weights lead to
            error = met
        if is_finite(model):
            if error is not None:
                raise error
            return
        save_controller(self.folder / CONTROLLER, self._blueprint(self._facts()), self.best)
        state = self.progress
        raise InputError(
            f"The training in '{self.folder}' diverged in update {state.update + 1}: weights are no longer finite; its "
            f"last checkpoint is kept, and the best policy so far, of update {state.best_update} (validation accuracy "
            f"{state.best_score:.3f}), is in '{self.folder / CONTROLLER}'."
        ) from error

    def _finish_update(
        self,
        model: BaseAlgorithm,
        rollouts: Rollouts,
        bar: Bar,
        recorder: EpisodeRecorder | None,
        on_update: Callable[[Measurements], None] | None,
    ) -> None:
        """Validate if it is due, log the measurements, and keep a checkpoint."""
        state, config = self.progress, self.config
        last = state.update == self.updates
        score = diverged = None
        if is_validated(config, state.update, self.updates):
            accuracies, rounds, diverged = self.validation.score(model.policy, bar.advance)
            score = float(np.mean(accuracies))
            state.cost.validation += rounds
            state.released.validation += len(self.validation.seeds) * self.rounds
            if score > state.best_score:
                state.best_score, state.best_update, self.best = score, state.update, policy_tensors(model)
                state.best_accuracies = accuracies
            bar.note(f"validation accuracy {score:.3f}, best {state.best_score:.3f}")
        entry: Measurements = {
            "update": state.update,
            "decisions": state.decisions,
            "episode_reward": None if recorder is None else recorder.mean_reward,
            "actions_outside": None if recorder is None else recorder.share_outside,
            "validation_accuracy": score,
            "validation_diverged": diverged,
            "best_accuracy": state.best_score,
            **{f"{name}_rounds": rounds for name, rounds in vars(state.cost).items()},
        }
        state.history.append(entry)
        state.reward_statistics = rollouts.reward_statistics
        log_entry(model.logger, entry)
        if last or state.update % config.checkpoint_every == 0:
            save_checkpoint(self.folder, self._about(), state, learner_tensors(model), self.best, self.log)
        if on_update is not None:
            on_update(entry)

    # ---------------------------------------------------------------- what is kept of it

    def _about(self) -> dict[str, Any]:
        config = asdict(self.config) | dict(self.config.options)
        config["network"] = list(config["network"])
        made_in = environment_record(self.core)
        return {
            "config": config,
            "settings": self.setting.as_record(),
            "parallel": self.parallel,
            "environment": made_in,
        }

    def _facts(self) -> dict[str, Any]:
        """Seeds, instances, cost in federated rounds and validation, as the saved controller tells them."""
        state, config = self.progress, self.config
        return {
            "seed": config.seed,
            "code": code_version(),
            "config": self._about()["config"],
            "updates": state.update,
            "decisions": state.decisions,
            "episodes": state.update * config.environments,
            "cost": vars(state.cost),
            "released": vars(state.released),
            "best_update": state.best_update,
            "validation_accuracy": state.best_score,
            "validation_accuracies": state.best_accuracies,
            "initial_validation_accuracy": state.history[0]["validation_accuracy"],
            "train_instances": sorted({seed for instances in state.played for seed in instances}),
            "validation_instances": self.validation.seeds,
        }

    def _blueprint(self, training: dict[str, Any]) -> Blueprint:
        algo, options = self.config.algo, self.config.options
        return Blueprint(
            algo=algo,
            arguments=ALGORITHMS[algo].policy_arguments(options),
            features=tuple(feature.name for feature in self.core.features),
            feature_bound=FEATURE_BOUND,
            knobs=knob_records(self.core),
            settings=self.setting.as_record(),
            training=training,
            scales=tuple(feature.scaled for feature in self.core.features),
        )

    def _result(self, seconds: float) -> TrainingResult:
        state = self.progress
        save_controller(self.folder / CONTROLLER, self._blueprint(self._facts()), self.best)
        return TrainingResult(
            controller=load_controller(self.folder / CONTROLLER),
            folder=self.folder / CONTROLLER,
            best_score=state.best_score,
            best_update=state.best_update,
            initial_score=state.history[0]["validation_accuracy"],
            cost=state.cost,
            history=state.history,
            parallel=self.parallel,
            executor=self.setting.federation.executor,
            seconds=seconds,
        )


def _seed_of(seed: int, update: int) -> int:
    """Derive a seed for NumPy and torch from (training seed, update), within NumPy's 32 bits."""
    return int(np.random.SeedSequence([seed, update]).generate_state(1)[0])
