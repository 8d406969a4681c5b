"""`python -m experiments.deployment.methods PAGE`: tell on a page which methods can be deployed, by the catalogue."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from fl_core.base.errors import require
from fl_core.base.files import read_bytes, write_text
from fl_core.recipes.catalog import METHODS
from fl_core.recipes.mechanism import NOISE_KNOBS
from fl_core.run.config import FederationConfig
from fl_core.run.deployable import why_not_deployed

BEGIN, END = "<!-- methods: python -m experiments.deployment.methods docs/flower.md -->\n", "<!-- end of methods -->\n"


def main() -> None:
    """Write the table between the marks of a page."""
    page = Path(sys.argv[1])
    text = read_bytes(page).decode()
    require(BEGIN in text and END in text, f"The page '{page}' has no place for the table: it lacks {BEGIN.strip()}.")
    before, _, rest = text.partition(BEGIN)
    write_text(page, f"{before}{BEGIN}{methods_table()}{END}{rest.partition(END)[2]}")


def methods_table() -> str:
    """Write a Markdown table of all methods: yes, or why not, under each guarantee."""
    rows = [("method", *(f"guarantee {one}" for one in NOISE_KNOBS)), ("---",) * (1 + len(NOISE_KNOBS))]
    rows += [(name, *(_answer(name, one) for one in NOISE_KNOBS)) for name in METHODS]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _answer(method: str, guarantee: str) -> str:
    """Say yes, or why a method cannot be deployed under a guarantee."""
    epsilon = FederationConfig.epsilon if METHODS[method].private else math.inf
    config = FederationConfig(method=method, guarantee=guarantee, epsilon=epsilon)
    reason = why_not_deployed(config, config.recipe()).partition(", ")[2].partition(";")[0]
    return f"no: {reason.replace('which', 'it', 1).replace('whose', 'its', 1)}" if reason else "yes"


if __name__ == "__main__":
    main()
