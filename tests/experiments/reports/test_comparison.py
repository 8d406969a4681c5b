"""The report: the same figures in every format, nothing loaded from elsewhere, nothing that a label can break."""

from __future__ import annotations

import base64
import csv
import io
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.records.comparison import Comparison, ControllerResult, Instance
from experiments.records.costs import PriorRounds, composed_epsilon
from experiments.reports.comparison import contents, table, write_report
from experiments.reports.comparison_csv import csv_text
from experiments.reports.pages import html, markdown, summary_line
from experiments.reports.privacy import TRUST
from experiments.reports.verdict import verdict_parts
from experiments.reports.words import estimate_text
from experiments.statistics.summary import summarise
from fl_core.base.errors import InputError
from tests.experiments.records.test_comparison import make_comparison, make_controller, make_episode


@pytest.fixture(autouse=True)
def _fast_figures(request: pytest.FixtureRequest) -> None:
    """Drawing is tested with the figures; here only two draw."""
    if "embedded" not in request.node.name and "five_files" not in request.node.name:
        request.getfixturevalue("undrawn")


def six() -> Comparison:
    base = [0.700 + 0.01 * seed for seed in range(8)]
    specs: list[tuple[str, str, float, dict[str, Any]]] = [
        ("fixed:0.5", "fixed clip 0.5", 0.0, {}),
        ("best-fixed", "best fixed clip", 0.02, {"search_rounds": 3200, "tuned_on": "8 training instances"}),
        ("exponential-decay", "exponential decay", 0.04, {}),
        ("server-lr-decay", "server learning rate decay", 0.05, {}),
        ("aqc", "adaptive quantile clip", 0.01, {"signals": "accounted", "signal_classes": ("public", "accounted")}),
        ("ppo:runs/x", "PPO", 0.05, {"training_rounds": 6400, "tuned_on": "160 training instances"}),
    ]
    return make_comparison(
        *(make_controller(name, [x + shift for x in base], label=label, **more) for name, label, shift, more in specs)
    )


class Page(HTMLParser):
    """Every tag with its attributes, the visible text, and whether all tags are closed."""

    VOID = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def page(comparison: Comparison) -> Page:
    return Page(html(comparison, contents(comparison)))


def test_five_files_are_written(tmp_path: Path) -> None:
    comparison = six()
    paths = write_report(comparison, tmp_path / "new" / "folder")
    assert sorted(paths) == ["comparison.csv", "comparison.json", "overview.png", "report.html", "report.md"]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(paths)
    assert Comparison.read(paths["comparison.json"]) == comparison
    picture = paths.pop("overview.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    for path in paths.values():
        assert path.read_text(encoding="utf-8").endswith("\n")


def test_nothing_is_written_for_a_comparison_without_pairs(tmp_path: Path) -> None:
    unpaired = make_comparison(make_controller("fixed:1", {1: 0.1}), make_controller("aqc", {2: 0.1}))
    with pytest.raises(InputError, match="same seeds"):
        write_report(unpaired, tmp_path)
    with pytest.raises(InputError, match="unknown"):
        write_report(six(), tmp_path, "nobody")
    assert not list(tmp_path.iterdir())


def test_html_is_one_file_that_loads_nothing() -> None:
    found = page(six())
    assert not found.open
    names = {tag for tag, _ in found.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form", "svg", "a"}
    for tag, attributes in found.tags:
        assert not set(attributes) & {"href", "srcset", "action", "background", "style", "onclick", "onload"}
        if "src" in attributes:
            assert tag == "img"
            assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
            assert attributes["alt"]
    text = html(six(), contents(six()))
    assert "url(" not in text
    assert "@import" not in text
    policies = [a for tag, a in found.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert (policies[0]["content"] or "").startswith("default-src 'none'")


def test_embedded_figures_are_whole_and_refer_to_nothing_outside() -> None:
    sources = [attributes["src"] or "" for tag, attributes in page(six()).tags if tag == "img"]
    assert len(sources) == 5
    for source in sources:
        svg = base64.b64decode(source.split(",", 1)[1]).decode()
        assert svg.rstrip().endswith("</svg>")
        targets = [part.split('"', 1)[0] for part in svg.split('href="')[1:]]
        assert all(target.startswith("#") for target in targets)


def test_the_verdict_comes_first_in_every_format() -> None:
    comparison = six()
    text, shown = markdown(comparison, contents(comparison)), page(comparison).text
    for words in verdict_parts(comparison):
        assert text.index(words) < text.index("| Controller")
        assert shown.index(words) < shown.index("Final accuracy")


def test_all_figures_of_the_summary_are_in_both_reports() -> None:
    comparison = six()
    text, shown = markdown(comparison, contents(comparison)), page(comparison).text
    for row in summarise(comparison):
        for figure in (estimate_text(row.global_accuracy), f"{row.search_rounds:,}", row.label):
            assert figure in text
            assert figure in shown


def test_the_header_says_what_a_sceptic_asks() -> None:
    for text in (markdown(six(), contents(six())), page(six()).text):
        for words in (
            "(ε, δ) = (8, 1e-5) protects a whole client",
            "unit one client, add-remove (one client more or less); against whoever sees the released models",
            "a Gaussian DP filter",
            "full, rate 1",
            "1 min 1 s",
            "dpilot compare --task digits",
            "The server is trusted",
            "done on private clients, they cost privacy themselves",
            "were released with noise and paid for",
            "not corrected for the number of controllers",
        ):
            assert words in text


@pytest.mark.parametrize("placement", [*TRUST, "elsewhere"])
def test_every_placement_says_who_trusts_whom(placement: str) -> None:
    comparison = make_comparison(placement=placement)
    assert TRUST.get(placement, "Placement of the noise: elsewhere.") in markdown(comparison, contents(comparison))


def test_raw_signals_are_called_out() -> None:
    raw = make_controller("papers", [0.5], signal_classes=("public", "raw"))
    comparison = make_comparison(raw, make_controller("aqc", [0.5]))
    words = "papers saw raw signals, exact figures of private clients: there ε holds only for the model updates."
    assert words in markdown(comparison, contents(comparison))
    assert words in page(comparison).text
    assert "raw signals" not in page(six()).text


def test_unequal_privacy_is_flagged_in_every_format() -> None:
    over = make_controller("over", [], episodes=(make_episode(0, 0.9, epsilon_spent=9.0),))
    under = make_controller("under", [], episodes=(make_episode(0, 0.9, epsilon_spent=5.0, epsilon_pld=5.0),))
    comparison = make_comparison(make_controller("best-fixed", [0.5]), over, under)
    for text in (markdown(comparison, contents(comparison)), page(comparison).text):
        assert "over (unequal ε)" in text
        assert "Unequal privacy: over spent up to ε = 9, above the target of 8; not comparable." in text
        assert "under spent less than the target of 8 on 1 of 1 seeds (least 5)." in text
    assert "(unequal ε)" in printed(comparison).replace("\n", " ")


def test_no_privacy_is_said_plainly() -> None:
    free = make_comparison(
        make_controller("a", [], episodes=(make_episode(0, epsilon_spent=math.inf),)), epsilon=math.inf
    )
    assert "nothing is promised to any client" in page(free).text
    assert "Target                 | ε = ∞, δ = 1e-5" in markdown(free, contents(free))


HOSTILE = '<script>alert("x")</script> | [red]a & b\n`c` $d$'


def test_hostile_labels_break_nothing() -> None:
    hostile = make_controller("x", [0.5, 0.6], label=HOSTILE, signals=HOSTILE, tuned_on=HOSTILE)
    comparison = make_comparison(make_controller("fixed:1", [0.5, 0.6]), hostile, task=HOSTILE, command=HOSTILE)
    found = page(comparison)
    assert "script" not in {tag for tag, _ in found.tags}
    assert HOSTILE in found.text
    text = markdown(comparison, contents(comparison))
    assert "<script>" not in text.replace("    <script>", "")  # the command, an indented code block, is verbatim
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") == rows[0].count("|") for line in rows[:4])
    assert "[red]a" in printed(comparison)


def test_markdown_tables_are_aligned() -> None:
    text = markdown(six(), contents(six()))
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 6
    for lines in blocks:
        places = [[i for i, letter in enumerate(line) if letter == "|"] for line in lines]
        assert all(place == places[0] for place in places)


def test_csv_has_a_line_per_controller_and_seed() -> None:
    comparison = six()
    lines = list(csv.DictReader(io.StringIO(csv_text(comparison))))
    assert len(lines) == 6 * 8
    for line in lines:
        controller = comparison.controller(line["controller"])
        episode = next(e for e in controller.episodes if e.seed == int(line["seed"]))
        assert float(line["global_accuracy"]) == episode.global_accuracy
        assert float(line["epsilon_pld"]) == episode.epsilon_pld
        assert line["signal_classes"] == " ".join(controller.signal_classes)
        assert (line["planned_rounds"], line["rounds"], line["diverged"]) == ("4", "4", "False")


def printed(comparison: Comparison, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terminal_table_fits_in_100_columns_and_shows_everything() -> None:
    text = printed(six())
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for row in summarise(six()):
        assert estimate_text(row.global_accuracy) in text
        assert estimate_text(row.personal_accuracy) in text
    assert "6,400" in text


def test_one_controller_and_one_seed_have_no_intervals() -> None:
    comparison = make_comparison(make_controller("only", [0.5]))
    text = markdown(comparison, contents(comparison))
    assert "Paired differences" not in text
    assert "50.0 |" in text
    assert "50.0 [" not in text
    assert "50.0 [" not in printed(comparison)


def test_a_published_method_is_reported_as_a_claim_not_as_a_certificate() -> None:
    claimed = replace(six(), guarantee="as-published", uncovered=("each client's exact risk",))
    text = " ".join(markdown(claimed, contents(claimed)).split())
    assert "is what the paper's own accounting claims" in text
    assert "covered by no ε: each client's exact risk; exact figures of the clients: global accuracy, personal" in text
    assert "ε claimed, mean" in text
    assert "ε by ledger" not in text
    assert "What is promised is the target ε" not in text
    honest = " ".join(markdown(six(), contents(six())).split())
    assert "What is promised is the target ε" in honest
    assert "ε by ledger, mean" in honest


def test_instances_regret_and_costs_are_in_both_reports() -> None:
    values = [0.5, 0.6, 0.7, 0.6, 0.5, 0.6]
    instances = (Instance("hard", 8.0, {}), Instance("easy", 8.0, {}))

    def spread(name: str, shift: float, **changes: Any) -> ControllerResult:
        episodes = tuple(make_episode(s, v + shift, instance=("hard", "easy")[s % 2]) for s, v in enumerate(values))
        return make_controller(name, [], episodes=episodes, **changes)

    made = (PriorRounds(416, 4, 8.0, 4.0, 1.0),)
    comparison = make_comparison(
        spread("best-fixed", 0.0, search_rounds=416, releases=made),
        spread("aqc", 0.1),
        instances=instances,
        hindsight=(spread("fixed:1", 0.15), spread("fixed:2", -0.1)),
    )
    for text in (markdown(comparison, contents(comparison)), page(comparison).text):
        for words in (
            "Each instance",
            "Behind the best fixed clip norm in hindsight",
            "Worst instance",
            "composed by Gaussian",
        ):
            assert words in text
    text = " ".join(markdown(comparison, contents(comparison)).split())
    assert "| hard | fixed:1 | +15.0 [+15.0, +15.0] | +5.0 [+5.0, +5.0] |" in text
    assert "| easy | best fixed | 0.0 [0.0, 0.0] | −10.0 [−10.0, −10.0] |" in text
    assert f"| best fixed | 0 | 416 | 104 | 8 | {round(composed_epsilon(made, 1e-5), 1):g} |" in text
    plain = markdown(six(), contents(six()))
    assert "Behind the best of the tuned controllers: best fixed clip" in plain
    assert "Hindsight" not in plain
    assert "Each instance" not in plain


def many_targets(count: int, ledger: float = 1.0, pld: float = 1.0) -> Comparison:
    """Two controllers on so many instances, whose runs spend these shares of their own ε."""
    instances = tuple(Instance(f"epsilon {i + 1}", i + 1.0, {"epsilon": i + 1.0}) for i in range(count))

    def played(name: str) -> ControllerResult:
        episodes = tuple(
            make_episode(i, 0.5, instance=one.name, epsilon_spent=ledger * one.epsilon, epsilon_pld=pld * one.epsilon)
            for i, one in enumerate(instances)
        )
        return make_controller(name, [], episodes=episodes)

    return make_comparison(played("best-fixed"), played("aqc"), instances=instances)


def test_a_few_targets_have_a_line_each_and_many_share_one() -> None:
    def privacy(comparison: Comparison) -> list[str]:
        text = markdown(comparison, contents(comparison)).partition("## Privacy")[2].partition("## Cost")[0]
        return [" ".join(line.split()) for line in text.splitlines() if line.startswith("|")][2:]

    assert privacy(many_targets(2)) == [
        f"| {name} | public | {target} | {target} | {target} | {target} |"
        for name in ("best fixed", "aqc")
        for target in (1, 2)
    ]
    assert privacy(many_targets(12, 0.995, 0.99)) == [
        f"| {name} | public | 1 to 12 (12 values) | 99.5 % | 99 % |" for name in ("best fixed", "aqc")
    ]
    assert "100 % of it" in markdown(many_targets(12), contents(many_targets(12)))
    assert max(map(len, printed(many_targets(12)).splitlines())) <= 100


def test_the_servers_model_is_shown_beside_the_personal_ones_that_decide() -> None:
    personal = replace(six(), judged_by="personal_accuracy")
    words = "so the personal ones decide. The global model is the server's, without what clients keep to themselves."
    text, usual = (markdown(one, contents(one)) for one in (personal, six()))
    assert words in text
    assert words not in usual

    def cells(page: str, section: str) -> list[list[str]]:
        lines = page.partition(f"## {section}")[2].partition("\n## ")[0].splitlines()
        return [line.split("|")[1:4] for line in lines if line.startswith("|")]

    for section in ("Final accuracy", "Paired differences"):
        assert cells(text, section) == cells(usual, section)


def test_instances_that_nobody_played_are_left_out() -> None:
    comparison = many_targets(3)
    more = replace(comparison, instances=(*comparison.instances, Instance("epsilon 99", 99.0, {})))
    text = markdown(more, contents(more))
    assert "| epsilon 3 " in text
    assert "| epsilon 99" not in text


def test_costs_that_are_unknown_or_endless_are_explained() -> None:
    unknown = make_controller("best-fixed", [0.5, 0.5], search_rounds=8)
    bare = make_controller("ppo", [0.5, 0.5], training_rounds=8, releases=(PriorRounds(8, 4, math.inf, 0.0, 1.0),))
    mixed = make_controller(
        "tuned",
        [0.5, 0.5],
        search_rounds=8,
        releases=(PriorRounds(4, 4, 3.0, 9.0, 1.0), PriorRounds(4, 4, 12.0, 4.0, 1.0)),
    )
    comparison = make_comparison(unknown, bare, mixed, make_controller("aqc", [0.5, 0.5]))
    text = markdown(comparison, contents(comparison)).partition("## Cost")[2]
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("|")][2:5]
    assert lines[0].startswith("| best fixed | 0 | 8 | – | – | – |")
    assert lines[1].startswith("| ppo | 8 | 0 | 2 | ∞ | ∞ |")
    assert lines[2].startswith("| tuned | 0 | 8 | 2 | 3 to 12 | ")
    assert "best fixed: the noise of these rounds is not known here, so their ε cannot be told." in text
    assert "ppo: some of these rounds had no noise, so no finite ε holds for them." in text


def test_csv_has_the_difference_to_the_baseline_and_the_runs_of_hindsight() -> None:
    learned = make_controller(
        "ppo",
        [],
        trainings=("seed 4", "seed 5"),
        episodes=tuple(make_episode(s, 0.5 + 0.1 * t, training=t) for s in (0, 1) for t in (0, 1)),
    )
    base, extra = make_controller("best-fixed", [0.4, 0.6]), make_controller("fixed:1", [0.7, 0.7])
    lines = list(csv.DictReader(io.StringIO(csv_text(make_comparison(base, learned, hindsight=(extra,))))))
    assert [line["role"] for line in lines] == ["controller"] * 6 + ["hindsight"] * 2
    assert [line["training"] for line in lines[2:6]] == ["seed 4", "seed 5"] * 2
    assert [float(line["difference"]) for line in lines[2:6]] == pytest.approx([0.1, 0.2, -0.1, 0.0])


def test_the_summary_says_what_instances_differ_in() -> None:
    seeds = [0, 1]
    instances = tuple(
        Instance(f"{clients} clients", 8.0, {"clients": clients, "update_scale": 0.2 * clients})
        for clients in (100, 25)
    )
    played = [replace(make_episode(seed, 0.5), instance=one.name) for one in instances for seed in seeds]
    comparison = make_comparison(replace(make_controller("fixed", [0.5]), episodes=tuple(played)), instances=instances)
    told = "25, 100 clients, 4 rounds, 2 instances that differ in clients, update scale, ε = 8"
    assert told in summary_line(comparison)
    assert "50 clients, 4 rounds, ε = 8" in summary_line(make_comparison())
