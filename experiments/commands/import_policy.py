"""`dpilot import`: a policy that was trained elsewhere, made into a saved controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.bundle import save_controller
from agents.folders import RECORD
from agents.import_sources import ImportOptions
from agents.importing import import_policy
from agents.learned import LearnedController
from experiments.commands.train import compare_command
from experiments.options.import_policy import ImportedPolicyOptions
from experiments.records.folder import require_writable
from fl_core.base.errors import require


@dataclass(frozen=True)
class ImportCommand(ImportedPolicyOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Import the policy, save the controller, and print the command that compares it."""
        self.check()
        name = self.name or self.file.stem
        options = ImportOptions(self.algo, self.trust, self.normalization, self.output, self.training_rounds, name)
        require_writable("runs", self.runs / RECORD)
        require(name == Path(name).name and name not in (".", ".."), f"name is '{name}', but it must be a file name.")
        folder = self.runs / name
        require(not folder.exists(), f"'{folder}' exists already; choose another --name.")
        controller = import_policy(self.file, self.setting(), options)
        save_controller(folder, controller.blueprint, controller.tensors)
        print(*_report(controller, self.trust), sep="\n")
        print(f"Controller: {folder}")
        print(f"To compare it: {compare_command(controller.blueprint, folder)}")
        return {"folder": str(folder), **controller.describe()}


def _report(controller: LearnedController, trusted: bool) -> list[str]:
    """Say what was imported, and for what it is said to be made."""
    blueprint = controller.blueprint
    imported, view = blueprint.training["imported"], controller.view
    rounds = view["decision_rounds"]
    lines = [
        f"{blueprint.label} from {imported['file']} ({imported['library']}): {len(blueprint.features)} signals "
        f"({view['signals']}) in, {', '.join(str(knob['name']) for knob in blueprint.knobs)} out, every "
        f"{'round' if rounds == 1 else f'{rounds} rounds'}, trained on {blueprint.settings['task']} for "
        f"{controller.training_rounds or 'an unknown number of'} rounds.",
    ]
    if controller.normalization is not None:
        lines.append("Its observations are scaled by the statistics of VecNormalize, which are saved with it.")
    elif blueprint.algo != "onnx" and "timesteps" in blueprint.training:
        lines.append("Its observations are taken as they are: no statistics of VecNormalize were given.")
    if not trusted:
        lines.append("No pickle was read.")
    return lines
