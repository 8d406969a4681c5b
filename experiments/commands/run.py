"""`dpilot run`: one federated run under one controller, recorded as it goes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from envs import EnvCore, EnvSpec, Setting
from envs.instances import INSTANCES
from envs.playing import RowProgress, decisions
from envs.tasks import default_federation, find_task
from experiments.commands.consent import require_consent
from experiments.contenders.bench import Bench
from experiments.contenders.contenders import make_players, parse_contenders, prepare
from experiments.contenders.play import Player, episode_of
from experiments.contenders.progress import rounds_bar
from experiments.records.charge_journal import ChargeJournal
from experiments.records.costs import composed_epsilon
from experiments.records.folder import make_run_folder, write_csv, write_yaml
from experiments.records.ledger_file import RunRecord, journal_head, record_of, write_record
from experiments.records.noise_key import drop_key, key_home, load_key, save_key
from experiments.records.privacy import privacy_report
from experiments.records.run_state import drop_run_state, load_run_state, require_same_run, save_run_state
from experiments.records.shown import SHOWS, Shown
from experiments.records.tensorboard import RoundWriter, final_metrics, run_parameters
from fl_core.base.errors import require
from fl_core.base.files import spelled_out, write_json
from fl_core.data.populations import POPULATIONS
from fl_core.run.choices import EVALUATIONS, one_of
from fl_core.run.config import SEED, FederationConfig, RunSettings
from fl_core.run.plan import find_metric

VIEW = ("knobs", "signals", "decision_rounds", "context")
"""Settings of the environment that the controller brings, in the summary."""
SAVE_SECONDS = 10.0
"""Seconds between two writes of the rounds so far."""


SHOW_HELP = (
    "Figures that are written and printed: " + "; ".join(f"{name}: {words}" for name, words in SHOWS.items()) + "."
)


@dataclass(frozen=True)
class RunCommand:
    """One federated run under one controller. Its rounds go to a folder below --runs, and to TensorBoard."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    controller: str = "fixed"
    """Controller that sets the knobs: a schedule with its parameters (`dpilot list controllers`), a trained one as
    ppo:FOLDER, or none."""
    seed: int = 0
    """Instance: fixes partition, initial model, cohorts, batches and noise."""
    search_instances: int = 8
    """Training instances on which best-fixed, and what derives from it, is searched first."""
    train_on: Annotated[str, one_of(POPULATIONS)] = "proxy"
    """Clients whose runs that search takes: proxy, or, at a cost in privacy that no epsilon contains, target or all."""
    show: Annotated[str, tyro.conf.arg(help=SHOW_HELP), one_of(SHOWS)] = "all"
    runs: Path = Path("runs")
    """Folder that receives the run's folder."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""
    resume: Path | None = None
    """Folder of an interrupted run to continue; every other option is taken from it."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    def execute(self) -> dict[str, Any]:
        """Play the run, write its records, print its result and return its summary."""
        if self.resume is not None:
            return _go_on(self.resume)
        SEED.check("seed", self.seed)
        rounds, clients = self.federation.rounds, self.federation.clients
        require_consent(self.yes, rounds * self.search_instances, "search_instances", self.search_instances, clients)
        INSTANCES.check("search_instances", self.search_instances)
        shown = Shown(self.show)
        setting = Setting(replace(find_task(self.task), federation=self.federation), EnvSpec(instances="test"))
        bench = Bench(setting.replace(noise="seeded"), self.search_instances, self.train_on)
        contenders = parse_contenders([self.controller])
        several = contenders[0].trainings_named
        require(several == 1, f"controller '{self.controller}' names {several} trainings, but a run is played by one.")
        (player,) = prepare(contenders, bench)
        core = _core_of(bench, player, setting)
        core.reset([0], [RunSettings(seed=self.seed)])
        record = _record(core, player, self.show)
        shown.check(asdict(record.facts), record.budget.epsilon, player.tuned_on_clients_of(self.federation.population))
        if setting.federation.noise == "secret":
            key_home(self.runs)  # refuses one among the results before a folder is made
        folder = make_run_folder(self.runs, self.task, player.name, self.seed)
        write_yaml(folder / "config.yaml", {"command": "run", **asdict(self)})
        if setting.federation.noise == "secret":
            save_key(folder, core.federation.secrets[0])
        _open_journal(core, player, folder, self.show)
        about = {
            "settings": setting.as_record(),
            "controller": self.controller,
            "seed": self.seed,
            "search_instances": self.search_instances,
            "train_on": self.train_on,
            "show": self.show,
        }
        return _finish(core, player, folder, about)


def _go_on(folder: Path) -> dict[str, Any]:
    """Play an interrupted run to its end."""
    state = load_run_state(folder)
    setting = Setting.from_record(state.settings)
    bench = Bench(setting.replace(noise="seeded"), state.search_instances, state.train_on)
    (player,) = make_players([state.controller], bench)
    core = _core_of(bench, player, setting)
    require_same_run(folder, state, core, player.builds[0](core))
    if setting.federation.noise == "secret":
        core.federation.secrets[0] = load_key(folder)
    core.load_state_dict(state.core)
    _open_journal(core, player, folder, state.show, resumed=True)
    return _finish(core, player, folder, state.about, state.memory, midway=bool(core.federation.rounds.any()))


def _core_of(bench: Bench, player: Player, setting: Setting) -> EnvCore:
    """Return the environment in which a player acts, with the noise of the setting (its tuning had seeded noise)."""
    return bench.environments.of(player.setting.replace(noise=setting.federation.noise))


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
    core: EnvCore, player: Player, folder: Path, about: dict[str, Any], memory: Any = None, midway: bool = False
) -> dict[str, Any]:
    """Play a run to its end, from its beginning or midway, record it, print its result and return its summary."""
    done = len(core.history[0])
    total = core.federation.config.rounds
    with RoundWriter(folder, done + 1 if midway else None) as writer, rounds_bar(total, player.label) as progress:
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
        write_json(self._folder / "summary.json", self.summary)


def summarise_run(core: EnvCore, player: Player, status: str, show: str = "all") -> dict[str, Any]:
    """Summarise a run as JSON-able values: its result, its ε and its settings; numbers not finite are spelled out."""
    config, ledger = core.federation.config, core.federation.charging.budgets[0]
    episode = episode_of(core, 0, by_pld=status != "running")  # which may take seconds
    figures = Shown(show).of(core.history[0][-1] if core.history[0] else {})
    numbers = {
        "epsilon_target": ledger.epsilon,
        "delta": config.delta,
        "epsilon_spent": episode.epsilon_spent,
        "epsilon_pld": episode.epsilon_pld,
        **{name: value for name, value in figures.items() if name not in ("epsilon_spent", "epsilon_left")},
    }
    return {
        "status": status,
        "task": core.task.name,
        "method": config.method,
        "controller": player.name,
        "seed": episode.seed,
        "rounds": episode.rounds,
        "diverged": episode.diverged,
        "accountant": ledger.accountant,
        "sampling": f"{config.sampling}, rate {config.sampling_rate:g}",
        "placement": config.placement,
        "guarantee": config.guarantee,
        "tested_on": EVALUATIONS[config.evaluation],
        "privacy": privacy_report(core, 0, player.reads, show).as_json(),
        "executor": core.federation.executor.choice,
        "view": {name: getattr(player.setting.spec, name) for name in VIEW},
        "signals": player.signals,
        "signal_classes": {feature.name: feature.signal_class for feature in core.features},
        "figure_classes": {name: find_metric(name).signal_class for name in figures},
        "population": config.population,
        "search_rounds": player.search_rounds,
        "training_rounds": player.training_rounds,
        "tuned_on": player.tuned_on,
        "tuned_population": player.tuned_population,
        **spelled_out(numbers),
    }


def _search_price(player: Player, config: FederationConfig) -> str:
    """Write the ε that training and search would have cost on the clients that privacy is promised to.

    The exact accuracies by which they chose are not in it: no ε holds for those.
    """
    if not player.releases:
        return ""
    what = "training" if player.training_rounds else "search"
    cost = composed_epsilon(player.releases, config.delta)
    claimed = " by the paper's accounting" if config.guarantee == "as-published" else ""
    return f"; on private clients the rounds of the {what} alone would have cost epsilon {cost:.4g}{claimed}"


def print_summary(core: EnvCore, player: Player, folder: Path, show: str = "all") -> None:
    """Print a run's result: accuracy, privacy, tuning, executor and the folder of its records."""
    episode, config = episode_of(core, 0), core.federation.config
    print(f"{player.label} on {core.task.name} with {config.method}, seed {episode.seed}: {episode.rounds} rounds")
    if episode.diverged:
        print("The run diverged: its model is no longer finite.")
    if show == "all":
        if core.judges_server:
            print(f"  global accuracy    {episode.global_accuracy:.1%} on the pooled test set")
        tested = EVALUATIONS[config.evaluation]
        print(f"  personal accuracy  {episode.personal_accuracy:.1%}, mean over {config.clients} clients, on {tested}")
    if not core.federation.recipe.exchanges:
        print("  epsilon            0: nothing leaves the clients")
    else:
        print(*(f"  {line}" for line in privacy_report(core, 0, player.reads, show).lines()), sep="\n")
    if player.tuned_population:
        print(f"  tuned on           {player.tuning(config.population)}{_search_price(player, config)}")
    print(f"  executor           {core.federation.executor.choice}")
    print(
        f"Records: {folder}\nIts privacy: dpilot ledger {folder}\nTo look at it: tensorboard --logdir {folder.parent}"
    )
