"""Tracing of functions of tensors into programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


def trace(function: Callable[..., Any], *sample: Tensor) -> GraphModule:
    """Trace a function into a program of its tensor operations, for tensors of the sample's shapes.

    Args:
        function: of tensors alone.
        sample: tensors that it is run on; they may be changed.
    """
    # Without a mode of its own, make_fx makes one for every tensor that it meets, and each of them walks the whole
    # call stack: most of the time of a trace.
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        return make_fx(function)(*sample)
