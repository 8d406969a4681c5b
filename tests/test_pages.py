"""What stands about the project beside its code is whole and true: pages, citation, the list of quick tests, README."""

from __future__ import annotations

import re
import tomllib

import pytest
import torch
import yaml

from tests.import_graph import PACKAGES, ROOT, module_files

README = ROOT / "README.md"
PAGES = ROOT / "docs"

torch.set_num_threads(1)


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
    path, _, name = line.partition("::")
    assert (ROOT / path).exists()
    assert not name or re.search(
        rf"^def {re.escape(name.partition('[')[0])}\b", (ROOT / path).read_text(), re.MULTILINE
    )


def test_the_hooks_call_what_the_check_calls() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert all(repo["repo"] == "local" for repo in hooks)
    entries = [hook["entry"].split()[:2] for repo in hooks for hook in repo["hooks"]]
    assert entries == [["ruff", "check"], ["ruff", "format"], ["mypy"]]
