"""The imports of the five packages, read from their source; `python -m tests.import_graph [ROOT]` counts them.

Source is parsed, never imported, so that any checkout can be measured. A front door that imports on first use has its
exports in the stub beside it (`__init__.pyi`), which is read as part of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("fl_core", "envs", "policies", "agents", "experiments")
ROOT = Path(__file__).parents[1]

Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One import of one module of the project by another.

    Attributes:
        source: the module that imports, by its dotted name; a package stands for its `__init__`.
        target: the module that is imported.
        names: the names taken from it; none where the module itself is imported.
        line: where it stands in the source.
        place: `module`, `function` or `type-checking`.
    """

    source: str
    target: str
    names: tuple[str, ...]
    line: int
    place: str


def module_files(root: Path = ROOT) -> dict[str, list[Path]]:
    """Names of all modules of the five packages, and the files (source, stub) of each."""
    files: dict[str, list[Path]] = {}
    for package in PACKAGES:
        for path in sorted([*(root / package).rglob("*.py"), *(root / package).rglob("*.pyi")]):
            parts = path.relative_to(root).with_suffix("").parts
            files.setdefault(".".join(parts[:-1] if parts[-1] == "__init__" else parts), []).append(path)
    return files


def read_imports(root: Path = ROOT) -> list[Import]:
    """Every import of a module of the five packages by another, wherever in the source it stands."""
    files = module_files(root)
    return [
        found
        for module, paths in files.items()
        for path in paths
        for found in _imports_of(module, path, files)
        if found.target != module
    ]


def _imports_of(module: str, path: Path, known: Mapping[str, object]) -> Iterator[Import]:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node, place in _import_nodes(ast.parse(path.read_text()), "module"):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield Import(module, alias.name, (), node.lineno, place)
            continue
        base = _absolute(node, package)
        names = [alias.name for alias in node.names]
        for name in names:
            if f"{base}.{name}" in known:
                yield Import(module, f"{base}.{name}", (), node.lineno, place)
        taken = tuple(name for name in names if f"{base}.{name}" not in known)
        if base in known and taken:
            yield Import(module, base, taken, node.lineno, place)


def _import_nodes(node: ast.AST, place: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, place
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _import_nodes(child, "function")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _import_nodes(child, "type-checking")
        else:
            yield from _import_nodes(child, place)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, *([node.module] if node.module else [])])


def arrows(imports: Iterable[Import], inside: str, rooms: bool = False) -> dict[str, set[str]]:
    """List the imports inside one package, between its modules or (`rooms`) its folders and the modules at its root.

    A package's own front door is left out: it stands for the package to the outside, and has no floor inside it.
    """
    graph: dict[str, set[str]] = {}
    for found in imports:
        if not all(name.startswith(f"{inside}.") for name in (found.source, found.target)):
            continue
        source, target = (_room(name) if rooms else name for name in (found.source, found.target))
        if source != target:
            graph.setdefault(source, set()).add(target)
            graph.setdefault(target, set())
    return graph


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def circles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach one another (strongly connected components of more than one), each sorted."""
    reached = {node: _reachable(graph, node) for node in graph}
    groups = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in graph}
    return sorted(list(group) for group in groups if len(group) > 1)


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    open_nodes = [start]
    while open_nodes:
        for target in graph.get(open_nodes.pop(), set()) - reached:
            reached.add(target)
            open_nodes.append(target)
    return reached


def floors(graph: Graph) -> int:
    """Number of floors: nodes on the longest way down the arrows, where a circle counts as one node."""
    home = {node: min(group) for group in circles(graph) for node in group}
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            members = [other for other in graph if home.get(other, other) == node]
            below = {home.get(target, target) for member in members for target in graph[member]} - {node}
            heights[node] = 1 + max((height(target) for target in below), default=0)
        return heights[node]

    return max((height(home.get(node, node)) for node in graph), default=0)


def describe(root: Path) -> str:
    """Sizes of every package: modules and lines, the fullest folder, rooms, floors, arrows and circles."""
    files, imports = module_files(root), read_imports(root)
    lines = [_describe_package(package, files, imports) for package in PACKAGES]
    hidden = sum(found.place == "type-checking" for found in imports)
    inner = sum(found.place == "function" for found in imports)
    return "\n".join([*lines, f"imports behind TYPE_CHECKING: {hidden}, inside functions: {inner}"])


def _describe_package(package: str, files: Mapping[str, list[Path]], imports: list[Import]) -> str:
    sources = [path for name, paths in files.items() if name.split(".")[0] == package for path in paths]
    modules = [path for path in sources if path.suffix == ".py" and path.stem != "__init__"]
    folders: dict[Path, int] = {}
    for path in modules:
        folders[path.parent] = folders.get(path.parent, 0) + 1
    widest = max(folders, key=lambda folder: folders[folder])
    length = sum(len(path.read_text().splitlines()) for path in sources)
    by_module, by_room = arrows(imports, package), arrows(imports, package, rooms=True)
    return (
        f"{package}: {len(modules)} modules, {length} lines; most in one folder {folders[widest]} ({widest.name}); "
        f"modules: {_shape(by_module)}; rooms ({len(by_room)}): {_shape(by_room)}"
    )


def _shape(graph: Graph) -> str:
    number = sum(len(targets) for targets in graph.values())
    return f"{floors(graph)} floors, {number} arrows, {len(circles(graph))} circles"


if __name__ == "__main__":
    print(describe(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
