"""Another package of the same name is told in one sentence, whichever of ours it hides or overwrites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_core.base import packages
from fl_core.base.packages import PACKAGES, hidden_package
from tests.import_graph import ROOT

COMMAND = "from fl_core.base.packages import main; raise SystemExit(main())"


def dpilot(*path: Path) -> subprocess.CompletedProcess[str]:
    """The command, where Python looks for packages in these folders first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    asked = [sys.executable, "-c", COMMAND, "list", "tasks"]
    return subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_our_packages_are_found() -> None:
    assert hidden_package() is None
    found = dpilot(ROOT)
    assert found.returncode == 0, found.stderr
    assert "digits" in found.stdout


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "fl_core"])
@pytest.mark.parametrize("content", ["# my own\n", None], ids=["package", "folder"])
def test_a_package_that_hides_ours_is_named(name: str, content: str | None, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    if content is not None:
        (tmp_path / name / "__init__.py").write_text(content)
        found = dpilot(tmp_path, ROOT)
        assert found.returncode == 2
        [line] = found.stderr.splitlines()
        assert f"hides DPilot's {name}: {tmp_path / name / '__init__.py'}" in line
    else:  # a folder without __init__.py gives way to a package
        assert dpilot(tmp_path, ROOT).returncode == 0


@pytest.mark.parametrize("first", ["dpilot", "policies", "agents", "experiments"])
def test_a_script_whose_neighbour_hides_ours_is_told_which(first: str, tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("# my own environments\n")
    (tmp_path / "train.py").write_text(f"import envs, {first}\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "experiments" / "_entry")))}
    asked = [sys.executable, str(tmp_path / "train.py")]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: Another package hides DPilot's envs: {tmp_path / 'envs' / '__init__.py'}; ")


def test_the_name_that_is_not_hidden_registers_the_ids() -> None:
    script = "import sys, dpilot, gymnasium; gymnasium.spec('DPilot/Clip-v0'); raise SystemExit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "experiments" / "_entry")))}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=120, check=False).returncode == 0


def test_a_package_installed_over_ours_is_named(tmp_path: Path) -> None:
    """As pip does with two distributions that have a folder of the same name."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        text = (ROOT / name / "__init__.py").read_text()
        (tmp_path / name / "__init__.py").write_text(text if name != "agents" else "from openai import thing\n")
    (tmp_path / "fl_core" / "base").mkdir()
    (tmp_path / "fl_core" / "__init__.pyi").write_text("from .base import packages\n")
    for name in ("__init__.py", "packages.py"):
        (tmp_path / "fl_core" / "base" / name).write_text((ROOT / "fl_core" / "base" / name).read_text())
    found = dpilot(tmp_path)
    assert found.returncode == 2
    assert "hides DPilot's agents" in found.stderr


def test_ids_are_registered_without_torch() -> None:
    script = (
        "import sys, envs, gymnasium; gymnasium.spec('DPilot/Clip-digits-v0'); raise SystemExit('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=120, check=False).returncode == 0


def test_an_interruption_while_the_command_is_loaded_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(packages, "import_module", interrupted)
    assert packages.main() == 130
    assert capsys.readouterr().err == "dpilot: interrupted; nothing is kept yet, so give the same command again\n"
