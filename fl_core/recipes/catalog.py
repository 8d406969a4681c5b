"""Every method by name. A method is a recipe of five parts; adding one is adding an entry here."""

from __future__ import annotations

from dataclasses import dataclass, field

from fl_core.errors import unknown_name
from fl_core.privacy.mechanism import Mechanism
from fl_core.recipes.aggregation import Aggregation
from fl_core.recipes.objective import Objective, Phase, Update
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.sparsification import Sparsification


@dataclass(frozen=True)
class Recipe:
    """A method: what stays personal, what is minimised, what is uploaded, how it is protected, how it is combined."""

    name: str
    summary: str
    source: str
    personalization: Personalization = field(default_factory=Personalization)
    objective: Objective = field(default_factory=Objective)
    sparsification: Sparsification = field(default_factory=Sparsification)
    mechanism: Mechanism = field(default_factory=Mechanism)
    aggregation: Aggregation = field(default_factory=Aggregation)

    @property
    def releases(self) -> bool:
        """Whether anything reaches the server."""
        return self.personalization.local != "all"

    @property
    def knobs(self) -> tuple[str, ...]:
        """What a controller may set per round."""
        return (*self.mechanism.knobs, *self.aggregation.knobs) if self.releases else ()


_HEAD_ONLY = (Phase(updates=(Update(trains="head"),)),)

METHODS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="fedavg",
            summary="federated averaging without clipping or noise",
            source="McMahan et al. 2017",
            mechanism=Mechanism(private=False),
        ),
        Recipe(
            name="dp-fedavg",
            summary="federated averaging of clipped, noised updates",
            source="McMahan et al. 2018",
        ),
        Recipe(
            name="dp-fedavg-fb",
            summary="dp-fedavg; each client tunes the head of a throw-away copy before it is tested",
            source="baseline of DP-pFedDSU",
            personalization=Personalization(adaptation=_HEAD_ONLY),
        ),
        Recipe(
            name="fedper",
            summary="the head stays on the client, trained jointly with the shared body",
            source="Arivazhagan et al. 2019",
            personalization=Personalization(local="head"),
        ),
        Recipe(
            name="local-only",
            summary="control: every client trains alone, nothing is shared",
            source="control",
            personalization=Personalization(local="all"),
        ),
        Recipe(
            name="frozen-extractor",
            summary="control: a random body that nobody trains, a local head; nothing is shared",
            source="control",
            personalization=Personalization(local="all"),
            objective=Objective(phases=_HEAD_ONLY),
        ),
    )
}


def find_method(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        InputError: no method has that name.
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
