"""The table of the methods that can be deployed is that of the catalogue."""

from pathlib import Path

import pytest

from experiments.deployment.methods import BEGIN, END, methods_table
from fl_core.base.errors import InputError
from fl_core.recipes.catalog import METHODS
from fl_core.run.config import FederationConfig
from fl_core.run.deployable import require_deployable

PAGE = Path(__file__).parents[3] / "docs" / "flower.md"
ROWS = {row.split(" | ")[0][2:]: row[2:-2].split(" | ")[1:] for row in methods_table().splitlines()[2:]}


def test_the_page_has_the_table_of_the_catalogue():
    told = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert told == methods_table()
    assert set(ROWS) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("place", "guarantee"), enumerate(["sound", "as-published"]))
def test_what_the_table_says_is_what_a_federation_refuses(method, place, guarantee):
    epsilon = {} if METHODS[method].private else {"epsilon": float("inf")}
    config = FederationConfig(method=method, guarantee=guarantee, **epsilon)
    told = ROWS[method][place]
    if told == "yes":
        require_deployable(config, config.recipe())
        return
    with pytest.raises(InputError, match="this cannot be deployed") as refusal:
        require_deployable(config, config.recipe())
    assert told.removeprefix("no: ").removeprefix("it ").removeprefix("its ") in str(refusal.value)
    assert str(refusal.value).count(".") == 1
