"""A method as a recipe of five parts, its two modes, and edits of it by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from fl_core.base.arguments import checked
from fl_core.base.errors import require, require_name, unknown_name
from fl_core.base.libraries import Tensor
from fl_core.base.values import read_assignment, read_value
from fl_core.models.layout import Layout
from fl_core.privacy.noise_model import NoiseModel
from fl_core.recipes.aggregation import Aggregation
from fl_core.recipes.mechanism import MECHANISMS, Mechanism
from fl_core.recipes.objective import APART, SCHEDULES, Objective
from fl_core.recipes.parameterization import Parameterization
from fl_core.recipes.parts import KnobRange, Part
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.personalization_kinds import PERSONALIZATIONS
from fl_core.recipes.published_claims import Claim
from fl_core.recipes.sparsification import SPARSIFICATIONS, Sparsification
from fl_core.recipes.terms import find_term

GUARANTEES = {
    "sound": "every release is noised, counted and charged; the ledger's epsilon holds",
    "as-published": "the paper's arithmetic; reports show the claimed and the certified epsilon, and what is uncovered",
}

COMPONENTS: dict[str, tuple[str, ...]] = {
    "adaptive-constraint": ("personal-constraint", "shared-constraint"),
    "reparameterization": ("reparameterized",),
    "dynamic-adaptive-norm": ("adaptive-norm",),
    "fisher-personalization": ("fisher-mask",),
    "layer-wise-personalization": ("growing-mask",),
    "adaptive-clipping": ("layers",),
}
"""Name in the papers' ablation tables -> parts and terms."""

_SPLITS = {"client-budget": "client_budget", "round-budget": "budget"}
"""Components that split the budget, and the fields of the mechanism that say how."""

_SWAPS: dict[str, Mapping[str, Part]] = {
    "personalization": PERSONALIZATIONS,
    "sparsification": SPARSIFICATIONS,
    "mechanism": MECHANISMS,
}


@dataclass(frozen=True)
class Recipe:
    """A method: what stays personal, what is minimised, what is uploaded, how it is protected, how it is combined.

    Examples:
        >>> from fl_core.recipes.catalog import find_method
        >>> recipe = edit(find_method("dp-fedavg"), ["sparsification=top-k", "sparsity=0.1"])
        >>> recipe.sparsification
        TopK(sparsity=0.1)
        >>> [knob.name for knob in recipe.knobs][-1]
        'sparsity'

    Attributes:
        name, summary, source: for lists.
        published: edits that turn the sound recipe into the paper's arithmetic.
        published_uncovered: disclosures of the paper's method without noise, beside those that its parts declare.
        claims: what the paper states of its noise by its own reckoning, beside what all papers claim.
    """

    name: str
    summary: str
    source: str
    personalization: Personalization = field(default_factory=Personalization)
    objective: Objective = field(default_factory=Objective)
    sparsification: Sparsification = field(default_factory=Sparsification)
    mechanism: Mechanism = field(default_factory=Mechanism)
    aggregation: Aggregation = field(default_factory=Aggregation)
    published: tuple[str, ...] = ()
    published_uncovered: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def parts(self) -> dict[str, Part]:
        """The five parts by name."""
        return {
            "personalization": self.personalization,
            "objective": self.objective,
            "sparsification": self.sparsification,
            "mechanism": self.mechanism,
            "aggregation": self.aggregation,
        }

    @property
    def exchanges(self) -> bool:
        """True if anything reaches the server."""
        return not self.personalization.shares_nothing

    @property
    def private(self) -> bool:
        """True if what reaches the server is clipped and noised."""
        return self.exchanges and self.mechanism.private

    @cached_property
    def knobs(self) -> tuple[KnobRange, ...]:
        """Knobs that a controller may set per round."""
        if not self.exchanges:
            return ()
        order = ("mechanism", "aggregation", "personalization", "objective", "sparsification")
        return tuple(knob for name in order for knob in self.parts[name].knobs)

    @property
    def view(self) -> Parameterization:
        """Map from trained vectors to network parameters."""
        return Parameterization(self.personalization, self.sparsification)

    @property
    def releases(self) -> tuple[str, ...]:
        """Names of the noised releases that the ledger is charged for."""
        if not self.private:
            return ()
        return ("update", *(name for part in self.parts.values() for name in part.releases))

    def initial_state(self, model: Layout, server: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Make the persistent tensors of a run and of each client, without leading dimensions.

        Args:
            model: the network.
            server: the initial model `[size]`.
        """
        clipping, budgeting = self.mechanism.clipping, self.mechanism.budgeting
        of_run = self.personalization.initial_run_state(model, server)
        of_run |= clipping.initial_run_state(model, server) | budgeting.initial_run_state(server)
        of_run |= self.sparsification.initial_run_state(server)
        of_client = self.personalization.initial_state(model, server)
        of_client |= clipping.initial_client_state(model, server) | budgeting.initial_client_state(server)
        return of_run, of_client

    def in_mode(self, guarantee: str) -> Recipe:
        """Return the recipe as it runs under a guarantee, one of `GUARANTEES`."""
        if guarantee == "sound" or not self.exchanges:
            return replace(self, published_uncovered=())
        return edit(self, self.published)

    def uncovered(self, placement: str, cohort_varies: bool) -> tuple[str, ...]:
        """List what it discloses about the clients without noise, as phrases; empty where the ledger's ε holds.

        Args:
            placement: party that adds the noise.
            cohort_varies: True if the number of participants is private.
        """
        if not self.private:
            return ("the updates themselves, without noise",) if self.exchanges else ()
        found = [phrase for part in self.parts.values() for phrase in part.uncovered]
        if self.personalization.masks_uploads and not self.noise(placement).in_full:
            found.append("masks built from each client's own upload, which carries 1/m of the noise variance")
        if self.aggregation.divide_by != "expected" and cohort_varies:
            found.append("the number of participants, by the divisor")
        return (*found, *self.published_uncovered)

    def noise(self, placement: str, published: bool = False) -> NoiseModel:
        """Say which noise its released sums carry.

        Args:
            placement: one of `PLACEMENTS`.
            published: True if it runs as published; in the papers it is always the clients that add noise, each its
                share, whatever the placement is called.
        """
        own_masks = self.personalization.masks_uploads
        hidden = self.sparsification.noises_kept_only and not self.sparsification.is_public
        by_upload = self.private and (self.mechanism.upload_noise or own_masks)
        if self.private and not by_upload:
            hidden = False  # noise of the sum lies wherever somebody could have uploaded something
        drawn_by = "nobody"
        if self.private:
            drawn_by = "clients" if by_upload or published or placement != "central" else "server"
        return NoiseModel(placement, drawn_by, by_upload, "own" if own_masks or hidden else "public", hidden)

    @property
    def gradient_passes(self) -> str:
        """Passes over a minibatch per local step and work beside them, as text for lists and benchmarks."""
        passes = [str(sum(update.gradient_passes for update in phase.updates)) for phase in self.objective.phases]
        extra = []
        if self.personalization.kind == "fisher-mask" or self.sparsification.kind == "fisher":
            extra.append("per-sample Fisher")
        if "teacher" in self.objective.needs:
            extra.append("teacher's forward")
        if self.mechanism.budgeting.measures_risk:
            extra.append("Jacobian risk")
        return " + ".join([" then ".join(passes), *extra])

    def check(self) -> None:
        """Refuse parts that do not fit together.

        Raises:
            InputError: the objective needs something that no part provides.
        """
        provided = {"clip_norm", "anchor"} | self.personalization.provides
        for term in self.objective.terms:
            for name in term.needs:
                require(
                    name in provided or (name == "personal" and term.kind == "shared-constraint"),
                    f"loss term '{term.kind}' needs {_NEEDS.get(name, name)}, but personalization "
                    f"'{self.personalization.kind}' has none.",
                )
        require(
            self.objective.schedule not in APART or "personal" in provided,
            f"objective.schedule is '{self.objective.schedule}', but personalization '{self.personalization.kind}' has "
            "no personal coordinates.",
        )
        require(
            self.exchanges or self.sparsification.kind == "none",
            f"sparsification is '{self.sparsification.kind}', but method '{self.name}' uploads nothing.",
        )


_NEEDS = {"personal": "personal coordinates", "teacher": "a teacher", "seen": "a teacher"}


# --- Edits by name ------------------------------------------------------------------------------------------------


@checked
def edit(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """Apply changes `KEY=VALUE` to a recipe, in order.

    A key is a part (`sparsification=random`), `objective` (its schedule), `term` (one more loss term), a field of a
    part or term (`personalization.threshold=0.2`, `decoupled-distillation.temperature=4`), or a field whose name is
    unique in the recipe (`threshold=0.2`).

    Raises:
        InputError: there is no such key, or the value does not fit.
    """
    for change in changes:
        recipe = _edit_one(recipe, *read_assignment("set", change, "KEY=VALUE, as in sparsification=random"))
    return recipe


@checked
def without(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """Remove components from a recipe, each a part or the kind of one, a loss term, or one of `COMPONENTS`.

    Raises:
        InputError: the recipe has no such component.
    """
    for name in names:
        for component in COMPONENTS.get(name, (name,)):
            recipe = _remove(recipe, component, name)
    return recipe


def _remove(recipe: Recipe, component: str, asked: str) -> Recipe:
    terms = tuple(term for term in recipe.objective.terms if term.kind != component)
    if len(terms) < len(recipe.objective.terms):
        return replace(recipe, objective=replace(recipe.objective, terms=terms))
    if component in ("personalization", recipe.personalization.kind) and recipe.personalization != Personalization():
        # What is tested stays as it was, or the ablation would compare two kinds of accuracy.
        neutral = Personalization(tests=recipe.personalization.tests)
        lost = recipe.personalization.provides  # and with it the terms that need it, but for one that does without
        terms = tuple(one for one in terms if one.kind == "shared-constraint" or not lost.intersection(one.needs))
        own = recipe.objective.schedule
        schedule = "joint" if own in APART else own
        objective = replace(recipe.objective, terms=terms, schedule=schedule)
        return replace(recipe, personalization=neutral, objective=objective)
    if component in ("sparsification", recipe.sparsification.kind) and recipe.sparsification != Sparsification():
        return replace(recipe, sparsification=Sparsification())
    if component in ("mechanism", recipe.mechanism.clip) and recipe.mechanism.clip not in ("none", "global"):
        return replace(recipe, mechanism=replace(recipe.mechanism, clip="global", upload_noise=False))
    if component == "sharpness" and recipe.objective.sharpness:
        return replace(recipe, objective=replace(recipe.objective, sharpness=0.0))
    if component in _SPLITS and getattr(recipe.mechanism, _SPLITS[component]) != "uniform":
        return _set_field(recipe, "mechanism", _SPLITS[component], "uniform")
    present = _components(recipe)
    require(bool(present), f"without names '{asked}', but method '{recipe.name}' has no component to leave out.")
    raise unknown_name(f"without: component of method '{recipe.name}'", asked, present)


def _components(recipe: Recipe) -> list[str]:
    """List the names that `without` takes for this recipe."""
    present = [term.kind for term in recipe.objective.terms]
    if recipe.personalization != Personalization():
        present.append(recipe.personalization.kind)
    if recipe.sparsification != Sparsification():
        present.append(recipe.sparsification.kind)
    if recipe.mechanism.clip not in ("none", "global"):
        present.append(recipe.mechanism.clip)
    if recipe.objective.sharpness:
        present.append("sharpness")
    present += [name for name, field in _SPLITS.items() if getattr(recipe.mechanism, field) != "uniform"]
    papers = [name for name, parts in COMPONENTS.items() if any(part in present for part in parts)]
    return present + papers


def _edit_one(recipe: Recipe, key: str, value: str) -> Recipe:
    if key in _SWAPS:
        require_name(key, value, _SWAPS[key])
        changed: dict[str, Any] = {key: _SWAPS[key][value]}
        if changed[key] == Personalization() and recipe.objective.schedule in APART:
            recipe = without(recipe, [key])  # the schedule goes with the personal coordinates
        return replace(recipe, **changed)
    if key == "objective":
        require_name("objective", value, SCHEDULES)
        return replace(recipe, objective=replace(recipe.objective, schedule=value))
    if key == "term":
        term = find_term(value)
        present = any(one.kind == term.kind for one in recipe.objective.terms)
        require(not present, f"set adds the loss term '{value}', but method '{recipe.name}' has it already.")
        terms = (*recipe.objective.terms, term)
        return replace(recipe, objective=replace(recipe.objective, terms=terms))
    owner, _, name = key.rpartition(".")
    owners = [owner] if owner else [one for one in _owners(recipe) if name in _fields(recipe, one)]
    if not owners or any(one not in _owners(recipe) or name not in _fields(recipe, one) for one in owners):
        known = [f"{one}.{field}" for one in _owners(recipe) for field in _fields(recipe, one)]
        plain = [] if owner else [one.rpartition(".")[2] for one in known]
        allowed = {*known, *plain, *_SWAPS, "objective", "term"}
        raise unknown_name(f"set: option of method '{recipe.name}'", key, allowed)
    require(
        len(owners) == 1,
        f"set names '{key}', which {' and '.join(owners)} all have; write {owners[0]}.{name}.",
    )
    return _set_field(recipe, owners[0], name, value)


def _owners(recipe: Recipe) -> list[str]:
    return [*recipe.parts, *(term.kind for term in recipe.objective.terms)]


def _owner(recipe: Recipe, name: str) -> Any:
    return recipe.parts.get(name) or next(term for term in recipe.objective.terms if term.kind == name)


def _fields(recipe: Recipe, owner: str) -> list[str]:
    return [one.name for one in fields(_owner(recipe, owner)) if one.name != "terms"]


def _set_field(recipe: Recipe, owner: str, name: str, value: str) -> Recipe:
    part = _owner(recipe, owner)
    changed = replace(part, **{name: read_value(f"{owner}.{name}", value, type(getattr(part, name)))})
    if owner in recipe.parts:
        return replace(recipe, **{owner: changed})
    terms = tuple(changed if term.kind == owner else term for term in recipe.objective.terms)
    return replace(recipe, objective=replace(recipe.objective, terms=terms))
