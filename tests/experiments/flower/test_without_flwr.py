"""What a user without the extra is told."""

import importlib
import sys
from importlib import metadata

import pytest

from fl_core.base.errors import InputError


@pytest.mark.parametrize(
    ("version", "words"), [(None, "pip install 'dpilot\\[flower\\]'"), ("1.19.0", "but 1.19.0 is")]
)
def test_a_missing_or_old_flwr_is_told_in_a_sentence(monkeypatch, version, words):
    def found(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    monkeypatch.delitem(sys.modules, "experiments.flower", raising=False)
    with pytest.raises(InputError, match=words):
        importlib.import_module("experiments.flower")
