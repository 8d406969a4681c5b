"""Programs by `torch.compile`: its kernels on a CPU, and its CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fl_core.base.errors import InputError, first_line

Trace = Callable[..., tuple[Sequence[Tensor], Tensor]]
"""A traced gradient: its pieces and the losses from tensors."""


def require_compiler(device: torch.device) -> None:
    """Refuse a machine that lacks what `torch.compile` calls for a device: a C++ compiler, or Triton on a GPU.

    Raises:
        InputError: it is not there.
    """
    missing = _missing_triton() if device.type == "cuda" else _missing_compiler()
    if missing:
        raise InputError(f"executor is 'compiled', but {missing}; install it, or take vectorized or sequential.")


def _missing_compiler() -> str:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # torch has an exception of its own for each platform
        return f"torch.compile finds no C++ compiler such as g++ on this machine ({first_line(error).rstrip('.')})"
    return ""


def _missing_triton() -> str:
    from torch.utils._triton import has_triton

    return "" if has_triton() else "torch.compile finds no Triton for this GPU"


def compiled(program: Trace, device: torch.device) -> Trace:
    """Compile a traced gradient for the shapes that it is first called with, then."""
    on_gpu = device.type == "cuda"
    fast = torch.compile(program, dynamic=False, mode="reduce-overhead" if on_gpu else "default")
    return _keeping(fast) if on_gpu else fast


def _keeping(program: Trace) -> Trace:
    """Copy what a program returns, because a CUDA graph writes its next results into the same memory."""

    def copied(*tensors: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        pieces, losses = program(*tensors)
        return [piece.clone() for piece in pieces], losses.clone()

    return copied
