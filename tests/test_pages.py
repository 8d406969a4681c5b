"""What stands about the project beside its code is whole and true: pages, citation, the list of quick tests, README."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
import yaml

from experiments import cli
from experiments.commands.catalog import COMMANDS
from tests.import_graph import PACKAGES, ROOT, module_files
from tests.markdown import all_blocks

README = ROOT / "README.md"
PAGES = ROOT / "docs"


def test_every_module_has_its_page() -> None:
    shown = set(
        re.findall(r"^::: ([\w.]+)$", "\n".join(path.read_text() for path in PAGES.rglob("*.md")), re.MULTILINE)
    )
    assert set(PACKAGES) <= shown
    folders = shown - set(PACKAGES)
    public = [name for name in module_files() if not any(part.startswith("_") for part in name.split("."))]
    lost = [name for name in public if "." in name and not any(f"{name}.".startswith(f"{page}.") for page in folders)]
    assert not lost, f"no page in docs/modules shows {', '.join(lost)}"
    assert folders <= set(public), f"pages show what is gone: {', '.join(folders - set(public))}"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", (ROOT / "tests" / "quick.txt").read_text(encoding="utf-8").split())
def test_the_quick_tests_exist(line: str) -> None:
    path, _, name = line.removeprefix("--deselect=").partition("::")
    assert (ROOT / path).exists()
    assert not name or re.search(
        rf"^def {re.escape(name.partition('[')[0])}\b", (ROOT / path).read_text(), re.MULTILINE
    )


def test_the_hooks_call_what_the_check_calls() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert all(repo["repo"] == "local" for repo in hooks)
    entries = [hook["entry"].split()[:2] for repo in hooks for hook in repo["hooks"]]
    assert entries == [["ruff", "check"], ["ruff", "format"], ["mypy"]]


PRINTED = [
    line.partition("    #")[0]
    for block in all_blocks(README)
    if not block.language
    for line in block.code.splitlines()
    if line.startswith("dpilot ")
]


@pytest.mark.parametrize("command", PRINTED)
def test_a_command_of_the_readme_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, name, *arguments = shlex.split(command)
    carried_out: list[object] = []
    kind = COMMANDS[name].load()
    monkeypatch.setattr(kind, "execute", lambda self: carried_out.append(self))
    if "runs/" in command or ".zip" in command:  # a user's runs and models are not here, and would be refused
        for base in [base for base in kind.__mro__ if "check" in vars(base)]:
            monkeypatch.setattr(base, "check", lambda self: None)
    assert cli.main([name, *arguments]) == 0
    assert len(carried_out) == 1


def test_the_readmes_layout_is_that_of_the_packages() -> None:
    text = README.read_text(encoding="utf-8").partition("## Layout")[2]
    for package, folders in re.findall(r"^\| `(\w+)`[^|]*\|([^|]*)\|$", text, re.MULTILINE):
        there = {path.name for path in (ROOT / package).iterdir() if path.is_dir() and path.name != "__pycache__"}
        assert set(re.findall(r"`(\w+)`", folders)) == there
