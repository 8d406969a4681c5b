"""The folder of a saved controller: its files, and where it lies: in that of its training, or in this package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fl_core.base.errors import require, require_name

RECORD, WEIGHTS, CARD = "controller.json", "controller.safetensors", "card.md"
PRETRAINED = "pretrained"
"""Before the name of a controller that comes with the package, as `pretrained:clip`."""


def pretrained_folders() -> dict[str, Path]:
    """Find the controllers that come with the package: name -> folder."""
    home = Path(str(files("agents"))) / PRETRAINED
    return {folder.name: folder for folder in sorted(home.iterdir()) if (folder / RECORD).is_file()}


def pretrained_folder(spec: str) -> Path:
    """Find the folder of a controller that comes with the package, as `pretrained:clip`.

    Raises:
        InputError: there is none of that name.
    """
    name, known = spec.partition(":")[2].strip(), pretrained_folders()
    require_name("pretrained controller", name, known)
    return known[name]


def is_pretrained(spec: Path | str) -> bool:
    """Return True for a spec such as `pretrained:clip`."""
    return str(spec).partition(":")[0].strip() == PRETRAINED


def controller_folder(folder: Path | str) -> Path:
    """Find a controller's folder, given itself, the folder of the training that made it, or `pretrained:NAME`.

    Raises:
        InputError: there is none, or no finished one.
    """
    if is_pretrained(folder):
        return pretrained_folder(str(folder))
    path = Path(folder)
    if not (path / RECORD).is_file() and (path / "controller" / RECORD).is_file():
        path = path / "controller"
    require(path.is_dir(), f"'{path}' is no folder, so it holds no controller.")
    require(
        (path / RECORD).is_file(),
        f"'{path}' holds no {RECORD}, so no finished controller; an interrupted training has to be resumed first.",
    )
    return path
