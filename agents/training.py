"""Training of a controller on an environment's training instances, from the beginning or from a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agents.checkpoint import CHECKPOINT, load_checkpoint
from agents.config import PARALLELS, TrainingConfig
from agents.provenance import environment_record
from agents.results import Measurements, TrainingResult
from agents.rollouts import choose_executor, choose_parallel
from agents.trainer import Trainer
from envs import EnvCore, Setting
from fl_core.base.arguments import checked
from fl_core.base.errors import require, require_name
from fl_core.base.files import drop_leftovers
from fl_core.base.sealed import require_same, understood
from fl_core.data.populations import share_samples


@checked
def train(
    env_settings: Setting | Mapping[str, Any],
    config: TrainingConfig,
    folder: Path | str,
    on_update: Callable[[Measurements], None] | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Train a controller.

    Args:
        env_settings: a setting, or keyword arguments of one (`envs.Setting.of`). Its instances are those of the train
            set; of keyword arguments, its clients are proxies unless `population` is given.
        config: how to train.
        folder: where events, checkpoints and the controller go; must not hold a training yet.
        on_update: told of every update.
        progress: whether to show a progress bar with the time left.

    Raises:
        InputError: a setting is not allowed, or the folder cannot be used; nothing has been trained then.
    """
    folder = Path(folder)
    require(
        not (folder / CHECKPOINT).exists(), f"'{folder}' already holds a training; resume it or name another folder."
    )
    setting = _on_training_instances(env_settings)
    core = EnvCore(setting)
    require_knobs(core)
    population = setting.federation.population
    if share_samples(population, "target"):
        warnings.warn(
            f"training on {population} clients costs them privacy that no run's epsilon contains.", stacklevel=2
        )
    setting = setting.replace(executor=choose_executor(setting, config.environments))
    parallel = choose_parallel(config.parallel, setting.federation.executor, core.federation.device)
    training = Trainer(setting, config, parallel, folder)
    return training.run(on_update, progress)


def _on_training_instances(asked: Setting | Mapping[str, Any]) -> Setting:
    if isinstance(asked, Setting):
        return asked.replace(instances="train")
    given = {name: value for name, value in asked.items() if value is not None}
    return Setting.of(**(given | {"instances": "train"}))


def require_knobs(core: EnvCore) -> None:
    """Refuse an environment without knobs: nothing could be learned in it.

    Raises:
        InputError: it has no knobs.
    """
    require(len(core.knobs) > 0, f"knobs is '{core.spec.knobs}', but a training needs at least one to set.")


@checked
def resume(
    folder: Path | str, on_update: Callable[[Measurements], None] | None = None, progress: bool = False
) -> TrainingResult:
    """Continue an interrupted training after its last checkpoint; arguments as for `train`.

    A finished training is not trained further: its controller is returned, and saved again if it is gone.

    Raises:
        InputError: the folder has no usable checkpoint, or other code or settings have made it than are here.
    """
    folder = Path(folder)
    checkpoint = load_checkpoint(folder)
    drop_leftovers(folder)
    about = checkpoint.about
    with understood(f"The file '{folder / CHECKPOINT}' describes no training; start it anew"):
        config = _config_of(about["config"])
        setting, made_in = Setting.resumed(about["settings"], folder), about["environment"]
        require_name("parallel", about["parallel"], PARALLELS)
        training = Trainer(setting, config, str(about["parallel"]), folder)
    rows = all(len(instances) == config.environments for instances in checkpoint.progress.played)
    require(rows, f"The checkpoint in '{folder}' contradicts itself: its updates had other numbers of environments.")
    require_same(made_in, environment_record(training.core), f"The training in '{folder}'")
    training.progress, training.best, training.learner = checkpoint.progress, checkpoint.best, checkpoint.learner
    training.log = checkpoint.log
    return training.run(on_update, progress)


def _config_of(record: Mapping[str, Any]) -> TrainingConfig:
    network = record["network"]
    return TrainingConfig(**{**record, "network": None if network is None else tuple(network)})
