"""Formats of policies that other libraries export, by the names under which a controller's folder keeps them."""

from __future__ import annotations

from fl_core.base.placed import Placed

EXPORTED = {"torchscript": Placed("agents.exported:GraphPolicy"), "onnx": Placed("agents.exported:OnnxPolicy")}
"""Format -> the class of its policies."""
