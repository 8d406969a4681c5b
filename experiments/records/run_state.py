"""State of a run between two decisions, from which an interrupted run continues as if it had not stopped."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.provenance import environment_record
from agents.weights import Tensors, read_tensors, tensor_bytes, write_tensors
from envs import EnvCore
from envs.acting import Policy
from fl_core.base.errors import require
from fl_core.base.fields import check_types
from fl_core.base.files import spelled_out, write_json
from fl_core.base.sealed import read_sealed, require_same, sealed, understood
from policies.catalog import CONTROLLERS

FORMAT = 3
RECORD = "state.json"
_CONTROLLER = "controller."


@dataclass(frozen=True)
class RunState:
    """A run's state as read back.

    Attributes:
        about: the six that follow, by name.
        settings: of its environment, without the controller's view.
        controller: the controller's spec.
        seed: of its instance.
        search_instances, train_on: number and population of the instances that the controller was searched on.
        show: which metrics are written.
        made_in: environment, code and controller that made it, as `run_record` describes them.
        core: argument of `EnvCore.load_state_dict`.
        memory: state returned by the controller's last `predict`; None for a controller without memory.
    """

    about: dict[str, Any]
    settings: dict[str, Any]
    controller: str
    seed: int
    search_instances: int
    train_on: str
    show: str
    made_in: dict[str, Any]
    core: dict[str, Any]
    memory: tuple[Any, ...] | None


def run_record(core: EnvCore, policy: Policy) -> dict[str, Any]:
    """Environment, code and controller of a run, as JSON-able values.

    Left out is the executor: a run that goes on takes the one that was measured at its beginning.
    """
    record = environment_record(core)
    del record["setting"]["executor"]
    return record | controller_record(policy)


def controller_record(policy: Policy) -> dict[str, Any]:
    """Parameters, weights and code of a controller, as JSON-able values: two that act differently have different ones.

    Of what is no controller of this project, only the weights of a network are known.
    """
    describe = getattr(policy, "describe", None)  # what searches and trainings have found is in it
    parts = getattr(policy, "parts", (policy,))
    origins = {name: origin for one in parts for name, origin in CONTROLLERS.origins_for(type(one)).items()}
    told = _weights_record(policy) if describe is None else describe()
    return {"controller": spelled_out(told), "origins": origins}


def _weights_record(policy: Policy) -> dict[str, str]:
    """Digest of the weights of a network, or of the network of a stable-baselines3 model; nothing of what has none."""
    network = getattr(policy, "policy", policy)
    if not isinstance(network, torch.nn.Module):
        return {}
    return {"weights_sha256": hashlib.sha256(tensor_bytes(network.state_dict())).hexdigest()}


def require_same_run(folder: Path, state: RunState, core: EnvCore, policy: Policy) -> None:
    """Refuse to continue a run in another environment, by other code or under another controller.

    Args:
        folder: of the run.
        state: as it was read.
        core: the environment that is to continue it.
        policy: the controller that is to continue it.

    Raises:
        InputError: something differs.
    """
    require_same(state.made_in, run_record(core, policy), f"The run in '{folder}'")


def save_run_state(folder: Path, about: dict[str, Any], core: EnvCore, policy: Policy, memory: Any) -> None:
    """Write the state of a run, whose files only their owner can read, and drop the one before.

    It holds what never leaves the clients: their personal models and their metrics.

    Args:
        folder: of the run.
        about: `settings`, `controller`, `seed`, `search_instances`, `train_on` and `show`, as in `RunState`.
        core: the run.
        policy: the controller.
        memory: state returned by the controller's last `predict`: arrays `[runs, ...]`, or None.

    Raises:
        InputError: it cannot be written; the state before is kept then.
    """
    state = core.state_dict()
    tensors: Tensors = dict(state["tensors"])
    remembered = memory or ()
    tensors |= {f"{_CONTROLLER}{place}": torch.from_numpy(part.copy()) for place, part in enumerate(remembered)}
    name = f"state-{len(core.history[0]):05d}.safetensors"
    checksum = write_tensors(folder / name, tensors, mode=0o600)
    record = {
        "about": spelled_out(about),
        "made_in": run_record(core, policy),
        "plain": state["plain"],
        "remembers": None if memory is None else len(remembered),
        "tensors": name,
        "tensors_sha256": checksum,
    }
    # The record names the tensors of its round, so a crash before this line leaves the state before, whole.
    write_json(folder / RECORD, sealed(record, FORMAT), mode=0o600)
    _drop_tensors(folder, name)


def saved_rounds(folder: Path) -> int:
    """Return the rounds that a run in a folder had done when its state was saved; 0 where none is."""
    names = [path.stem.removeprefix("state-") for path in folder.glob("state-*.safetensors")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def drop_run_state(folder: Path) -> None:
    """Remove the state of a run that has ended."""
    with contextlib.suppress(OSError):
        (folder / RECORD).unlink()
    _drop_tensors(folder, "")


def _drop_tensors(folder: Path, but: str) -> None:
    for old in folder.glob("state-*.safetensors"):
        if old.name != but:
            with contextlib.suppress(OSError):
                old.unlink()


def load_run_state(folder: Path) -> RunState:
    """Read a run's state; no pickle is read.

    Raises:
        InputError: there is none, or it is damaged, changed or of another version.
    """
    path = folder / RECORD
    require(folder.is_dir(), f"'{folder}' is no folder, so there is no run to continue.")
    require(path.is_file(), f"'{folder}' holds no {RECORD}, so no interrupted run: it is complete, or no run at all.")
    record = read_sealed(path, FORMAT)
    with understood(f"The file '{path}' describes no run; start it anew"):
        about, plain, remembers = dict(record["about"]), dict(record["plain"]), record["remembers"]
        file, checksum = folder / Path(record["tensors"]).name, str(record["tensors_sha256"])
        tensors = read_tensors(file, checksum, finite=False)  # a figure that is not known yet is NaN
        held = sum(name.startswith(_CONTROLLER) for name in tensors)
        fits = not held if remembers is None else type(remembers) is int and remembers == held
        require(fits, f"The file '{path}' says that the controller remembers {remembers}, but {held} arrays are there.")
        memory = tuple(tensors.pop(f"{_CONTROLLER}{place}").numpy() for place in range(held))
        core = {"tensors": tensors, "plain": plain}
        made_in = dict(record["made_in"])
        memories = None if remembers is None else memory
        state = RunState(about=about, made_in=made_in, core=core, memory=memories, **about)
        check_types(state, f"The file '{path}'")
        return state
