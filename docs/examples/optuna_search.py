"""Optuna searches the parameters of a schedule: the mean final accuracy over training instances is the objective."""

from __future__ import annotations

import optuna

from envs import instance_seeds, make_core, run_to_the_end
from fl_core import RunSettings
from policies import ExponentialDecay


def search(trials: int = 20, instances: int = 4, **settings) -> optuna.Study:
    """Search start and end of an exponential decay; all instances are rows of one batch."""
    core = make_core(instances, reward="final-accuracy", **settings)
    runs = [RunSettings(seed=seed) for seed in instance_seeds("train", instances)]

    def objective(trial: optuna.Trial) -> float:
        clips = {name: trial.suggest_float(name, 0.2, 4.0, log=True) for name in ("start", "end")}
        schedule = ExponentialDecay.for_env(core, **clips)
        run_to_the_end(core, schedule, runs, progress=lambda rounds: None)
        return sum(core.final_accuracy(row) for row in range(instances)) / instances

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(objective, n_trials=trials)
    print(f"best mean accuracy {study.best_value:.3f} with {study.best_params}")
    return study


if __name__ == "__main__":
    search()
