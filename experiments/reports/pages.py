"""Pages of a report: sections of blocks, written as Markdown and as self-contained HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from matplotlib.figure import Figure

from experiments.records.comparison import Comparison
from experiments.reports.drawing import svg_base64
from experiments.reports.tables import Table, markdown_line
from experiments.reports.words import delta_text, targets_text


@dataclass(frozen=True)
class Code:
    """A block with a command line."""

    text: str


@dataclass(frozen=True)
class CaptionedFigure:
    """A block with a figure and the sentence that says what it shows; only HTML has it."""

    draw: Callable[[Comparison], Figure]
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: tuple[str | Table | Code | CaptionedFigure, ...]


def summary_line(comparison: Comparison) -> str:
    """Summarise the setting of a comparison in one line; settings in which instances differ show all their values."""
    instances = comparison.instances

    def told(name: str) -> str:
        usual = getattr(comparison, name)
        return ", ".join(f"{value}" for value in sorted({one.changes.get(name, usual) for one in instances} or {usual}))

    settings = dict.fromkeys(name.replace("_", " ") for one in instances for name in one.changes)
    differ = f" that differ in {', '.join(settings)}" if settings else ""
    number = f"{len(instances)} instances{differ}, " if len(instances) > 1 else ""
    return (
        f"{comparison.task} task, {comparison.method} on {told('dataset')}, {told('clients')} clients, "
        f"{comparison.rounds} rounds, {number}{targets_text(comparison)}, δ = {delta_text(comparison.delta)}"
    )


def markdown(comparison: Comparison, sections: Iterable[Section]) -> str:
    """Write the report as Markdown that reads well in a terminal."""
    parts = ["# DPilot comparison", markdown_line(summary_line(comparison))]
    for section in sections:
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Table):
                parts.append(block.markdown())
            elif isinstance(block, Code):
                parts.append("\n".join(f"    {line}" for line in block.text.splitlines()))
            elif isinstance(block, str):
                parts.append(markdown_line(block))
        if any(isinstance(block, CaptionedFigure) for block in section.blocks):
            parts.append("The figures are in report.html, beside this file.")
    return "\n\n".join(parts) + "\n"


_CSS = """
:root { color-scheme: light; --ink: #1c1f23; --soft: #59606b; --line: #dfe3e8; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 74rem; color: var(--ink); background: #fff;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { max-width: 46rem; margin: .6rem 0; }
.summary { color: var(--soft); margin-top: 0; }
.verdict { border-left: 4px solid var(--accent); background: #f2f8fc; padding: .9rem 1.1rem;
  max-width: 50rem; border-radius: 0 6px 6px 0; }
.verdict h2 { margin: 0 0 .3rem; }
.verdict p { margin: .45rem 0 0; font-size: .95rem; }
.verdict h2 + p { font-size: 1.05rem; font-weight: 600; margin: 0; }
.scroll { overflow-x: auto; margin: .8rem 0 1.2rem; background:
  linear-gradient(to right, #fff 1rem, #fff0 2rem) 0 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, #fff 1rem, #fff0 2rem) 100% 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, #0002, #0000) 100% 0 / .7rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); vertical-align: bottom;
  white-space: normal; max-width: 12rem; }
th:first-child { position: sticky; left: 0; background: #fff; text-align: left; padding-left: 0; }
tbody th { font-weight: 600; min-width: 10rem; max-width: 18rem; white-space: normal; }
.text { text-align: left; white-space: normal; min-width: 8rem; }
.text.long { min-width: 18rem; }
tbody th.long { min-width: 16rem; max-width: 24rem; }
.figures { columns: 30rem 2; column-gap: 1.5rem; }
figure { margin: 0 0 1.5rem; break-inside: avoid; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .9rem; }
pre { background: #f5f6f8; padding: .8rem 1rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 40rem) { th, td { padding: .35rem .5rem; }
  table { font-size: .85rem; } tbody th { max-width: 8.5rem; min-width: 6.5rem; }
  th.long:first-child { min-width: 8.5rem; max-width: 8.5rem; }
  figure { overflow-x: auto; } figure img { min-width: 32rem; } figcaption { position: sticky; left: 0; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; }
  table, figcaption { font-size: 8.5pt; } th, td { padding: .3rem .5rem; }
  .scroll { overflow: visible; } h2 { break-after: avoid; } tr { break-inside: avoid; }
  .figures { columns: 2; } .verdict { background: none; } }
"""


def html(comparison: Comparison, sections: Iterable[Section]) -> str:
    """Write the report as one HTML file: style and figures are inside, and the page may load nothing."""
    title = f"DPilot comparison: {comparison.task}"
    body = "\n".join(_html_section(section, comparison) for section in sections)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="summary">{escape(summary_line(comparison))}</p>\n'
        f"{body}\n</body>\n</html>\n"
    )


def _html_section(section: Section, comparison: Comparison) -> str:
    blocks = "\n".join(_html_block(block, comparison) for block in section.blocks)
    if any(isinstance(block, CaptionedFigure) for block in section.blocks):
        blocks = f'<div class="figures">\n{blocks}\n</div>'
    kind = ' class="verdict"' if section.title == "Verdict" else ""
    return f"<section{kind}>\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>"


def _html_block(block: str | Table | Code | CaptionedFigure, comparison: Comparison) -> str:
    if isinstance(block, Table):
        return block.html()
    if isinstance(block, Code):
        return f"<pre><code>{escape(block.text)}</code></pre>"
    if isinstance(block, CaptionedFigure):
        data = svg_base64(block.draw(comparison))
        image = f'<img alt="{escape(block.caption)}" src="data:image/svg+xml;base64,{data}">'
        return f"<figure>{image}<figcaption>{escape(block.caption)}</figcaption></figure>"
    return f"<p>{escape(block)}</p>"
