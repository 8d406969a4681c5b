"""The methods by name, each a recipe of five parts; to add one for good, add an entry here."""

from __future__ import annotations

from typing import Any

from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError, require
from fl_core.base.sources import told
from fl_core.recipes.mechanism import Mechanism
from fl_core.recipes.objective import Objective
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.personalization_kinds import AdditiveHead, FisherMask, GrowingMask, OwnModel
from fl_core.recipes.published_claims import ADP_PFL_CLAIMS, PER_RECORD
from fl_core.recipes.recipe import Recipe
from fl_core.recipes.sparsification import FisherTop, RandomMask, Reparameterized, TopK
from fl_core.recipes.terms import (
    AdaptiveNorm,
    BoundedNorm,
    DecoupledDistillation,
    Distillation,
    PersonalConstraint,
    Proximal,
    SharedConstraint,
)

HEAD_WORK = 3.0
"""DP-pFedDSU and CENTAUR: 15 epochs for the head to 5 for the extractor."""
_PARTICIPANTS = "aggregation.divide_by=participants"
_TELEMETRY = "the clients' exact accuracy and loss, where the agent sees them as in the paper"

_BUILT_IN: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="fedavg",
            summary="federated averaging without clipping or noise",
            source="McMahan et al. 2017",
            mechanism=Mechanism(clip="none"),
        ),
        Recipe(
            name="dp-fedavg",
            summary="federated averaging of clipped, noised updates",
            source="McMahan et al. 2018",
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="dp-fedavg-fb",
            summary="dp-fedavg; each client tunes the head of a throw-away copy before it is tested",
            source="baseline of DP-pFedDSU",
            personalization=Personalization(adaptation="head", adaptation_work=HEAD_WORK),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="dp-pfeddsu",
            summary="a local head, then the extractor under a mask of its largest weights, kept near the clip norm",
            source="DP-pFedDSU",
            personalization=Personalization(local="head", adaptation="head", adaptation_work=HEAD_WORK),
            objective=Objective("head-then-body", (AdaptiveNorm(weight=0.2),), head_work=HEAD_WORK),
            sparsification=Reparameterized(sparsity=0.05),
            published=("sparsification.mask_from=step", "mechanism.upload_noise=true", _PARTICIPANTS),
        ),
        Recipe(
            name="feddpa",
            summary="coordinates with high Fisher information stay personal; both kinds are constrained",
            source="FedDPA",
            personalization=FisherMask(threshold=0.1),
            objective=Objective("personal-then-shared", (PersonalConstraint(0.05), SharedConstraint(0.1))),
            published=(_PARTICIPANTS,),
            claims=(PER_RECORD,),
        ),
        Recipe(
            name="feddpa-program",
            summary="feddpa as its authors' program has it: two passes, terms over all coordinates, weights by data",
            source="FedDPA, github.com/xiyuanyang45/DynamicPFL",
            personalization=FisherMask(threshold=0.4, update_from="received"),
            objective=Objective(
                "personal-pass-then-shared", (PersonalConstraint(0.1, "all"), SharedConstraint(0.05, "all"))
            ),
            published=("mechanism.upload_noise=true", "aggregation.weights=data", _PARTICIPANTS),
            claims=(PER_RECORD,),
        ),
        Recipe(
            name="adp-pfl",
            summary="Fisher sparsification, a growing round budget, and less of it for clients at risk",
            source="ADP-PFL",
            sparsification=FisherTop(sparsity=0.2),
            mechanism=Mechanism(budget="increasing", client_budget="risk"),
            published=(
                "mechanism.budget=printed",
                "mechanism.exact_risk=true",
                "mechanism.upload_noise=true",
                "aggregation.weights=data",
                _PARTICIPANTS,
            ),
            claims=ADP_PFL_CLAIMS,
        ),
        Recipe(
            name="acdp-pfsd",
            summary="decoupled distillation from the previous local model; the clip norm is an agent's",
            source="ACDP-pFSD",
            personalization=OwnModel(),
            objective=Objective(terms=(DecoupledDistillation(),)),
            published=(_PARTICIPANTS,),
            published_uncovered=(_TELEMETRY,),
        ),
        Recipe(
            name="fedglp-adp",
            summary="the coordinates that move most become personal; clip weights per layer follow the updates",
            source="FedGLP-ADP",
            personalization=GrowingMask(),
            objective=Objective("personal-then-shared", (PersonalConstraint(0.05), SharedConstraint(0.1))),
            mechanism=Mechanism(clip="layers"),
            published=(
                "personalization.mask_from=uploads",
                "mechanism.trend_from=exact",
                "mechanism.upload_noise=true",
                "aggregation.divide_by=count",
            ),
        ),
        Recipe(
            name="ppsgd",
            summary="each client adds a head of its own to the shared one",
            source="Bietti et al. 2022; baseline of DP-pFedDSU and FedDPA",
            personalization=AdditiveHead(),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="pmtl-ft",
            summary="every client keeps a model, pulled to their noised mean, fine-tuned for testing",
            source="Hu et al. 2021; baseline of DP-pFedDSU",
            personalization=OwnModel(role="start", adaptation="all"),
            objective=Objective(terms=(Proximal(0.1),)),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="centaur",
            summary="a local head first, then the shared extractor under it",
            source="Shen et al. 2023; baseline of DP-pFedDSU",
            personalization=Personalization(local="head", adaptation="head", adaptation_work=HEAD_WORK),
            objective=Objective("head-then-body", head_work=HEAD_WORK),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="blur-lus",
            summary="updates are held within the clip norm, and their smallest coordinates left out",
            source="Cheng et al. 2022; baseline of FedDPA and FedGLP-ADP",
            objective=Objective(terms=(BoundedNorm(0.1),)),
            sparsification=TopK(sparsity=0.5),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="dp-fedsam",
            summary="sharpness-aware local steps",
            source="Shi et al. 2023; baseline of FedDPA",
            objective=Objective(sharpness=0.5),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="dp-lg",
            summary="the lower layers stay on the client, the head is shared",
            source="Liang et al. 2020; baseline of ADP-PFL",
            personalization=Personalization(local="body"),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="fedper",
            summary="the head stays on the client, trained jointly with the shared body",
            source="Arivazhagan et al. 2019",
            personalization=Personalization(local="head"),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="pfedsd",
            summary="distillation from the previous local model, without clipping or noise",
            source="Jin et al. 2022; baseline of ACDP-pFSD",
            personalization=OwnModel(),
            objective=Objective(terms=(Distillation(),)),
            mechanism=Mechanism(clip="none"),
        ),
        Recipe(
            name="pfsd",
            summary="acdp-pfsd without clipping or noise",
            source="ACDP-pFSD",
            personalization=OwnModel(),
            objective=Objective(terms=(DecoupledDistillation(),)),
            mechanism=Mechanism(clip="none"),
        ),
        Recipe(
            name="dp-pfsd",
            summary="acdp-pfsd with a clip norm that nobody adapts",
            source="ACDP-pFSD",
            personalization=OwnModel(),
            objective=Objective(terms=(DecoupledDistillation(),)),
            published=(_PARTICIPANTS,),
        ),
        Recipe(
            name="fedaddp",
            summary="feddpa's masks, and every coordinate clamped around where it started",
            source="baseline of FedGLP-ADP",
            personalization=FisherMask(threshold=0.1),
            objective=Objective("personal-then-shared", clamp_count=-1),
            published=("mechanism.clip=coordinates", _PARTICIPANTS),
        ),
        Recipe(
            name="fed-smp",
            summary="only coordinates that the server draws at random are exchanged and noised",
            source="Hu et al. 2022; baseline of DP-pFedDSU",
            sparsification=RandomMask(sparsity=0.4),
            published=(_PARTICIPANTS,),
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
            objective=Objective("head-only"),
        ),
    )
}


def recipe_of(given: Any, who: str) -> Recipe:
    """Make a method of what a user gives.

    Args:
        given: a `Recipe`, or a function that takes nothing and returns one.
        who: for error messages.

    Raises:
        InputError: it is neither, or its parts do not fit together.
    """
    recipe = given
    if callable(given):
        try:
            recipe = given()
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{who} is called with nothing, but raises {told(error)}.") from error
    require(isinstance(recipe, Recipe), f"{who} is of type {type(recipe).__name__}, but a method is a fl_core.Recipe.")
    for name, part in recipe.parts.items():
        expected = type(getattr(_NEUTRAL, name))
        fits = isinstance(part, expected)
        require(fits, f"{who}: {name} is a {type(part).__name__}, but it must be a {expected.__name__}.")
    try:
        recipe.check()
        recipe.in_mode("as-published").check()
    except InputError as error:
        raise InputError(f"{who}: {error}") from error
    made: Recipe = recipe
    return made


_NEUTRAL = Recipe("", "", "")

METHODS = Catalogue("method", _BUILT_IN, recipe_of)


def register_method(recipe: Recipe) -> str:
    """Enter a method under its recipe's name, for `--method NAME` and `method="NAME"`.

    Returns:
        The name.

    Raises:
        InputError: the name cannot be one or is built in, or the parts do not fit together.
    """
    return METHODS.register(recipe_of(recipe, "the method that was given").name, recipe)


def find_method(name: str) -> Recipe:
    """Look up the recipe of a method.

    Raises:
        InputError: no method has that name, or its file cannot be imported.
    """
    return METHODS.find(name)
