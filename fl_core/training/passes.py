"""Passes that shorten traced programs and leave every result as it is, bit for bit.

On small models an operation costs more by being called than by its arithmetic, so taking calls out is what pays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
_FILLED = {aten.ones_like.default: 1.0, aten.zeros_like.default: 0.0, aten.new_zeros.default: 0.0}
DIRECT: dict[Any, Callable[..., Any]] = {
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.gather.default: torch.gather,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.permute.default: torch.permute,
    aten.relu.default: torch.relu,
    aten.split_with_sizes.default: torch.split_with_sizes,
    aten.sum.dim_IntList: torch.sum,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
}
"""Functions of PyTorch that call an operator at half the cost of calling it by its name."""
_SAME_IF_SHAPE = (aten.view.default, aten._unsafe_view.default, aten.expand.default)


def simplify(program: GraphModule) -> None:
    """Run all passes over a program, in place."""
    written = _written(program)
    for shorten in (_drop_idle, _cancel_splits, _fold_constants):
        shorten(program, written)
        program.graph.eliminate_dead_code()
    for node in _calls(program):
        node.target = DIRECT.get(node.target, node.target)
    program.recompile()


def _written(program: GraphModule) -> set[Node]:
    """Find all nodes whose memory the program writes into: what looks idle there may be the copy that is written."""
    owners = {_owner(node) for node in _calls(program) if (schema := _schema(node)) is not None and schema.is_mutable}
    return {node for node in program.graph.nodes if _owner(node) in owners}


def _schema(node: Node) -> Any:
    """Return the schema of a node's operator; None for a function of Python."""
    return node.target._schema if isinstance(node.target, OpOverload) else None


def _owner(node: Node) -> Node:
    """Return the node whose memory a view, a piece or a tensor written in place is part of."""
    while (source := _source(node)) is not None:
        schema = _schema(node)
        if schema is not None and all(one.alias_info is None for one in schema.returns):
            break
        node = source
    return node


def _calls(program: GraphModule) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


def _source(node: Node) -> Node | None:
    """Return the node's first argument if it is a tensor, else None."""
    return node.args[0] if node.args and isinstance(node.args[0], Node) else None


def _drop_idle(program: GraphModule, written: set[Node]) -> None:
    """Remove operations that return what they are given."""
    for node in _calls(program):
        source = _source(node)
        if source is None or {source, node} & written:
            continue
        before, after = source.meta.get("tensor_meta"), node.meta.get("tensor_meta")
        same_shape = before is not None and after is not None and before.shape == after.shape
        # Multiplying by 1 is exact; the view and expand of a shape to itself is an alias.
        idle = node.target is aten.alias.default or (node.target is aten.mul.Scalar and node.args[1] == 1)
        if idle or (node.target in _SAME_IF_SHAPE and same_shape):
            node.replace_all_uses_with(source)


def _cancel_splits(program: GraphModule, written: set[Node]) -> None:
    """Replace the pieces of a split by those of the concatenation that it undoes."""
    for node in _calls(program):
        source = _source(node)
        if node.target is not aten.split_with_sizes.default or source is None or {source, node} & written:
            continue
        if source.target is not aten.cat.default or source.args[1:] != node.args[2:]:
            continue  # not along the same dimension
        # The derivative of `Model.unflatten` joins the tensors' gradients, and `_in_pieces` cuts them again.
        pieces: Any = source.args[0]
        same = [piece.meta["tensor_meta"].shape[-1] for piece in pieces] == node.args[1]
        if same and not written & set(pieces):
            for taken in list(node.users):
                index: Any = taken.args[1]
                taken.replace_all_uses_with(pieces[index])


def _fold_constants(program: GraphModule, written: set[Node]) -> None:
    """Compute once everything that depends on shapes alone, and store it in the program."""
    # Autograd starts from ones_like(sum of losses) and expands it back to each sample. None of that reads data, so all
    # of it, down to the first product with a tensor of the program, becomes a buffer.
    known: dict[Node, Tensor] = {}
    for node in _calls(program):
        operation: Any = node.target
        if node in written:
            continue
        if operation in _FILLED:
            meta, device = node.meta["tensor_meta"], node.meta["val"].device
            known[node] = torch.full(meta.shape, _FILLED[operation], dtype=meta.dtype, device=device)
        elif node.all_input_nodes and all(one in known for one in node.all_input_nodes) and _repeats(node):
            inputs: Any = map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = operation(*inputs[0], **inputs[1])
    for node, value in known.items():
        if any(user not in known for user in node.users):  # the others are read by constants only
            name = f"constant_{node.name}"
            program.register_buffer(name, value)
            with program.graph.inserting_before(node):
                node.replace_all_uses_with(program.graph.get_attr(name))


def _repeats(node: Node) -> bool:
    """Return True if an operation gives the same result each time, as all do that draw no random numbers."""
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
