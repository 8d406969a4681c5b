"""Tables of texts and their renderings as Markdown, HTML and for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from experiments.libraries import box, table, text

_LONG = 40
"""Letters from which a text column gets more room in HTML, so that its cells do not become towers."""


LONGEST_NAME = 24
"""Longest name in the first column that keeps to one line, however narrow the terminal is."""


@dataclass(frozen=True)
class Table:
    """A table of texts: the first column names the row, the others hold numbers unless they are named in `words`.

    Attributes:
        headers: names of the columns.
        rows: cells, as many as headers each.
        words: headers of the columns of text, set flush left.
        title: heading above the table; empty for none.
        caption: remark below it on a terminal; empty for none.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()
    title: str = ""
    caption: str = ""

    def is_text(self, column: int) -> bool:
        """Return True for a column that is set flush left."""
        return column == 0 or self.headers[column] in self.words

    def markdown(self) -> str:
        """Render with padded columns, so that the source reads well too."""
        cells = [[markdown_line(cell) for cell in line] for line in (self.headers, *self.rows)]
        widths = [max(3, *(len(line[column]) for line in cells)) for column in range(len(self.headers))]
        left = [self.is_text(column) for column in range(len(widths))]
        rule = [("-" * width if text else "-" * (width - 1) + ":") for width, text in zip(widths, left, strict=True)]
        lines = [
            [
                cell.ljust(width) if text else cell.rjust(width)
                for cell, width, text in zip(line, widths, left, strict=True)
            ]
            for line in cells
        ]
        drawn = "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))
        return f"**{markdown_line(self.title)}**\n\n{drawn}" if self.title else drawn

    def html(self) -> str:
        """Render as a table in a box that scrolls sideways."""
        head = self._html_row(self.headers, head=True)
        rows = "\n".join(self._html_row(cells, head=False) for cells in self.rows)
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        return f'<div class="scroll"><table>\n{caption}<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table></div>'

    def _html_row(self, cells: tuple[str, ...], head: bool) -> str:
        marks = [self._html_class(column) for column in range(len(cells))]
        tags = ["th" if head or not column else "td" for column in range(len(cells))]
        parts = zip(tags, marks, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for tag, mark, cell in parts) + "</tr>"

    def _html_class(self, column: int) -> str:
        """Name the classes of a column's cells, as an attribute."""
        names = ["text"] if column and self.is_text(column) else []
        if self.is_text(column) and max((len(line[column]) for line in self.rows), default=0) > _LONG:
            names.append("long")
        return f' class="{" ".join(names)}"' if names else ""

    def latex(self) -> str:
        """Render as a tabular with the rules of the package booktabs; for XeLaTeX or LuaLaTeX, which know ε and δ."""
        columns = "".join("l" if self.is_text(column) else "r" for column in range(len(self.headers)))
        head, *body = (" & ".join(map(latex_text, line)) + r" \\" for line in (self.headers, *self.rows))
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        drawn = "\n".join([*lines, r"\end{tabular}"])
        return f"% {' '.join(self.title.split())}\n{drawn}" if self.title else drawn

    def terminal(self, wrap_numbers: bool = False) -> table.Table:
        """Render for a terminal, whose width texts are folded to.

        Args:
            wrap_numbers: break numbers and their headers at spaces, too, for tables with many columns.
        """
        shown = table.Table(
            title=text.Text(self.title) if self.title else None,
            title_justify="left",
            caption=text.Text(self.caption) if self.caption else None,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for column, name in enumerate(self.headers):
            if self.is_text(column):
                # A name that is broken cannot be typed; only a long label may be.
                whole = column == 0 and max((len(row[0]) for row in self.rows), default=0) <= LONGEST_NAME
                shown.add_column(name, overflow="fold", no_wrap=whole, min_width=12 if column == 0 else None)
            else:
                shown.add_column(name, justify="right", no_wrap=not wrap_numbers)
        for cells in self.rows:
            shown.add_row(*map(text.Text, cells))  # as Text: a bracket in a label is no markup
        return shown


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    }
)


def latex_text(text: str) -> str:
    """Put a text on one line in which no letter is a command of LaTeX."""
    return " ".join(text.split()).translate(_LATEX)


def markdown_line(text: str) -> str:
    """Put a text on one line in which no label can start a table cell or HTML."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
