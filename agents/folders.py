"""The folder of a saved controller: its files, and where it lies in the folder of the training that made it."""

from __future__ import annotations

from pathlib import Path

from fl_core.base.errors import require

RECORD, WEIGHTS = "controller.json", "controller.safetensors"


def controller_folder(folder: Path | str) -> Path:
    """Find a controller's folder, given itself or the folder of the training that made it.

    Raises:
        InputError: there is none, or no finished one.
    """
    path = Path(folder)
    if not (path / RECORD).is_file() and (path / "controller" / RECORD).is_file():
        path = path / "controller"
    require(path.is_dir(), f"'{path}' is no folder, so it holds no controller.")
    require(
        (path / RECORD).is_file(),
        f"'{path}' holds no {RECORD}, so no finished controller; an interrupted training has to be resumed first.",
    )
    return path
