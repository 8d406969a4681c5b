"""Lets docstrings describe several names in one entry, as `images, labels: a minibatch`; pages list each by itself."""

from __future__ import annotations

import re
from typing import Any

import griffe

_JOINT = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)


def apart(text: str) -> str:
    """Repeat the description of a joint entry for each of its names."""
    return _JOINT.sub(lambda entry: "\n".join(f"{entry[1]}{name}: {entry[3]}" for name in entry[2].split(", ")), text)


class JointNames(griffe.Extension):
    """Takes joint entries apart before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = apart(obj.docstring.value)
