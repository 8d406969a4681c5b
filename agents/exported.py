"""Policies that other libraries export: TorchScript as a graph of tensor operators, and ONNX.

A controller's folder holds no program that could do more than arithmetic: a graph is a list of operators from
`OPERATORS`, run one after the other, and ONNX is run by onnxruntime.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from agents.weights import Tensors
from fl_core.base.errors import InputError, first_line

Float32Array = NDArray[np.float32]
State = tuple[NDArray[Any], ...]


class ExportedPolicy(ABC):
    """Function from observations to actions, with those parts of a stable-baselines3 policy that a controller uses.

    Attributes:
        label: readable name of the format.
    """

    label: ClassVar[str]

    def __init__(self, observations: spaces.Box, actions: spaces.Box, arguments: Mapping[str, Any]):
        """Make the policy; its tensors come with `load_state_dict`.

        Raises:
            KeyError, TypeError, ValueError: the arguments are not those of such a policy.
        """
        self._knobs = int(np.prod(actions.shape))
        self.arguments = dict(arguments)
        self._tensors: Tensors = {}

    def state_dict(self) -> Tensors:
        """Return the tensors that `load_state_dict` takes."""
        return dict(self._tensors)

    @abstractmethod
    def load_state_dict(self, tensors: Mapping[str, Tensor], strict: bool = True) -> None:
        """Take the tensors.

        Raises:
            RuntimeError: they are not those of this policy.
        """

    def set_training_mode(self, mode: bool) -> None:  # noqa: B027 - exported policies do not learn
        """Do nothing: it acts alike in training and out of it."""

    def predict(
        self,
        observation: Float32Array,
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float32Array, State | None]:
        """Compute actions for observations, clipped to [-1, 1]; the signature is that of a stable-baselines3 policy.

        Raises:
            InputError: the policy fails, or its actions have another shape.
        """
        batch = np.atleast_2d(np.asarray(observation, dtype=np.float32))
        try:
            actions = np.asarray(self._compute(batch))
        except Exception as error:  # whatever a strange graph or onnxruntime raises
            raise InputError(f"The policy failed on observations {batch.shape}: {first_line(error)}.") from error
        if actions.shape != (len(batch), self._knobs):
            raise InputError(
                f"The policy answers {len(batch)} observations with actions of shape {actions.shape}, but it must be "
                f"{(len(batch), self._knobs)}: observations and knobs."
            )
        clipped = np.clip(actions.astype(np.float32), -1.0, 1.0)
        return (clipped[0] if np.ndim(observation) == 1 else clipped), state

    @abstractmethod
    def _compute(self, observations: Float32Array) -> Any:
        """Compute actions `[n, knobs]` for observations `[n, features]`."""


# ---------------------------------------------------------------- graphs of operators

_NAMES = """
abs add addmm alias amax amin argmax argmin atan batch_norm bmm broadcast_tensors cat celu chunk clamp
clamp_max clamp_min clone contiguous cos cumsum detach div dropout einsum elu eq erf exp expand expand_as
flatten floor floor_divide full full_like ge gelu gt hardsigmoid hardswish hardtanh isnan layer_norm le
leaky_relu linear log log1p log_softmax logical_and logical_not logical_or logsumexp lt matmul max maximum
mean min minimum mish mm mul nan_to_num narrow ne neg norm ones ones_like permute pow prelu reciprocal relu
relu6 reshape reshape_as rsqrt rsub scalar_tensor select selu sigmoid sign silu sin size slice softmax
softplus split split_with_sizes sqrt square squeeze stack sub sum t tanh to transpose type_as unbind unflatten
unsqueeze var view view_as where zeros zeros_like
"""
OPERATORS = frozenset(_NAMES.split())
"""Operators of torch's `aten` that a graph may hold: functions of their arguments, without files or randomness."""
_PLAIN: dict[str, Callable[..., Any]] = {
    "NumToTensor": torch.tensor,
    "Int": int,
    "IntImplicit": int,
    "Float": float,
    "Bool": bool,
    "ListConstruct": lambda *values: list(values),
    "TupleConstruct": lambda *values: list(values),
    "__getitem__": lambda values, place: values[place],
}
"""Operators of numbers and lists."""
_UNPACK = ("ListUnpack", "TupleUnpack")


class GraphPolicy(ExportedPolicy):
    """A straight line of operators. Arguments: `steps`, each with its operator, arguments, named ones and results.

    An argument is a number, a list, or a text: `%3` for a result, `@name` for a tensor, `'none` for the text itself.
    """

    label = "TorchScript"

    @override
    def __init__(self, observations: spaces.Box, actions: spaces.Box, arguments: Mapping[str, Any]):
        super().__init__(observations, actions, arguments)
        self._steps = [
            (str(op), list(given), dict(named), list(results)) for op, given, named, results in arguments["steps"]
        ]
        for op, *_ in self._steps:
            if op.partition(".")[0] not in OPERATORS and op not in (*_PLAIN, *_UNPACK):
                raise ValueError(f"'{op}' is none of the operators that a policy may hold")
        self._result = str(arguments["result"])
        self._names = {str(name): [int(size) for size in shape] for name, shape in arguments["tensors"].items()}

    @override
    def load_state_dict(self, tensors: Mapping[str, Tensor], strict: bool = True) -> None:
        if {name: list(value.shape) for name, value in tensors.items()} != self._names:
            raise RuntimeError("other tensors than the graph names")
        self._tensors = dict(tensors)

    @override
    def _compute(self, observations: Float32Array) -> Any:
        known: dict[str, Any] = {"%0": torch.from_numpy(observations)}
        with torch.no_grad():
            for op, given, named, results in self._steps:
                keywords = {name: self._value(one, known) for name, one in named.items()}
                out = _apply(op, [self._value(one, known) for one in given], keywords)
                known |= dict(zip(results, out if op in _UNPACK else (out,), strict=True))
        return known[self._result].float().numpy()

    def _value(self, argument: Any, known: Mapping[str, Any]) -> Any:
        if isinstance(argument, list):
            return [self._value(one, known) for one in argument]
        if not isinstance(argument, str):
            return argument
        kind, name = argument[:1], argument[1:]
        return known[argument] if kind == "%" else self._tensors[name] if kind == "@" else name


def _apply(op: str, values: list[Any], keywords: dict[str, Any]) -> Any:
    if op in _UNPACK:
        return values[0]
    if op in _PLAIN:
        return _PLAIN[op](*values)
    name, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")(*values, **keywords)


def graph_of(program: Any) -> tuple[dict[str, Any], Tensors]:
    """Convert a TorchScript function from observations to actions into a graph of operators.

    Args:
        program: a scripted or traced module with one tensor in and one out.

    Returns:
        Arguments of `GraphPolicy`, and its tensors.

    Raises:
        ValueError: it holds what a graph cannot, such as branches or an operator that is not on the list.
    """
    graph = torch.jit.freeze(program.eval(), optimize_numerics=False).graph
    inputs, outputs = list(graph.inputs())[1:], list(graph.outputs())
    if len(inputs) != 1 or len(outputs) != 1 or outputs[0].type().kind() != "TensorType":
        raise ValueError(f"it takes {len(inputs)} arguments and returns {len(outputs)}, not one tensor for one")
    names: dict[str, Any] = {inputs[0].debugName(): "%0"}
    steps: list[list[Any]] = []
    tensors: Tensors = {}
    for node in graph.nodes():
        if node.kind() == "prim::Constant":
            names[node.output().debugName()] = _constant(node.output(), tensors)
            continue
        given = [names[one.debugName()] for one in node.inputs()]
        for one in node.outputs():
            names[one.debugName()] = f"%{len(names)}"
        steps.append([*_step(node, given), [names[one.debugName()] for one in node.outputs()]])
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    return {"steps": steps, "result": names[outputs[0].debugName()], "tensors": shapes}, tensors


def _step(node: Any, given: list[Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """Read a node's operator with its overload, its positional arguments and its named ones.

    Raises:
        ValueError: a graph cannot hold the operator.
    """
    name = node.kind().partition("::")[2]
    if name in _PLAIN or name in _UNPACK:
        return name, given, {}
    name = name.removesuffix("_")  # in place is the same function: what it overwrites is read under its new name
    if name not in OPERATORS:
        raise ValueError(f"it holds '{node.kind()}', which is none of the operators that a policy may hold")
    schema = torch._C.parse_schema(node.schema())
    positional = [value for value, one in zip(given, schema.arguments, strict=True) if not one.kwarg_only]
    named = {one.name: value for value, one in zip(given, schema.arguments, strict=True) if one.kwarg_only}
    return f"{name}.{schema.overload_name}".removesuffix("."), positional, named


def _constant(output: Any, tensors: Tensors) -> Any:
    """Encode a constant of a graph as an argument of its steps; a tensor joins the tensors."""
    value = output.toIValue()
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return f"@{name}"
    if isinstance(value, torch.device):
        return "'cpu"  # whatever it was exported on
    if isinstance(value, (list, tuple)):
        return [one if isinstance(one, (int, float, bool)) else str(one) for one in value]
    if isinstance(value, str):
        return f"'{value}"
    json.dumps(value)
    return value


# ---------------------------------------------------------------- ONNX


class OnnxPolicy(ExportedPolicy):
    """A model in ONNX. Arguments: `output`, the name of the output that holds the actions."""

    label = "ONNX"

    @override
    def load_state_dict(self, tensors: Mapping[str, Tensor], strict: bool = True) -> None:
        if set(tensors) != {"onnx"}:
            raise RuntimeError("other tensors than a model in ONNX")
        self._tensors = dict(tensors)
        self._session = onnx_session(tensors["onnx"].numpy().tobytes())
        shapes = [one.shape for one in self._session.get_inputs()]
        self._single = bool(shapes) and len(shapes[0]) == 2 and shapes[0][0] == 1  # exported for one row at a time

    @override
    def _compute(self, observations: Float32Array) -> Any:
        name, output = self._session.get_inputs()[0].name, str(self.arguments["output"])
        parts = np.split(observations, len(observations)) if self._single else [observations]
        return np.concatenate([self._session.run([output], {name: part})[0] for part in parts])


def onnx_session(content: bytes) -> Any:
    """Open a model in ONNX with onnxruntime, on one thread.

    Raises:
        InputError: onnxruntime is missing, or does not take the model.
    """
    try:
        import onnxruntime  # of the extra onnx
    except ModuleNotFoundError as error:
        raise InputError(
            "Policies in ONNX need onnxruntime, which is not installed; install the extra onnx: pip install "
            "'dpilot[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but this
        raise InputError(f"onnxruntime does not take the model: {first_line(error)}.") from error


"""Formats of exported policies, as in `onnx:FOLDER`."""
