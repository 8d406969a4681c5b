"""Control loop kept in a folder: every charge is on disk before its round is handed out, and a killed run goes on."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from typing_extensions import override

from envs import ControlLoop, Setting
from envs.acting import Policy
from envs.charged_round import ChargedRound
from envs.knobs import knob_names
from experiments.deployment.controllers import parse_deployable
from experiments.records.charge_journal import FILE as JOURNAL
from experiments.records.charge_journal import ChargeJournal, read_journal
from experiments.records.ledger_file import FILE as LEDGER
from experiments.records.ledger_file import (
    RunRecord,
    facts_of_config,
    journal_head,
    read_record,
    under_control,
    write_record,
)
from experiments.records.run_state import controller_record
from fl_core.base.arguments import checked
from fl_core.base.errors import FileError, InputError, require
from fl_core.base.files import drop_leftovers, json_number, spelled_out, write_text
from fl_core.base.sealed import read_sealed, require_same, sealed_line, understood
from fl_core.base.text import short
from fl_core.models.layout import Layout
from fl_core.run.config import RunSettings

FORMAT = 1
STATE = "control.json"
LOCK = "control.lock"


class DeployedRun(ControlLoop):
    """One run under a controller and a ledger in a folder, begun or gone on with.

    `dpilot ledger FOLDER` tells its privacy. A round that was handed out before the process ended is lost: its charge
    stays, and it is not released again.

    Attributes:
        folder: of the run.
        controller: name of the controller.
    """

    @checked
    def __init__(
        self,
        folder: Path | str,
        setting: Setting,
        controller: str | Callable[..., Policy],
        layout: Layout,
        run: RunSettings = RunSettings(seed=0),  # noqa: B008  (frozen)
        uncovered: tuple[str, ...] = (),
    ):
        """Open a run.

        Args:
            folder: of the run; one that is empty or missing begins it.
            setting: task, knobs and signals; a controller that is named brings the knobs and signals that it needs.
            controller: spec such as `aqc` or `ppo:runs/NAME`, or a function from the loop to its controller.
            layout: of the model.
            run: ε and seed of the run.
            uncovered: what the run gives away besides its charged releases, in words for the record.

        Raises:
            InputError: as `ControlLoop`, or the folder holds another run or something else, its files were changed, or
                another process has it open.
        """
        name, build = getattr(controller, "__qualname__", ""), controller
        if isinstance(controller, str):
            contender = parse_deployable(controller)
            knob_names(setting.task, setting.spec.knobs, setting.federation.recipe().knobs)  # refuses unknown ones
            setting = contender.needs(setting.federation.guarantee).met_by(setting)
            name, build = contender.name, contender.policy
        assert callable(build)
        self.folder, self.controller, self._uncovered = Path(folder), name, uncovered
        self._kept = False
        super().__init__(setting, build, layout, run)
        _require_free(self.folder)
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(_exclusive(self.folder))
            begun = (self.folder / LEDGER).exists() and not _is_uncharged(self.folder)
            journal = self._go_on() if begun else self._begin()
            undo.pop_all()
        self.charging.on_charge = journal.charge
        self._kept = True

    @override
    def next_round(self) -> ChargedRound | None:
        # after `close` another process may charge the same rounds, which both would hand out
        self._require_open()
        return super().next_round()

    @override
    def _require_given(self) -> ChargedRound:
        self._require_open()
        return super()._require_given()

    def _require_open(self) -> None:
        require(self._kept, f"The run in '{self.folder}' is closed, so it takes no more rounds; open it anew.")

    @property
    def record(self) -> RunRecord:
        """Ledger and facts of the run as it stands."""
        policy = self._actor.policy
        facts = facts_of_config(self.task.federation, self.run.seed, self.rounds, self.task.name)
        drawn_here = facts.noise == "secret"  # by the user, or from the operating system's randomness
        facts = replace(facts, uncovered=(*facts.uncovered, *self._uncovered), cohorts_by_seed=not drawn_here)
        reads, tuning = getattr(policy, "needed_features", None), getattr(policy, "trained_on", "")
        facts = under_control(facts, self.knobs, self.features, self.controller, reads, tuning)
        return RunRecord(facts, self.charging.books[0])

    # ---------------------------------------------------------------- opening and closing

    def _begin(self) -> ChargeJournal:
        """Begin the run in an empty folder, or in that of a run which never charged anything."""
        drop_leftovers(self.folder)
        if _is_uncharged(self.folder):
            for name in (LEDGER, JOURNAL):
                (self.folder / name).unlink(missing_ok=True)
        else:
            _require_none(self.folder, sorted(path.name for path in self.folder.iterdir() if path.name != LOCK))
        made = ChargeJournal.start(self.folder, journal_head(self.record))
        self._save()  # before the ledger: a folder with a ledger has one
        write_record(self.folder, self.record)
        return made

    def _go_on(self) -> ChargeJournal:
        """Go on with the run of the folder."""
        drop_leftovers(self.folder)
        known, path = read_record(self.folder), self.folder / STATE
        journal = ChargeJournal.resume(self.folder, journal_head(self.record), known.books)
        saved = read_sealed(path, FORMAT)
        require_same(saved.get("about"), self._about, f"The run in '{self.folder}'")
        state = {"arrays": _arrays(saved.get("arrays"), f"The file '{path}'"), "plain": saved.get("plain")}
        self._load(state, known.ledger, f"The file '{path}'")
        return journal

    def close(self) -> None:
        """Write the ledger as it stands, and let others open the run."""
        if self._kept:
            write_record(self.folder, self.record)
            self._lock.close()
        self._kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- what is on disk

    @cached_property
    def _about(self) -> dict[str, Any]:
        """Describe what a saved state belongs to, as JSON values."""
        layers = {span.name: span.stop - span.start for span in self.layout.layers}
        told = {"setting": self.setting.as_record(), "run": self.run, "layers": layers}
        return {name: spelled_out(value) for name, value in told.items()} | controller_record(self._actor.policy)

    @override
    def _end_round(self) -> None:
        super()._end_round()
        if self._kept:
            self._save()

    def _save(self) -> None:
        """Write what the run goes on from."""
        place = self._place()  # the journal has the ledger
        arrays = {name: _told(value) for name, value in place["arrays"].items()}
        record = {"about": self._about, "plain": place["plain"], "arrays": arrays}
        # not waited for: the next charge makes the disk take it too, and no charge is in it
        write_text(self.folder / STATE, sealed_line(record, FORMAT), wait=False)


def _told(array: np.ndarray) -> dict[str, Any]:
    """Describe an array as JSON values, from which it comes back bit for bit."""
    values = array.ravel().tolist()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "values": [spelled_out(one) for one in values]}


def _arrays(told: Any, where: str) -> dict[str, np.ndarray]:
    """Invert `_told` for the arrays of a file, which messages call `where`."""
    require(isinstance(told, dict), f"{where}: arrays is {short(told)}, but it must hold arrays by name.")
    found = {}
    for name, one in told.items():
        with understood(f"{where} holds no array of numbers as arrays.{name}"):
            values = [json_number(value) if isinstance(value, str) else value for value in one["values"]]
            found[name] = np.array(values, dtype=np.dtype(one["dtype"])).reshape(one["shape"])
    return found


def _require_free(folder: Path) -> None:
    """Refuse a folder of something else before anything is written into it.

    Raises:
        InputError: it is one, or none can have its name.
    """
    require("\0" not in str(folder), f"folder is {str(folder)!r}, but it must be the name of a folder.")
    if folder.is_dir() and not (folder / LEDGER).exists():
        ours = {LOCK, JOURNAL, STATE}
        seen = (path.name for path in folder.iterdir() if not path.name.startswith("."))
        _require_none(folder, sorted(name for name in seen if name not in ours))


def _is_uncharged(folder: Path) -> bool:
    """Return True for the folder of a run that has charged nothing, so that any other may take its place.

    A beginning writes the journal first and the ledger last; a simulated run's folder has no saved control loop.
    """
    names = {path.name for path in folder.iterdir()}
    if JOURNAL not in names or not (STATE in names or names <= {JOURNAL, LOCK}):
        return False
    charged = read_record(folder).ledger.charges if LEDGER in names else read_journal(folder / JOURNAL).rounds
    return not charged


def _require_none(folder: Path, found: list[str]) -> None:
    require(not found, f"The folder '{folder}' holds {', '.join(found)} and no {LEDGER}: it is no run's.")


def _exclusive(folder: Path) -> BinaryIO:
    """Make a folder and lock it until the file that is returned is closed, or the process ends.

    Raises:
        InputError: another process has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("wb")
    except OSError as error:
        raise FileError(f"The folder '{folder}' could not be made: {error.strerror or error}.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise InputError(f"The run in '{folder}' is open in another process.") from error
    return file
