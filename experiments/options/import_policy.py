"""The options of `dpilot import`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from envs import EnvSpec, Setting
from envs.tasks import default_federation
from experiments.options.train import TrainOptions
from fl_core.base.errors import require
from fl_core.run.config import FederationConfig

_USUAL = EnvSpec()


@dataclass(frozen=True)
class ImportedPolicyOptions:
    """A policy that was trained elsewhere as a saved controller, which runs and comparisons take. The other options
    name the environment that it was trained in, for no file tells it."""

    file: Annotated[Path, tyro.conf.Positional] = Path()
    """What model.save of stable-baselines3 wrote (*.zip), a TorchScript (*.pt) or an ONNX (*.onnx) that computes
    actions from observations."""
    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    knobs: str = _USUAL.knobs
    """Comma-separated knobs that it sets (`dpilot list knobs`)."""
    signals: str = _USUAL.signals
    """Signals that it sees: public, accounted or paper."""
    decision_rounds: int = _USUAL.decision_rounds
    """Communication rounds per decision."""
    generator: str = ""
    """Settings in which its instances differed besides their seeds (`dpilot list generators`)."""
    context: str = "hidden"
    """Settings in which instances differ, as features that it sees: visible or hidden."""
    train_on: str = "proxy"
    """Clients whose runs it learned from: proxy, target or all."""
    algo: str = ""
    """Algorithm that trained it, checked against the file (`dpilot list algorithms`); needed only where its policy is
    of a class of its own."""
    normalization: str = ""
    """Statistics of its observations, as VecNormalize.save wrote them (a pickle, needs --trust); none if rewards alone
    were normalized."""
    trust: bool = False
    """Read what may run any code: TorchScript, VecNormalize's statistics, and the pickles in a zip whose policy is of a
    class of its own. Plain models of stable-baselines3 and ONNX need no trust: none of their pickles is read."""
    output: str = ""
    """Output of an ONNX that is the action, where it has several."""
    training_rounds: int | None = None
    """Federated rounds that its training took, if known."""
    name: str = ""
    """Its name in figures and tables, and that of its folder; that of the file unless given."""
    runs: Path = Path("runs")
    """Folder that receives the controller's folder."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    def check(self) -> None:
        """Refuse names and numbers that no command of this kind can have.

        Raises:
            InputError: one of them is not allowed.
        """
        require(self.file != Path(), "file is missing: name the model to import, as in `dpilot import model.zip`.")
        self.setting()
        require(self.file.exists(), f"The file '{self.file}' does not exist.")

    def setting(self) -> Setting:
        """Make the setting that it was trained in.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        return TrainOptions(
            task=self.task,
            knobs=self.knobs,
            signals=self.signals,
            decision_rounds=self.decision_rounds,
            generator=self.generator,
            context=self.context,
            train_on=self.train_on,
            federation=self.federation,
        ).setting()
