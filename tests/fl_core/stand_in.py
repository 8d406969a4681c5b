"""A stand-in for a GPU: tensors with true values on a device of their own, as strict about it as CUDA, and stricter.

Tensors on it say that they are on torch's device `meta` and keep their values in a tensor on the CPU, so that a whole
round goes on, and its numbers can be compared with those of the CPU. Refused are: to mix them with tensors on the CPU,
whatever waits for a GPU (`.item()`, a branch on a value, `tolist`, `nonzero`, masks as an index), and uploads that are
not made from pinned memory without waiting. Reading by `.cpu()`, the one way that is left, is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fl_core.run.config import FederationConfig

DEVICE = torch.device("meta")
aten = torch.ops.aten
_WAITING = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default}
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor}
_COPIES = {aten._to_copy.default, aten.copy_.default}
_MASKS = (torch.bool, torch.uint8)


class Refused(RuntimeError):
    """What would fail on a GPU, or wait for it."""


class There(Tensor):
    """A tensor on the stand-in device.

    Attributes:
        inner: its values.
    """

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made: There = Tensor._make_wrapper_subclass(cls, inner.shape, device=DEVICE, **layout)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert _device is not None, "a tensor of the stand-in device is used after it was taken away"
        return _device.call(func, args, kwargs or {})


_device: StandIn | None = None


class StandIn(TorchDispatchMode):
    """The stand-in device while it is there.

    Attributes:
        reads: transfers to the host.
        playing: True to refuse uploads that wait; what is made once, before the rounds, may.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.playing = False
        self._pinned: dict[int, Tensor] = {}  # held, so that no other tensor takes an id over

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if proxy_tensor.get_proxy_mode() is None:
            return self.call(func, args, kwargs)
        out = func(*args, **kwargs)  # is traced, and comes back by `There.__torch_dispatch__`
        return self._made_while_traced(func, args, kwargs, out) if _names(kwargs.get("device")) else out

    def _made_while_traced(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """Put what a traced factory made on the device, in the place of the empty tensor that the trace knows."""
        if isinstance(out, There):
            return out
        tracer = proxy_tensor.get_proxy_mode().tracer
        made = There(func(*args, **{**kwargs, "device": torch.device("cpu")}))
        proxy_tensor.set_proxy_slot(made, tracer, proxy_tensor.get_proxy_slot(out, tracer))
        return made

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on the values, if a GPU would run it without waiting."""
        there: list[There] = []
        here: list[Tensor] = []
        values, named = _taken(args, there, here), {name: _taken(one, there, here) for name, one in kwargs.items()}
        asked = kwargs.get("device")
        if not there and not _names(asked):
            return func(*args, **kwargs)
        if func not in _COPIES or not self._travels(func, asked, kwargs, args):
            self._check(func, args, here)
        known = {id(one.inner): one for one in there}
        if asked is not None:
            named["device"] = torch.device("cpu")
        out = func(*values, **named)
        if asked is not None and not _names(asked):
            return out.clone() if any(out is one.inner for one in there) else out
        if func is aten.copy_.default and not isinstance(args[0], There):
            return args[0]
        return _wrapped(out, known)

    def _travels(self, func: Any, asked: Any, kwargs: Any, args: Any) -> bool:
        """Account for a copy between host and device; False for one that stays where it is."""
        source = args[1] if func is aten.copy_.default else args[0]
        onto = isinstance(args[0], There) if func is aten.copy_.default else (asked is None or _names(asked))
        if isinstance(source, There) and not onto:
            self.reads += 1
            return True
        if isinstance(source, There) or not onto:
            return False
        waits = not (args[2] if func is aten.copy_.default and len(args) > 2 else kwargs.get("non_blocking"))
        if source.dim() == 0 and func is aten.copy_.default:
            return True  # a number, which goes along with the call
        if self.playing and (waits or id(source) not in self._pinned):
            raise Refused(f"an upload {tuple(source.shape)} that waits, or comes from memory that is not pinned")
        return True

    def _check(self, func: Any, args: Any, here: list[Tensor]) -> None:
        """Refuse an operation that a GPU would fail at, or wait for."""
        tags = func.tags
        indexed = func in _INDEXING
        masked = indexed and any(one is not None and one.dtype in _MASKS for one in args[1])
        grows = not indexed and torch.Tag.dynamic_output_shape in tags
        if func in _WAITING or grows or masked or torch.Tag.data_dependent_output in tags:
            raise Refused(f"{func} must wait for a value")
        for one in here:
            if one.device.type != "cpu":
                raise Refused(f"{func} meets a tensor that was made on the device from values of the host")
            if one.dim() or torch.Tag.pointwise not in tags:
                raise Refused(f"{func} mixes the device with a tensor {tuple(one.shape)} on the CPU")

    def pin(self, tensor: Tensor) -> Tensor:
        """Stand in for `Tensor.pin_memory`."""
        copy = tensor.clone()
        self._pinned[id(copy)] = copy
        return copy


def _names(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _taken(value: Any, there: list[There], here: list[Tensor]) -> Any:
    """Replace the tensors on the device by their values, and list those that are there and those that are not."""
    if isinstance(value, There):
        there.append(value)
        return value.inner
    if isinstance(value, Tensor):
        here.append(value)
    return [_taken(one, there, here) for one in value] if isinstance(value, tuple | list) else value


def _wrapped(out: Any, known: dict[int, There]) -> Any:
    if isinstance(out, Tensor):
        return known[id(out)] if id(out) in known else There(out)
    if isinstance(out, tuple | list):
        return type(out)(_wrapped(one, known) for one in out)
    return out


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Let federations run on the stand-in device, as long as the block lasts."""
    global _device
    device = StandIn()
    with (
        patch.object(FederationConfig, "resolve_device", lambda config: DEVICE),
        patch.object(Tensor, "pin_memory", lambda tensor: device.pin(tensor)),
        patch.object(torch.cuda, "synchronize", lambda device: None),
        patch.object(torch.cuda, "mem_get_info", lambda device: (2**30, 2**31)),
        patch.object(torch.cuda, "memory_reserved", lambda device: 0),
        patch.object(torch.cuda, "memory_allocated", lambda device: 0),
        device,
    ):
        _device = device
        try:
            yield device
        finally:
            _device = None
