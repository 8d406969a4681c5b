"""`dpilot audit`: a configuration's claim against what attacks on its real rounds measure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from envs.playing import RowProgress
from envs.tasks import find_task
from experiments.commands.interruptions import counted, resumable
from experiments.contenders.progress import jobs_bar
from experiments.options.audit import AuditOptions
from experiments.records.finished import JOBS, FinishedJobs, Job
from experiments.records.folder import make_run_folder, require_writable, write_yaml
from experiments.records.ledger_file import RunRecord, facts_of_federation
from experiments.records.order import FILE as ORDER
from experiments.records.order import read_order, require_same_order, write_order
from experiments.records.privacy import PrivacyReport, report_of
from experiments.reports.audit import as_json, facts, notes, page
from experiments.reports.audit_figure import score_figure
from experiments.reports.drawing import figure_png
from experiments.reports.words import delta_text
from experiments.workers.backends import Backend
from experiments.workers.options import WorkerOptions
from experiments.workers.runner import Runner, Work
from experiments.workers.serving import in_shared_folder
from experiments.workers.starting import start_workers
from fl_core.audit.audit import Audit, audit
from fl_core.base.code_version import code_version
from fl_core.base.errors import require
from fl_core.base.files import spelled_out, write_bytes, write_json, write_text
from fl_core.base.text import short
from fl_core.run.budget import stated
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.parts import origins_of

PAPERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp-pfeddsu": (
        "DP-pFedDSU",
        {
            "model": "cnn3",
            "clients": 20,
            "partition": "classes(5)",
            "rounds": 50,
            "epsilon": 1.0,
            "delta": 1e-5,
            "clip_norm": 0.01,
        },
    ),
    "feddpa": (
        "FedDPA",
        {
            "model": "cnn2",
            "clients": 50,
            "partition": "dirichlet(1)",
            "rounds": 30,
            "epsilon": 44.95,
            "delta": 0.02,
            "clip_norm": 0.5,
        },
    ),
    "adp-pfl": (
        "ADP-PFL",
        {
            "model": "cnn2",
            "clients": 100,
            "sampling_rate": 0.1,
            "partition": "label_skew(0.2)",
            "rounds": 100,
            "epsilon": 3.0,
            "delta": 1e-5,
            "clip_norm": 1.0,
        },
    ),
    "acdp-pfsd": (
        "ACDP-pFSD",
        {
            "model": "cnn2",
            "clients": 50,
            "partition": "shards(5)",
            "rounds": 100,
            "epsilon": 50.08,
            "delta": 0.013525,
            "clip_norm": 0.5,
        },
    ),
    "fedglp-adp": (
        "FedGLP-ADP",
        {
            "model": "cnn2",
            "clients": 10,
            "partition": "dirichlet(100)",
            "rounds": 20,
            "epsilon": 2.0,
            "delta": 0.1,
            "clip_norm": 0.5,
        },
    ),
}
"""The papers by method: clients, cohort, rounds, ε, δ and C of a table of each (`experiments/papers`), on the digits
and on a model small enough for minutes on a CPU."""


@dataclass(frozen=True)
class AuditCommand(AuditOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Run the audit, write its records, print its result and return it; of several, by their methods."""
        self.check()
        if self.resume is not None:
            options, made_of = read_order(self.resume, "audit", _ORDERED, _MADE_IN)
            require_same_order(self.resume, "pages", made_of, _made_of())
            again = AuditCommand(canaries=options["canaries"], seed=options["seed"], runs=Path(options["runs"]))
            again.check()
            with start_workers(self.workers) as backend:
                return again._audit_papers(self.resume, backend, self.workers.typed)
        require_writable("runs", self.runs / "audit.json")
        if self.papers is None:
            if self.page is not None:
                require_writable("page", self.page)
            return self._execute_one()
        options = {"canaries": self.canaries, "seed": self.seed, "runs": str(self.runs)}
        with start_workers(self.workers) as backend:
            write_order(self.papers, "audit", options, _made_of())
            return self._audit_papers(self.papers, backend, self.workers.typed)

    def _audit_papers(self, folder: Path, backend: Backend | None, typed: Sequence[str]) -> dict[str, Any]:
        """Audit the papers' methods whose pages are not finished; returns the results of all, by method."""
        finished, works = FinishedJobs(folder / JOBS), [one._work(folder) for one in self._of_papers(folder)]
        with (
            resumable("audit", folder, lambda: counted(finished.count, "finished page"), typed),
            jobs_bar(len(works), "audits", "job") as watch,
        ):
            results = Runner(finished, backend, alike=False).run(works, watch)
            finished.drop()
            (folder / ORDER).unlink()
        return {work.job.stem: one["audit"] for work, one in zip(works, results, strict=True)}

    def _work(self, folder: Path) -> Work:
        """Make the job of this audit, whose page goes into a folder."""
        asked = {"settings": asdict(self.federation), "clip_norm": self.clip_norm, "canaries": self.canaries}
        job = Job(self.federation.method, {**_made_of(), **asked, "seed": self.seed}, _check)
        return Work(job, partial(in_shared_folder, folder.absolute(), partial(_audited, self)), f"audit of {job.stem}")

    def _of_papers(self, folder: Path) -> Iterable[AuditCommand]:
        for method, (_, settings) in PAPERS.items():
            own = {name: value for name, value in settings.items() if name != "clip_norm"}
            base = find_task("digits").federation
            federation = replace(base, method=method, guarantee="as-published", **own)
            yield replace(
                self,
                task="digits",
                clip_norm=settings["clip_norm"],
                papers=None,
                workers=WorkerOptions(),
                page=folder / f"verdict-{method}.md",
                federation=federation,
            )

    def _execute_one(self) -> dict[str, Any]:
        self.federation.require_seeded_noise("an audit")
        config, clip = self.federation, self.clip_norm or find_task(self.task).clip_norm
        result = audit(config, clip, self.canaries, self.seed)
        privacy = privacy_of(self.task, result.federation)
        folder = make_run_folder(self.runs, self.task, f"audit-{config.method}", self.seed)
        write_yaml(folder / "config.yaml", {"command": "audit", **asdict(self), "clip_norm": clip})
        origins = origins_of(asdict(config))
        content = as_json(result, privacy) | ({"origins": origins} if origins else {})
        write_json(folder / "audit.json", content)
        title = f"Canaries of {config.method}, {config.guarantee}"
        picture = figure_png(score_figure(result.canaries, title))
        write_bytes(folder / "scores.png", picture)
        if self.page is not None:
            self._write_page(self.page, result, privacy, picture)
        print_audit(result, privacy, config, clip)
        print(f"Records: {folder}" + (f"\nPage: {self.page}" if self.page else ""))
        return {"folder": str(folder), **content}

    def _write_page(self, path: Path, result: Audit, privacy: PrivacyReport, picture: bytes) -> None:
        config = self.federation
        name, _ = PAPERS.get(config.method, (config.method, {}))
        figure = path.with_suffix(".png")
        write_bytes(figure, picture)
        title = f"{name}, {config.guarantee}: what the audit measured"
        text = page(result, privacy, title, self._setting(result), figure.name, self._command())
        write_text(path, text)

    def _setting(self, result: Audit) -> list[str]:
        config, federation = self.federation, result.federation
        cohort = "all of them in every round" if config.sampling_rate == 1 else f"{config.sampling_rate:g} per round"
        return [
            f"{config.dataset}, {config.model} with {federation.model.size:,} parameters",
            f"{config.clients} clients ({config.partition}), {cohort}",
            f"{config.rounds} rounds, ε {config.epsilon:g}, δ {delta_text(config.delta)}, "
            f"C {self.clip_norm or find_task(self.task).clip_norm:g}",
            f"{self.canaries} canaries, seed {self.seed}",
        ]

    def _command(self) -> str:
        """Compose the command line of this audit."""
        words = ["dpilot", "audit", "--task", self.task, "--clip-norm", f"{self.clip_norm:g}"]
        words += ["--canaries", str(self.canaries), "--seed", str(self.seed)]
        usual = find_task(self.task).federation
        for name, value in stated(asdict(self.federation)).items():
            if value != getattr(usual, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join([*words, "--page", str(self.page)])


def _made_of() -> dict[str, str]:
    """Describe what the pages of papers depend on beside their options."""
    return {"code": code_version()}


_ORDERED = {"canaries": "int", "seed": "int", "runs": "str"}
_MADE_IN = {"code": "str"}
"""Types of what the order of the papers' pages holds."""


def _check(record: Mapping[str, Any], where: str) -> None:
    """Refuse what no audit returned; raises `InputError`."""
    found = record.get("audit")
    require(isinstance(found, dict), f"{where}: audit is {short(found)}, but it must be figures by name.")


def _audited(command: AuditCommand, _: RowProgress) -> dict[str, Any]:
    """Run one audit, as a job."""
    return {"audit": spelled_out(command._execute_one())}


def privacy_of(task: str, federation: Federation) -> PrivacyReport:
    """Report the privacy of the first of an audit's runs, whose noise is the uniform or the method's own."""
    return report_of(RunRecord(facts_of_federation(federation, 0, task), federation.charging.books[0]))


def print_audit(result: Audit, privacy: PrivacyReport, config: FederationConfig, clip: float) -> None:
    """Print the verdict, and below it what was measured."""
    print(result.verdict)
    print(f"Audit of {config.method} ({config.guarantee}, {config.placement} noise, C {clip:g})")
    lines = facts(result, privacy)
    width = max(len(name) for name, _ in lines)
    print(*(f"  {name:<{width}}  {value}" for name, value in lines), sep="\n")
    print(*notes(result), sep="\n")
