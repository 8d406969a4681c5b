"""Files that policies are imported from: models of stable-baselines3, TorchScript and ONNX."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn
from typing_extensions import override

from agents.algorithms import ALGORITHMS
from agents.exported import graph_of, onnx_session
from agents.sb3_models import Described, Facts, describe_model, facts_of, read_zip
from agents.sb3_policies import NeedsPickle
from agents.weights import Tensors
from fl_core.base.arguments import check_fields, take_numbers
from fl_core.base.bounds import check_numbers, count
from fl_core.base.errors import InputError, require, require_name

ONNX_SUFFIX = ".onnx"
TRAINING_ROUNDS = count(1, 10**15, "no training took more")
PLAIN = "none"


@dataclass(frozen=True)
class ImportOptions:
    """Facts about a file that the file does not tell.

    Attributes:
        algo: algorithm that it must be of; "" for any.
        trust: whether parts that may run code when they are read are read: pickles and TorchScript.
        normalization: file of the statistics that `VecNormalize.save` wrote; "none" if observations were not scaled.
        output: the output of an ONNX model that holds the actions; "" where it has one alone.
        training_rounds: federated rounds that its training took; None if unknown.
        name: by which figures and tables tell it apart; "" for that of the file.
    """

    algo: str = ""
    trust: bool = False
    normalization: str = ""
    output: str = ""
    training_rounds: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        take_numbers(self)
        check_fields(self)
        if self.algo:
            require_name("algo", self.algo, ALGORITHMS)
        check_numbers(self, {"training_rounds": TRAINING_ROUNDS})


@dataclass(frozen=True)
class Source:
    """Policy as a controller's folder can hold it.

    Attributes:
        algo: learning algorithm, or format.
        arguments: of the policy.
        tensors: of the policy.
        library: that it was trained or exported with, and its version.
        facts: circumstances of its training; None where the file does not tell them.
    """

    algo: str
    arguments: Mapping[str, Any]
    tensors: Tensors
    library: str
    facts: Facts | None = None


# ---------------------------------------------------------------- kinds of files


def read_source(path: Path, options: ImportOptions) -> Source:
    """Read the policy in a file.

    Raises:
        InputError: the file cannot be read, or needs trust.
    """
    kind = _kind_of(path)
    if kind == "zip":
        return _from_zip(path, options)
    require(not options.algo, f"algo is '{options.algo}', but '{path}' is {kind}, which does not tell its algorithm.")
    return _from_onnx(path, options) if kind == "ONNX" else _from_torchscript(path, options)


def _kind_of(path: Path) -> str:
    """Tell by its content what a file holds: `zip`, `TorchScript` or `ONNX`."""
    require(not path.is_dir(), f"'{path}' is a folder, but a model is one file; a saved controller needs no import.")
    require(path.exists(), f"The file '{path}' does not exist.")
    if path.suffix == ONNX_SUFFIX:
        return "ONNX"
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"'{path}' is no zip, or a truncated one, and not called *{ONNX_SUFFIX}; a model is a zip of "
            "stable-baselines3, TorchScript or ONNX."
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.partition("/")[2].startswith("code/") for name in names):
        return "TorchScript"
    if any(name.endswith("/data.pkl") for name in names):
        raise InputError(
            f"'{path}' holds weights without the network that they belong to; save a stable-baselines3 model with "
            "model.save, or any network with torch.jit.trace(...).save."
        )
    return "zip"


def _from_zip(path: Path, options: ImportOptions) -> Source:
    try:
        described = read_zip(path, options.algo)
    except NeedsPickle as reason:
        if not options.trust:
            raise InputError(
                f"'{path}' cannot be read without its pickles, which may run any code: {reason}; if you made it "
                "yourself, --trust reads them."
            ) from reason
        return source_of(_load(path, options))
    return _described(described)


def _described(one: Described) -> Source:
    return Source(one.algo, one.arguments, one.weights, f"stable-baselines3 {one.version}".strip(), one.facts)


def source_of(model: BaseAlgorithm) -> Source:
    """Take the policy of a living model, as a graph where it is of the user's own make.

    Raises:
        InputError: the model is of an algorithm that is not known here, or its policy cannot be kept.
    """
    try:
        return _described(describe_model(model))
    except NeedsPickle:
        arguments, tensors = _traced(model.policy)
    return Source("torchscript", arguments, tensors, f"stable-baselines3, {type(model).__name__}", facts_of(model))


def _load(path: Path, options: ImportOptions) -> BaseAlgorithm:
    """Load a model with all its pickles, by the class of the algorithm that the user names."""
    require(bool(options.algo), f"'{path}' has a policy of its own; say with --algo which algorithm trained it.")
    try:
        return ALGORITHMS[options.algo].learner_class().load(path, device="cpu")
    except Exception as error:  # a pickle may raise anything
        raise InputError(
            f"'{path}' could not be loaded: {type(error).__name__}, {' '.join(str(error).split())}."
        ) from error


class _Acting(nn.Module):
    """The actions of a policy without exploration."""

    def __init__(self, policy: BasePolicy):
        super().__init__()
        self.policy = policy

    @override
    def forward(self, observations: Tensor) -> Tensor:
        return self.policy._predict(observations, deterministic=True)


def _traced(policy: BasePolicy) -> tuple[dict[str, Any], Tensors]:
    """Record a policy's operators; a policy with a memory, or one that branches, cannot be recorded."""
    policy.set_training_mode(False)
    name = type(policy).__name__
    require(
        not hasattr(policy, "lstm_actor"), f"The policy {name} is recurrent and of its own class: it cannot be kept."
    )
    example = torch.zeros(2, *(policy.observation_space.shape or ()))
    try:
        return graph_of(torch.jit.trace(_Acting(policy).eval(), example))
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"The policy {name} cannot be kept as a graph: {short(error)}.") from error


def _from_torchscript(path: Path, options: ImportOptions) -> Source:
    require(
        options.trust,
        f"'{path}' is a TorchScript program, which may do anything when it is loaded; if you know who made it, --trust "
        "loads it (a policy in ONNX needs no trust).",
    )
    try:
        arguments, tensors = graph_of(torch.jit.load(path, map_location="cpu"))
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"'{path}' cannot be imported: {short(error)}.") from error
    return Source("torchscript", arguments, tensors, "TorchScript")


def _from_onnx(path: Path, options: ImportOptions) -> Source:
    content = _whole_onnx(path)
    session = onnx_session(content)
    names = [one.name for one in session.get_outputs()]
    inputs = session.get_inputs()
    require(
        len(inputs) == 1 and inputs[0].type == "tensor(float)",
        f"'{path}' takes {', '.join(f'{one.name} as {one.type}' for one in inputs)}, but a policy takes observations "
        "as one tensor(float).",
    )
    require(
        bool(options.output) or len(names) == 1,
        f"'{path}' has the outputs {', '.join(names)}; say with --output which of them is the action.",
    )
    output = options.output or names[0]
    require(output in names, f"output is '{output}', but '{path}' has {', '.join(names)}.")
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return Source("onnx", {"output": output}, {"onnx": tensor}, "ONNX")


def _whole_onnx(path: Path) -> bytes:
    """Read a model in ONNX with the weights that it may keep in files beside it."""
    try:
        import onnx  # of the extra onnx
    except ModuleNotFoundError as error:
        raise InputError(
            "Policies in ONNX need onnx and onnxruntime, which are not installed; install the extra onnx: pip install "
            "'dpilot[onnx]'."
        ) from error
    try:
        content: bytes = onnx.load(path).SerializeToString()
    except Exception as error:  # protobuf's errors share no base but this
        raise InputError(f"'{path}' is no model in ONNX, or a damaged one: {short(error)}.") from error
    return content


def short(error: Exception) -> str:
    """Shorten an error of a library to its last line, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")[:200]
