"""Methods edited by name: what each form does, what is refused and how, and that any combination runs or is refused."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from fl_core.base.errors import InputError
from fl_core.recipes.catalog import METHODS, find_method
from fl_core.recipes.mechanism import MECHANISMS
from fl_core.recipes.objective import SCHEDULES
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.personalization_kinds import PERSONALIZATIONS, OwnModel
from fl_core.recipes.recipe import COMPONENTS, Recipe, _components, edit, without
from fl_core.recipes.sparsification import SPARSIFICATIONS, RandomMask, Sparsification
from fl_core.recipes.terms import TERMS, Distillation, PersonalConstraint, SharedConstraint
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.plain import config, plan

torch.set_num_threads(1)


def edited(method: str, *changes: str) -> Recipe:
    return edit(find_method(method), changes)


# ---------------------------------------------------------------- edits


def test_a_part_is_swapped_by_name_and_the_rest_stays():
    for name, part in SPARSIFICATIONS.items():
        recipe = edited("dp-fedavg", f"sparsification={name}")
        assert recipe == replace(find_method("dp-fedavg"), sparsification=part)
    for name, part in MECHANISMS.items():
        assert edited("dp-fedavg", f"mechanism={name}") == replace(find_method("dp-fedavg"), mechanism=part)
    for name, part in PERSONALIZATIONS.items():
        assert edited("dp-fedavg", f"personalization={name}").personalization == part
    for name in SCHEDULES:
        recipe = find_method("dp-fedavg")
        assert edited("dp-fedavg", f"objective={name}") == replace(
            recipe, objective=replace(recipe.objective, schedule=name)
        )


def test_terms_are_added_and_their_settings_set():
    recipe = edited(
        "acdp-pfsd", "term=proximal", "proximal.weight=0.5", "decoupled-distillation.temperature=4", "non_target=1"
    )
    assert [term.kind for term in recipe.objective.terms] == ["decoupled-distillation", "proximal"]
    assert recipe.objective.terms[1].weight == 0.5
    assert recipe.objective.terms[0].temperature == 4.0
    assert recipe.objective.terms[0].non_target == 1.0
    assert recipe.objective.terms[0].weight == 0.5
    assert edited("acdp-pfsd") == find_method("acdp-pfsd")


def test_fields_are_set_with_their_owner_or_by_a_name_of_their_own():
    for key in ("personalization.threshold", "threshold"):
        assert edited("feddpa", f"{key}=0.25").personalization.threshold == 0.25
    assert edited("dp-fedavg", "mechanism.clip=layers").mechanism.clip == "layers"
    assert edited("dp-fedavg", " sharpness = 0.1 ").objective.sharpness == 0.1
    assert edited("dp-fedavg", "log_odds_step=1").mechanism.log_odds_step == 1.0
    assert edited("dp-pfeddsu", "sparsification.layers=2").sparsification.layers == 2
    for text, value in (("true", True), ("Yes", True), ("on", True), ("false", False), ("no", False), ("OFF", False)):
        assert edited("dp-fedavg", f"upload_noise={text}").mechanism.upload_noise is value


def test_later_edits_see_earlier_ones():
    recipe = edited("dp-fedavg", "sparsification=random", "sparsity=0.2", "personalization=own-model", "role=start")
    assert recipe.sparsification == RandomMask(sparsity=0.2)
    assert recipe.personalization == OwnModel(role="start")


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("dp-fedavg", "sparsity", "set is 'sparsity', but it must read KEY=VALUE"),
        ("dp-fedavg", "sparsity=0.2", "option of method 'dp-fedavg' 'sparsity' is unknown"),
        ("blur-lus", "sparsty=0.2", "'sparsty' is unknown; did you mean sparsity"),
        ("dp-fedavg", "server.rate=2", "'server.rate' is unknown"),
        (
            "feddpa",
            "weight=0.2",
            "set names 'weight', which personal-constraint and shared-constraint all have; write personal-",
        ),
        ("feddpa", "objective.terms=x", "'objective.terms' is unknown"),
        ("feddpa", "threshold=high", "personalization.threshold is 'high', but it must be a number"),
        ("feddpa", "threshold=1.5", r"personalization.threshold is 1.5, but it must be a number in \[0, 1\]"),
        ("feddpa", "threshold=nan", "personalization.threshold is 'nan', but it must be a number"),
        ("dp-pfeddsu", "layers=1.5", "sparsification.layers is '1.5', but it must be a whole number"),
        ("dp-fedavg", "upload_noise=maybe", "mechanism.upload_noise is 'maybe', but it must be true or false"),
        ("dp-fedavg", "sparsification=topk", "sparsification 'topk' is unknown; did you mean top-k"),
        ("dp-fedavg", "personalization=head", "personalization 'head' is unknown"),
        ("dp-fedavg", "mechanism=layer", "mechanism 'layer' is unknown; did you mean layers"),
        ("dp-fedavg", "objective=jointly", "objective 'jointly' is unknown; did you mean joint"),
        ("dp-fedavg", "term=prox", "loss term 'prox' is unknown; did you mean proximal"),
        ("pmtl-ft", "term=proximal", "set adds the loss term 'proximal', but method 'pmtl-ft' has it already"),
        ("dp-fedavg", "aggregation=mean", "'aggregation' is unknown"),
    ],
)
def test_edits_that_do_not_fit_are_refused_in_a_sentence(method, change, words):
    with pytest.raises(InputError, match=words):
        edited(method, change)
    with pytest.raises(InputError, match=words):
        config(method, set=change)


# ---------------------------------------------------------------- ablations


def test_without_takes_parts_terms_and_the_papers_names_for_them():
    feddpa = find_method("feddpa")
    assert without(feddpa, ["adaptive-constraint"]).objective.terms == ()
    assert without(feddpa, ["personal-constraint"]).objective.terms == (SharedConstraint(0.1),)
    assert without(feddpa, ["shared-constraint"]).objective.terms == (PersonalConstraint(0.05),)
    for name in ("fisher-personalization", "fisher-mask", "personalization"):
        recipe = without(feddpa, [name])
        assert recipe.personalization == Personalization(tests="trained")  # tested as before
        assert recipe.objective.schedule == "joint"
        assert recipe.objective.terms == (SharedConstraint(0.1),)
    assert without(find_method("fedglp-adp"), ["layer-wise-personalization"]).personalization.kind == "fixed-part"
    for name in ("adaptive-clipping", "layers", "mechanism"):
        assert without(find_method("fedglp-adp"), [name]).mechanism.clip == "global"
    for name in ("reparameterization", "reparameterized", "sparsification"):
        assert without(find_method("dp-pfeddsu"), [name]).sparsification == Sparsification()
    assert without(find_method("dp-pfeddsu"), ["dynamic-adaptive-norm"]).objective.terms == ()
    assert without(find_method("dp-fedsam"), ["sharpness"]).objective.sharpness == 0
    assert without(find_method("pfedsd"), ["distillation"]).objective.terms == ()
    everything = without(find_method("fedglp-adp"), ["adaptive-constraint", "adaptive-clipping", "personalization"])
    assert everything.objective == find_method("dp-fedavg").objective


@pytest.mark.parametrize(
    ("method", "name", "words"),
    [
        (
            "dp-fedavg",
            "adaptive-constraint",
            "without names 'adaptive-constraint', but method 'dp-fedavg' has no component",
        ),
        ("dp-fedavg", "mechanism", "'mechanism', but method 'dp-fedavg' has no component to leave out"),
        ("dp-fedavg", "personalization", "'personalization', but method 'dp-fedavg' has no component"),
        ("dp-fedavg", "sparsification", "'sparsification', but method 'dp-fedavg' has no component"),
        ("dp-fedavg", "sharpness", "'sharpness', but method 'dp-fedavg' has no component"),
        ("feddpa", "mechanism", "component of method 'feddpa' 'mechanism' is unknown; known are"),
        ("fedper", "sharpness", "component of method 'fedper' 'sharpness' is unknown; known are fixed-part"),
        ("dp-pfeddsu", "reparametrization", "'reparametrization' is unknown; did you mean reparameterization"),
        ("feddpa", "top-k", "'top-k' is unknown; known are .*fisher-mask"),
        ("feddpa", "distillation", "'distillation' is unknown"),
        ("fedavg", "global", "'global', but method 'fedavg' has no component to leave out"),
    ],
)
def test_a_component_that_the_method_lacks_is_refused(method, name, words):
    with pytest.raises(InputError, match=words):
        without(find_method(method), [name])
    with pytest.raises(InputError, match=words):
        config(method, without=name)


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_whatever_is_listed_as_a_component_can_be_left_out(method, guarantee):
    recipe = find_method(method).in_mode(guarantee)
    listed = _components(recipe)
    for name in listed:
        left = without(recipe, [name])
        left.check()
        assert left != recipe
        assert name not in _components(left)


def test_without_a_clients_own_model_the_terms_that_need_a_teacher_go_with_it():
    recipe = without(find_method("dp-pfsd"), ["own-model"])
    assert recipe.personalization == Personalization(tests="trained")
    assert recipe.objective == find_method("dp-fedavg").objective
    config("acdp-pfsd", without="own-model")


def test_adp_pfls_ablations_have_names():
    recipe = find_method("adp-pfl")
    uniform = without(recipe, ["client-budget"])
    assert (uniform.mechanism.client_budget, uniform.mechanism.budget) == ("uniform", "increasing")
    assert uniform.releases == ("update",)
    fixed = without(recipe, ["round-budget"])
    assert (fixed.mechanism.client_budget, fixed.mechanism.budget) == ("risk", "uniform")
    both = without(recipe, ["client-budget", "round-budget"])
    assert both.mechanism == find_method("dp-fedavg").mechanism
    with pytest.raises(InputError, match="'round-budget' is unknown"):
        without(fixed, ["round-budget"])


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
def test_without_a_strength_no_risk_is_measured_released_or_paid_for(guarantee):
    sigmas = {}
    for edits in ({"set": "client_budget_strength=0"}, {"without": "client-budget"}, {}):
        federation = Federation(config("adp-pfl", guarantee=guarantee, **edits))
        federation.run_round(plan())
        names = [one.name for one in federation.charging.budgets[0].charges[0].releases]
        sigmas[str(edits)] = federation.charging.budgets[0].charges[0].releases[0].noise_multiplier
        idle = bool(edits)
        assert ("risk" in names) is (not idle and guarantee == "sound")
        assert ("risk" in federation.state.clients.names) is not idle
        assert any("risk" in phrase for phrase in federation.config.uncovered) is (
            not idle and guarantee == "as-published"
        )
    none, left_out, usual = sigmas.values()
    assert none == left_out
    assert usual == pytest.approx(none * (0.95**-0.5 if guarantee == "sound" else 1))


def test_every_paper_name_is_a_component_of_some_method():
    for name in COMPONENTS:
        assert any(without_or_none(recipe, name) for recipe in METHODS.values()), name


def without_or_none(recipe: Recipe, name: str) -> Recipe | None:
    try:
        return without(recipe, [name])
    except InputError:
        return None


def test_components_are_taken_out_before_edits_are_made():
    recipe = config("dp-pfeddsu", without="reparameterization", set="sparsification=random, sparsity=0.3").recipe()
    assert recipe.sparsification == RandomMask(sparsity=0.3)
    assert (
        config("dp-fedavg", set="sparsification=random, personalization=none").recipe().personalization
        == Personalization()
    )


@pytest.mark.parametrize("field", ["set", "without"])
def test_an_empty_edit_is_refused(field):
    with pytest.raises(InputError, match=f"{field} is ',,,', but one of its comma-separated entries is empty"):
        config("feddpa", **{field: ",,,"})


# ---------------------------------------------------------------- what fits together


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        (
            "dp-fedavg",
            "term=distillation",
            "loss term 'distillation' needs a teacher, but personalization 'fixed-part' has",
        ),
        ("pmtl-ft", "term=decoupled-distillation", "needs a teacher, but personalization 'own-model' has none"),
        ("dp-fedavg", "term=personal-constraint", "needs personal coordinates, but personalization 'fixed-part'"),
        ("dp-fedavg", "objective=personal-then-shared", "'fixed-part' has no personal coordinates"),
        ("feddpa", "personalization=local-head", "needs personal coordinates"),
        ("local-only", "sparsification=top-k", "sparsification is 'top-k', but method 'local-only' uploads nothing"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(method, changes, words):
    with pytest.raises(InputError, match=words):
        config(method, set=changes)


UNSOUND = [
    ("dp-fedavg", "aggregation.weights=data", {}, "number of samples"),
    ("dp-fedavg", "aggregation.divide_by=participants", {"sampling_rate": 0.5}, "number of participants"),
    ("fedglp-adp", "aggregation.divide_by=count", {"sampling_rate": 0.5}, "number of participants"),
    ("fedglp-adp", "personalization.mask_from=uploads", {}, "masks built from each client's own upload"),
    ("fedglp-adp", "personalization.mask_from=uploads", {"placement": "distributed"}, "masks built from"),
    ("fedglp-adp", "mechanism.trend_from=exact", {}, "exact layer norms"),
    ("dp-pfeddsu", "sparsification.mask_from=step", {}, "which weights each client kept"),
    ("dp-fedavg", "mechanism=coordinates", {}, "updates longer than C"),
    ("adp-pfl", "mechanism.exact_risk=true", {}, "exact Jacobian risk"),
]


@pytest.mark.parametrize(("method", "change", "settings", "words"), UNSOUND)
def test_sound_mode_refuses_edits_that_give_something_away(method, change, settings, words):
    with pytest.raises(InputError, match=f"guarantee is 'sound', but the method as edited would give away .*{words}"):
        config(method, set=change, **settings)
    config(method, set=change, guarantee="as-published", **settings)


@pytest.mark.parametrize(
    ("method", "change", "settings"),
    [
        ("dp-fedavg", "aggregation.divide_by=participants", {}),  # all take part: no secret
        ("dp-fedavg", "aggregation.divide_by=participants", {"sampling": "fixed", "sampling_rate": 0.5}),
        ("fedglp-adp", "personalization.mask_from=uploads", {"placement": "local"}),
        ("fedavg", "aggregation.weights=data", {}),  # promises nothing
        ("local-only", "mechanism=coordinates", {}),  # gives nothing
    ],
)
def test_sound_mode_allows_edits_that_give_nothing_away(method, change, settings):
    assert config(method, set=change, **settings).guarantee == "sound"


def test_a_method_has_the_knobs_of_its_parts_and_no_others():
    everywhere = {"clip_norm", "budget_pace", "telemetry_share", "server_learning_rate", "average_weight"}
    own = {
        "feddpa": {"personal_threshold"},
        "feddpa-program": {"personal_threshold"},
        "fedaddp": {"personal_threshold"},
        "fedglp-adp": {"personal_limit", "personal_rate", "layer_weights"},
        "adp-pfl": {"client_budget_strength", "sparsity"},
        "blur-lus": {"sparsity"},
        "fed-smp": {"sparsity"},
        "dp-pfeddsu": {"sparsity"},
    }
    for name, recipe in METHODS.items():
        found = {knob.name for knob in recipe.knobs}
        if recipe.private:
            assert found == everywhere | own.get(name, set()), name
        else:
            assert found == ({"server_learning_rate", "average_weight"} if recipe.exchanges else set()), name
    assert "sparsity" not in {knob.name for knob in find_method("dp-pfeddsu").in_mode("as-published").knobs}


@pytest.mark.parametrize("method", ["dp-fedavg", "fedavg", "local-only", "feddpa"])
@pytest.mark.parametrize("knob", ["sparsity", "layer_weights", "threshold"])
def test_a_plan_with_a_knob_that_the_method_lacks_is_refused(method, knob):
    federation = Federation(config(method, clients=4))
    with pytest.raises(InputError, match=f"knob '{knob}' is unknown"):
        federation.run_round(replace(plan(), settings={knob: np.array([0.5])}))
    assert federation.rounds.tolist() == [0]


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("blur-lus", {"sparsity": np.array([0.0])}, "sparsity is 0.0, but it must be in"),
        ("blur-lus", {"sparsity": np.array([1.1])}, "sparsity is 1.1, but it must be in"),
        (
            "blur-lus",
            {"sparsity": np.array([0.5, 0.5])},
            r"sparsity has shape \(2,\), but it needs one entry for each of 1",
        ),
        ("feddpa", {"personal_threshold": np.array([math.nan])}, "personal_threshold is nan"),
        ("fedglp-adp", {"layer_weights": np.array([0.5])}, "each of 1 runs and 2 layers"),
        ("fedglp-adp", {"layer_weights": np.array([[0.5, 0.0]])}, "layer_weights is 0.0"),
        ("dp-fedavg", {"budget_pace": np.array([200.0])}, "budget_pace is 200.0"),
        ("dp-fedavg", {"telemetry_share": [0.1]}, r"telemetry_share is \[0.1\], but it must be an array"),
    ],
)
def test_knob_values_out_of_range_are_refused(method, values, words):
    federation = Federation(config(method, clients=4))
    with pytest.raises(InputError, match=words):
        federation.run_round(replace(plan(), settings=values))
    assert federation.rounds.tolist() == [0]


# ---------------------------------------------------------------- any combination


CHOICES = some.fixed_dictionaries(
    {
        "personalization": some.sampled_from(sorted(PERSONALIZATIONS)),
        "sparsification": some.sampled_from(sorted(SPARSIFICATIONS)),
        "mechanism": some.sampled_from(sorted(MECHANISMS)),
        "objective": some.sampled_from(sorted(SCHEDULES)),
        "term": some.sampled_from(["", *sorted(TERMS)]),
        "extra": some.sampled_from(
            [
                "",
                "objective.sharpness=0.1",
                "objective.clamp_count=4",
                "mechanism.upload_noise=true",
                "mechanism.client_budget=risk",
                "mechanism.trend_from=exact",
                "aggregation.divide_by=count",
                "aggregation.weights=data",
                "sparsification.mask_from=step",
                "personalization.tests=trained",
            ]
        ),
        "guarantee": some.sampled_from(["sound", "as-published"]),
        "placement": some.sampled_from(["central", "distributed", "local"]),
    }
)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(CHOICES)
def test_any_combination_of_parts_is_refused_in_a_sentence_or_runs_two_rounds(chosen):
    changes = [f"{key}={chosen[key]}" for key in ("personalization", "sparsification", "mechanism", "objective")]
    changes += [f"term={chosen['term']}"] if chosen["term"] else []
    changes += [chosen["extra"]] if chosen["extra"] else []
    federation = runnable("dp-fedavg", ",".join(changes), chosen)
    if federation is None:
        return
    for _ in range(2):
        report = federation.run_round(RoundPlan.constant(1, 0.5), evaluate=True)
    assert report.ran.all()
    assert torch.isfinite(federation.server).all()
    assert all(np.isfinite(value).all() for name, value in report.figures.items() if not name.startswith("epsilon"))
    assert report.figures["rejected_updates"] == 0


def runnable(method: str, changes: str, chosen) -> Federation | None:
    """A federation of four clients, or None where the configuration is refused."""
    private = "mechanism=none" not in changes and "local-model" not in changes
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = FederationConfig(
                method=method,
                set=changes,
                guarantee=chosen["guarantee"],
                placement=chosen["placement"],
                epsilon=50.0 if private else math.inf,
                clients=4,
                rounds=3,
                sampling_rate=0.8,
                partition="iid",
                test_fraction=0.5,
                local_steps=2,
                batch_size=4,
                learning_rate=0.05,
                evaluation_samples=20,
                executor="sequential",
            )
    except InputError:
        return None
    return Federation(made)


def test_terms_that_need_a_teacher_have_one_everywhere_it_is_kept():
    for role in ("teacher", "start"):
        made = replace(
            find_method("pfedsd"), personalization=OwnModel(role=role), objective=find_method("pfedsd").objective
        )
        if role == "teacher":
            made.check()
        else:
            with pytest.raises(InputError):
                made.check()
    assert Distillation().needs == ("teacher", "seen")
