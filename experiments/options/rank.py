"""The options of `dpilot rank`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fl_core.base.errors import require


@dataclass(frozen=True)
class RankOptions:
    """Finished trainings, the best first: accuracy on the validation instances by which each chose its best policy.
    The best of many looks better than it is: `dpilot compare` measures it on instances that nobody has chosen by."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of trainings, as runs/*; others among them are left out."""
    mixed: bool = False
    """Rank trainings for different problems, too, each problem by itself."""

    def check(self) -> None:
        """Refuse names and numbers that no command of this kind can have.

        Raises:
            InputError: one of them is not allowed.
        """
        require(bool(self.folders), "folders is empty: name folders of trainings, as in `dpilot rank runs/*`.")
        places = [folder.resolve() for folder in self.folders]
        for folder, place in zip(self.folders, places, strict=True):
            require(folder.exists(), f"'{folder}' does not exist.")
            require(places.count(place) == 1, f"'{folder}' is named twice.")
