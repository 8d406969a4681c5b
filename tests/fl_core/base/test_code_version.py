"""The version of the code changes with what a program does, not with what is said about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fl_core.base import code_version as module
from fl_core.base.code_version import code_version, program_text

PLAIN = '''"""A module."""
RATE = 0.5
"""A rate."""


def halve(x: float) -> float:
    """Half of it."""
    return x * RATE  # exact
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [("A module.", "Another."), ("A rate.", "x"), ("Half of it.", "y"), ("  # exact", ""), ("\n\n\ndef", "\ndef")],
)
def test_comments_docstrings_and_layout_leave_it(old: str, new: str) -> None:
    assert old in PLAIN
    assert program_text(PLAIN.replace(old, new)) == program_text(PLAIN)


@pytest.mark.parametrize(("old", "new"), [("0.5", "0.25"), ("x * RATE", "RATE * x"), ("halve", "half")])
def test_a_default_a_formula_and_a_name_change_it(old: str, new: str) -> None:
    assert program_text(PLAIN.replace(old, new)) != program_text(PLAIN)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "some_results"
    (folder / "inner").mkdir(parents=True)
    for path in (folder / "__init__.py", folder / "inner" / "__init__.py"):
        path.write_text("")
    (folder / "inner" / "rate.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "RESULT_PACKAGES", ("some_results",))
    return folder


def _version(*modules: str) -> str:
    code_version.cache_clear()
    module._result_digest.cache_clear()
    for name in [name for name in sys.modules if name.startswith("some_results")]:
        del sys.modules[name]
    return code_version(*modules)


def test_every_module_of_a_package_counts(package: Path) -> None:
    try:
        before = _version()
        assert len(before) == 12
        assert _version() == before
        assert _version("some_results.inner.rate") != before
        (package / "inner" / "rate.py").write_text(PLAIN.replace("0.5", "0.25"))
        changed = _version()
        (package / "inner" / "rate.py").write_text(PLAIN)
        (package / "inner" / "rate.py").rename(package / "rate.py")
        moved = _version()
        assert len({before, changed, moved}) == 3
        with pytest.raises(ModuleNotFoundError, match="no source of 'some_results_not'"):
            _version("some_results_not")
    finally:
        code_version.cache_clear()
        module._result_digest.cache_clear()
