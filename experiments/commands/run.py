"""`dpilot run`: one federated run under one controller, recorded as it goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envs import EnvCore, EnvSpec, Setting
from envs.playing import RowProgress, decisions
from envs.tasks import find_task
from experiments.commands.interruptions import counted, resumable
from experiments.commands.run_summary import print_summary, summarise_run
from experiments.contenders.bench import Bench
from experiments.contenders.contenders import Contender
from experiments.contenders.play import CODE, Player
from experiments.contenders.preparing import check, parse_contenders, prepare
from experiments.contenders.progress import rounds_bar
from experiments.contenders.recorded import import_recorded
from experiments.options.run import RunOptions
from experiments.records.charge_journal import FILE as JOURNAL
from experiments.records.charge_journal import ChargeJournal, read_journal
from experiments.records.consistency import SUMMARY
from experiments.records.finished import JOBS, FinishedJobs
from experiments.records.folder import make_run_folder, require_writable, says_complete, write_csv, write_yaml
from experiments.records.ledger_file import RunRecord, journal_head, record_of, write_record
from experiments.records.noise_key import drop_key, key_home, load_key, save_key
from experiments.records.order import FILE as ORDER
from experiments.records.order import described, read_order, require_same_order, write_order
from experiments.records.run_state import RECORD as STATE
from experiments.records.run_state import (
    drop_run_state,
    load_run_state,
    require_same_run,
    save_run_state,
    saved_rounds,
)
from experiments.records.shown import SHOWS, Shown
from experiments.records.tensorboard import RoundWriter, final_metrics, run_parameters
from experiments.workers.runner import Runner
from fl_core.base.code_version import code_version
from fl_core.base.errors import require, require_name
from fl_core.base.files import drop_leftovers, read_json, write_json
from fl_core.data.populations import share_samples
from fl_core.run.basis import basis_of
from fl_core.run.config import RunSettings
from fl_core.run.ranges import SEED

SAVE_SECONDS = 10.0
"""Seconds between two writes of the rounds so far."""


@dataclass(frozen=True)
class RunCommand(RunOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Play the run, write its records, print its result and return its summary."""
        self.check()
        if self.resume is not None:
            return _go_on(self.resume)
        require_writable("runs", self.runs / "config.yaml")
        setting = Setting(replace(find_task(self.task), federation=self.federation), EnvSpec(instances="test"))
        bench = Bench(setting.replace(noise="seeded"), self.search_instances, self.train_on)
        contenders = parse_contenders([self.acting])
        several = contenders[0].trainings_named
        require(several == 1, f"controller '{self.controller}' names {several} trainings, but a run is played by one.")
        require(
            not contenders[0].changes_rounds,
            f"controller '{self.controller}' changes rounds, which a run is given; compare plays it.",
        )
        check(contenders, bench)
        core = _core_of(bench, contenders[0], setting)
        self._check_shown(contenders[0], bench, core)
        if setting.federation.noise == "secret":
            key_home(self.runs)  # refuses one among the results before a folder is made
        folder = make_run_folder(self.runs, self.task, contenders[0].name, self.seed)
        write_yaml(folder / "config.yaml", {"command": "run", **asdict(self)})
        about = {
            "settings": setting.as_record(),
            "controller": self.acting,
            "seed": self.seed,
            "search_instances": self.search_instances,
            "train_on": self.train_on,
            "show": self.show,
        }
        write_order(folder, "run", about, _made_of(contenders[0]))
        return _begin(folder, about, bench, contenders[0], core)

    def _check_shown(self, contender: Contender, bench: Bench, core: EnvCore) -> None:
        """Refuse to leave out what epsilon does not cover where the run itself is not covered."""
        core.reset([0], [RunSettings(seed=self.seed)])
        record = record_of(core, 0, contender.name, (), "", self.show)
        trained_on = contender.tuned_population(bench)
        tuned_here = bool(trained_on) and share_samples(trained_on, self.federation.population)
        Shown(self.show).check(asdict(record.facts), record.budget.epsilon, tuned_here)


_ORDERED = {
    "settings": "dict[str, Any]",
    "controller": "str",
    "seed": "int",
    "search_instances": "int",
    "train_on": "str",
    "show": "str",
}
"""Types of what a run's order holds."""


def _made_of(contender: Contender) -> dict[str, Any]:
    """Describe the code and the files that a run depends on beside its options."""
    return {"code": code_version(CODE), "controller": contender.origin}


def _begin(folder: Path, about: dict[str, Any], bench: Bench, contender: Contender, core: EnvCore) -> dict[str, Any]:
    """Tune the controller, where that is not finished, and play a run from its beginning; returns its summary."""
    with _kept_in(folder, bench):
        (player,) = prepare([contender], bench)
        core.reset([0], [RunSettings(seed=about["seed"])])
        if core.federation.config.noise == "secret":
            save_key(folder, core.federation.secrets[0])
        _open_journal(core, player, folder, about["show"], resumed=(folder / JOURNAL).exists())
        summary = _finish(core, player, folder, about)
    bench.environments.runner.finished.drop()
    return summary


@contextmanager
def _kept_in(folder: Path, bench: Bench, begun: bool = False) -> Iterator[None]:
    """Keep the search of a run in its folder, and say after an interruption how the run goes on.

    A run that has begun has its search there; another one that is made in its place is refused, and leaves nothing.
    """
    finished = FinishedJobs(folder / JOBS, keeps=not begun)
    bench.environments.runner = Runner(finished)

    def kept() -> str:
        done = saved_rounds(folder)
        return f"the run after round {done}" if done else counted(finished.count, "finished part of its search")

    with resumable("run", folder, kept):
        yield


def _go_on(folder: Path) -> dict[str, Any]:
    """Play an interrupted run to its end."""
    if _is_complete(folder):
        print(f"The run in '{folder}' is complete, so nothing was changed. Its privacy: dpilot ledger {folder}")
        return {"folder": str(folder), **read_json(folder / SUMMARY)}
    if not (folder / STATE).exists() and (folder / ORDER).exists():
        return _begin_again(folder)
    state = load_run_state(folder)
    drop_leftovers(folder)
    setting = Setting.resumed(state.settings, folder)
    import_recorded([state.controller], [state.made_in.get("origins")], folder)
    bench = Bench(setting.replace(noise="seeded"), state.search_instances, state.train_on)
    (contender,) = parse_contenders([state.controller])
    with _kept_in(folder, bench, begun=True):
        check([contender], bench)
        (player,) = prepare([contender], bench)
        core = _core_of(bench, contender, setting)
        require_same_run(folder, state, core, player.builds[0](core))
        if setting.federation.noise == "secret":
            core.federation.secrets[0] = load_key(folder)
        core.load_state_dict(state.core)
        _open_journal(core, player, folder, state.show, resumed=True)
        summary = _finish(core, player, folder, state.about, state.memory, resumed=True)
    bench.environments.runner.finished.drop()
    return summary


def _is_complete(folder: Path) -> bool:
    """Return True if a folder holds a run that has ended."""
    return not (folder / STATE).exists() and says_complete(folder / SUMMARY)


def _begin_again(folder: Path) -> dict[str, Any]:
    """Play a run that was interrupted before its first state was saved, in the same folder."""
    about, made_of = read_order(folder, "run", _ORDERED, {"code": "str", "controller": "Any"})
    journal = folder / JOURNAL
    rounds = len(read_journal(journal).rounds) if journal.exists() else 0
    require(rounds == 0, f"'{folder}' has lost its {STATE}, but its rounds up to {rounds} were released; start anew.")
    with described(folder, "run"):
        setting = Setting.resumed(about["settings"], folder)
        import_recorded([about["controller"]], [made_of["controller"]], folder)
        bench = Bench(setting.replace(noise="seeded"), about["search_instances"], about["train_on"])
        (contender,) = parse_contenders([about["controller"]])
        require_same_order(folder, "run", made_of, _made_of(contender))
        SEED.check("seed", about["seed"])
        require_name("show", about["show"], SHOWS)
        check([contender], bench)
    return _begin(folder, about, bench, contender, _core_of(bench, contender, setting))


def _core_of(bench: Bench, contender: Contender, setting: Setting) -> EnvCore:
    """Return the environment in which a contender acts, with the noise of the setting (its tuning had seeded noise)."""
    return bench.environments.of(contender.core(bench).setting.replace(noise=setting.federation.noise))


def _open_journal(core: EnvCore, player: Player, folder: Path, show: str, resumed: bool = False) -> None:
    """Open the journal that writes every charge of the run to disk before its round touches any data."""
    if not core.federation.recipe.private:
        return  # nothing is charged
    record = _record(core, player, show)
    run = journal_head(record)
    journal = ChargeJournal.resume(folder, run, record.books) if resumed else ChargeJournal.start(folder, run)
    core.federation.charging.on_charge = journal.charge
    if not resumed:
        write_record(folder, record)  # with it the journal can be read, whenever the run is killed


def _record(core: EnvCore, player: Player, show: str) -> RunRecord:
    """Make the record of the run as it stands: its ledgers and facts."""
    tuning = player.tuning(core.federation.config.population)
    return record_of(core, 0, player.name, player.reads, tuning, show)


def _finish(
    core: EnvCore, player: Player, folder: Path, about: dict[str, Any], memory: Any = None, resumed: bool = False
) -> dict[str, Any]:
    """Play a run to its end, from its beginning or midway, record it, print its result and return its summary."""
    done = len(core.history[0])
    total, midway = core.federation.config.rounds, bool(core.federation.rounds.any())
    with RoundWriter(folder, done + 1 if resumed else None) as writer, rounds_bar(total, player.label) as progress:
        writer.basis(basis_of(core.federation.config))
        record = _Record(core, player, folder, writer, about)
        progress(done)
        try:
            record.play(progress, memory, midway)
        finally:
            record.save("complete" if core.finished.all() else "interrupted")
        parameters = run_parameters(core, player.name, about["seed"], player.tuned_population)
        writer.hparams(parameters, final_metrics(record.rounds))
    drop_run_state(folder)
    if core.federation.config.noise == "secret":
        drop_key(folder)
    print_summary(core, player, folder, about["show"])
    return {"folder": str(folder), **record.summary}


class _Record:
    """A run in progress, whose rounds and state are written every few seconds."""

    def __init__(self, core: EnvCore, player: Player, folder: Path, writer: RoundWriter, about: dict[str, Any]):
        self._core, self._player, self._folder, self._writer = core, player, folder, writer
        self._about, self._shown = about, Shown(about["show"])
        self._written = len(core.history[0])
        self.summary: dict[str, Any] = {}

    @property
    def rounds(self) -> list[dict[str, float]]:
        """Metrics of every round, those that `show` allows."""
        return [self._shown.of(metrics) for metrics in self._core.history[0]]

    def play(self, progress: RowProgress, memory: Any, midway: bool) -> None:
        """Let the controller act to the end."""
        policy = self._player.builds[0](self._core)
        save_run_state(self._folder, self._about, self._core, policy, memory)
        saved, measured = time.monotonic(), midway
        for latest in decisions(self._core, policy, memory, midway):
            # Nothing of the first decision leaves the process before it is on disk by which executor it was made:
            # what goes on by another rounds differently, and would release the same noise on other sums.
            if not measured or time.monotonic() - saved > SAVE_SECONDS:
                self.save("running")
                save_run_state(self._folder, self._with_executor(), self._core, policy, latest)
                saved, measured = time.monotonic(), True
            progress(self._write_new_rounds())

    def _with_executor(self) -> dict[str, Any]:
        """Return the run's order with the executor that was measured in it: another one rounds differently."""
        settings = self._about["settings"] | {"executor": self._core.federation.executor.kind}
        return self._about | {"settings": settings}

    def _write_new_rounds(self) -> int:
        history = self._core.history[0]
        for index in range(self._written, len(history)):
            self._writer.round(index + 1, self._shown.of(history[index]))
        new, self._written = len(history) - self._written, len(history)
        return new

    def save(self, status: str) -> None:
        """Write rounds, ledger and summary as they stand."""
        rows = [{"round": index + 1, **figures} for index, figures in enumerate(self.rounds)]
        write_csv(self._folder / "rounds.csv", rows)
        write_record(self._folder, _record(self._core, self._player, self._shown.show))
        self.summary = summarise_run(self._core, self._player, status, self._shown.show)
        write_json(self._folder / SUMMARY, self.summary)
