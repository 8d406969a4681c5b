"""Policies handed in from Python, compared like controllers that are named on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from typing_extensions import override

from agents.importing import from_sb3
from agents.learned import LearnedController
from envs import EnvCore, Setting
from envs.acting import Policy, as_policy
from envs.instances import instance_seeds
from experiments.contenders.bench import Bench, Needs
from experiments.contenders.comparing import compare
from experiments.contenders.contenders import Contender, Learned
from experiments.contenders.play import Player
from experiments.contenders.preparing import check, parse_contender, prepare
from experiments.contenders.trainings import Trainings
from experiments.records.comparison import Comparison
from fl_core.base.errors import InputError, require, require_count


@dataclass(frozen=True, eq=False)
class HandedIn(Contender):
    """An object that `envs.as_policy` takes, in the setting's own knobs and signals; what made it is not known."""

    title: str
    source: Any
    view: Needs

    @property
    @override
    def name(self) -> str:
        return self.title

    @override
    def needs(self, guarantee: str) -> Needs:
        return self.view

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return as_policy(self.source, len(core.knobs))

    @override
    def check(self, bench: Bench) -> None:
        """Let it act on two observations, before anything is run."""
        core = self.core(bench)
        policy = self.policy(core)
        seen = np.random.default_rng(0).uniform(-1, 1, (2, len(core.features))).astype(np.float32)
        try:
            actions = np.asarray(policy.predict(seen, None, np.ones(2, dtype=bool), deterministic=True)[0], np.float64)
        except InputError as error:
            raise InputError(f"Controller '{self.title}' does not fit: {error}") from error
        except Exception as error:  # whatever the user's code raises
            raise InputError(
                f"Controller '{self.title}' failed on observations {seen.shape}: {type(error).__name__}, "
                f"{' '.join(str(error).split())}."
            ) from error
        wanted = (2, len(core.knobs))
        require(
            actions.shape == wanted and bool(np.isfinite(actions).all()),
            f"Controller '{self.title}' answers 2 observations with actions of shape {actions.shape}, but they must be "
            f"finite and of shape {wanted}: observations and knobs.",
        )

    @override
    def prepare(self, bench: Bench) -> Player:
        core = self.core(bench)
        return Player(
            name=self.title,
            label=self.title,
            setting=core.setting,
            builds=(self.policy,),
            training_rounds=None,
            reads=tuple(feature.name for feature in core.features),
        )


def compare_policies(
    controllers: Mapping[str, Any] | Sequence[Any],
    seeds: int = 20,
    search_instances: int = 8,
    **settings: Any,
) -> Comparison:
    """Compare controllers on the same held-out runs, as `dpilot compare` does.

    Args:
        controllers: specs as on the command line (`"fixed:0.5"`), models of stable-baselines3, loaded controllers, and
            any object that `envs.as_policy` takes; as a mapping, with a name for each that is no spec.
        seeds: held-out runs of each.
        search_instances: training instances on which `best-fixed`, and what derives from it, is searched.
        **settings: of `envs.Setting.of`; knobs, signals and rounds per decision are those of the objects whose own
            environment does not tell.

    Returns:
        The record; `experiments.summarise` computes its statistics, `experiments.write_report` writes a report.

    Raises:
        InputError: a controller does not fit; nothing has been run then.
    """
    require_count("seeds", seeds)
    named = (
        list(controllers.items()) if isinstance(controllers, Mapping) else [(_title(one), one) for one in controllers]
    )
    require(bool(named), "controllers is empty, but it needs at least one.")
    setting = Setting.of(**{**settings, "instances": "test"})
    bench = Bench(setting, search_instances)
    contenders = [_contender(title, one, setting) for title, one in named]
    names = [one.name for one in contenders]
    for name in names:
        require(names.count(name) == 1, f"controllers names '{name}' twice; hand them in as a mapping, NAME to object.")
    check(contenders, bench)
    players = prepare(contenders, bench)
    return compare(players, bench, instance_seeds("test", seeds), f"compare_policies({', '.join(names)})")


def _title(source: Any) -> str:
    return source if isinstance(source, str) else str(getattr(source, "__name__", type(source).__name__))


def _contender(title: str, source: Any, setting: Setting) -> Contender:
    if isinstance(source, str):
        return parse_contender(source)
    spec = setting.spec
    view = Needs(spec.knobs, spec.signals, "", spec.decision_rounds, spec.context)
    if isinstance(source, BaseAlgorithm):
        env = source.get_env()
        source = from_sb3(source, EnvCore(setting) if env is None else env)
    if isinstance(source, LearnedController):
        return Learned(title, Trainings((source,)))
    return HandedIn(title, source, view)
