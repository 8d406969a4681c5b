"""Loss terms against formulas in NumPy, their gradients against central differences, and what they do at zero."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional

from fl_core.base.errors import InputError
from fl_core.recipes.terms import (
    TERMS,
    AdaptiveNorm,
    Batch,
    BoundedNorm,
    DecoupledDistillation,
    Distillation,
    PersonalConstraint,
    Proximal,
    SharedConstraint,
    classical_divergence,
    decoupled_divergences,
    find_term,
)

torch.set_num_threads(1)
SIZE, SAMPLES, CLASSES = 9, 6, 5
rng = np.random.default_rng(7)
START, ANCHOR = rng.normal(size=SIZE), rng.normal(size=SIZE)
PERSONAL = np.array([1, 0, 0, 1, 1, 0, 0, 0, 1.0])
SUPPORT = np.array([0, 1, 1, 1, 0, 1, 0, 1, 1.0])
LABELS = np.array([0, 4, 2, 2, 1, 3])
TEACHER = rng.normal(size=(SAMPLES, CLASSES)) * 3
LOGITS = rng.normal(size=(SAMPLES, CLASSES)) * 2


def tensor(value) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)


def batch(parameters, clip=0.7, seen=1.0, support=None, logits=LOGITS) -> Batch:
    context = {
        "start": tensor(START),
        "anchor": tensor(ANCHOR),
        "personal": tensor(PERSONAL),
        "clip_norm": tensor(clip),
        "seen": tensor(seen),
        "teacher_logits": tensor(TEACHER),
    }
    parameters = parameters if isinstance(parameters, torch.Tensor) else tensor(parameters)
    logits = logits if isinstance(logits, torch.Tensor) else tensor(logits)
    return Batch(torch.from_numpy(LABELS), logits, parameters, None if support is None else tensor(support), context)


def norm(vector) -> float:
    return math.sqrt(sum(float(value) ** 2 for value in vector))


FORMULAS = {
    "proximal": (Proximal(0.3), None, lambda w, c: 0.3 * norm(w - ANCHOR) ** 2),
    "bounded-norm": (BoundedNorm(0.3), None, lambda w, c: 0.15 * max(0.0, norm(w - START) ** 2 - c**2)),
    "personal-constraint": (PersonalConstraint(0.3), None, lambda w, c: 0.15 * norm((w - START)[PERSONAL == 1])),
    "shared-constraint": (SharedConstraint(0.3), None, lambda w, c: 0.15 * abs(norm((w - START)[PERSONAL == 0]) - c)),
    "adaptive-norm": (AdaptiveNorm(0.3), None, lambda w, c: 0.15 * abs(norm(w - START) - c)),
    "adaptive-norm-masked": (
        AdaptiveNorm(0.3),
        SUPPORT,
        lambda w, c: 0.15 * abs(norm((w - START)[SUPPORT == 1]) - c),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("clip", [0.2, 50.0], ids=["above-C", "below-C"])
def test_a_norm_term_is_its_formula_and_has_its_gradient(name, clip):
    term, support, formula = FORMULAS[name]
    where = START + rng.normal(size=SIZE)
    leaf = tensor(where).requires_grad_()
    value = term(tensor(1.25), batch(leaf, clip, support=support))
    assert value.item() == pytest.approx(1.25 + formula(where, clip), rel=1e-12)
    value.backward()
    expected = []
    for place in range(SIZE):
        step = np.zeros(SIZE)
        step[place] = 1e-6
        expected.append((formula(where + step, clip) - formula(where - step, clip)) / 2e-6)
    assert leaf.grad.numpy() == pytest.approx(np.array(expected), abs=1e-7)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_norm_term_has_no_gradient_where_nothing_has_moved(name):
    """The first step of every round starts here: d‖x‖/dx has no limit at 0, and must not become NaN."""
    term, support, _ = FORMULAS[name]
    for start, dtype in ((START, torch.float64), (START, torch.float32)):
        leaf = tensor(ANCHOR if name == "proximal" else start).to(dtype).requires_grad_()
        made = batch(leaf, support=support)
        made = made._replace(context={key: value.to(dtype) for key, value in made.context.items()})
        made = made if support is None else made._replace(support=made.support.to(dtype))
        value = term(torch.zeros((), dtype=dtype), made)
        value.backward()
        assert value.item() == pytest.approx(0.15 * (0.7 if "shared" in name or "adaptive" in name else 0), abs=1e-7)
        assert torch.equal(leaf.grad, torch.zeros(SIZE, dtype=dtype))


def test_without_personal_coordinates_the_shared_constraint_holds_all_of_them():
    made = batch(START + 1.0)
    del made.context["personal"]
    assert float(SharedConstraint(0.3)(tensor(0.0), made)) == pytest.approx(0.15 * abs(3.0 - 0.7))


def softmax(row) -> np.ndarray:
    exponents = np.exp(row - row.max())
    return exponents / exponents.sum()


def plain_divergences(teacher, student, labels) -> tuple[float, float, float]:
    """KL, TCKD and NCKD, means over the samples, from probabilities (ACDP-pFSD eq. 6 and 7)."""
    whole, target, others = [], [], []
    for wanted, own, label in zip(teacher, student, labels, strict=True):
        p, q = softmax(wanted), softmax(own)
        rest = [index for index in range(len(p)) if index != label]
        whole.append(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
        p_rest, q_rest = p[rest].sum(), q[rest].sum()
        target.append(p[label] * math.log(p[label] / q[label]) + p_rest * math.log(p_rest / q_rest))
        others.append(
            sum(a / p_rest * math.log((a / p_rest) / (b / q_rest)) for a, b in zip(p[rest], q[rest], strict=True))
        )
    return float(np.mean(whole)), float(np.mean(target)), float(np.mean(others))


def test_divergences_equal_plain_sums_over_classes():
    whole, target, others = plain_divergences(TEACHER, LOGITS, LABELS)
    assert float(classical_divergence(tensor(TEACHER), tensor(LOGITS))) == pytest.approx(whole, rel=1e-10)
    found = decoupled_divergences(tensor(TEACHER), tensor(LOGITS), torch.from_numpy(LABELS))
    assert [float(value) for value in found] == pytest.approx([target, others], rel=1e-10)


LOGIT = some.floats(-40, 40, width=32)
ROWS = some.lists(some.tuples(*[LOGIT] * 4), min_size=1, max_size=1)


@settings(max_examples=150, deadline=None)
@given(teacher=ROWS, student=ROWS, label=some.integers(0, 3))
def test_a_divergence_splits_into_target_and_other_classes(teacher, student, label):
    """KL = TCKD + (1 - p_t) NCKD, and KL is PyTorch's kl_div; both parts are at least 0 and finite."""
    wanted, own, labels = tensor(teacher), tensor(student), torch.tensor([label])
    whole = functional.kl_div(
        functional.log_softmax(own, -1), functional.log_softmax(wanted, -1), reduction="batchmean", log_target=True
    )
    target, others = decoupled_divergences(wanted, own, labels)
    hidden = wanted.clone()
    hidden[0, label] = -torch.inf
    rest = float(torch.exp(hidden.logsumexp(-1) - wanted.logsumexp(-1)))
    assert float(target + rest * others) == pytest.approx(float(whole), rel=1e-9, abs=1e-9)
    assert float(classical_divergence(wanted, own)) == pytest.approx(float(whole), rel=1e-9, abs=1e-9)
    assert float(target) >= -1e-12
    assert float(others) >= -1e-12


@settings(max_examples=60, deadline=None)
@given(teacher=ROWS, student=ROWS, label=some.integers(0, 3))
def test_gradients_of_distillation_are_finite_in_single_precision(teacher, student, label):
    logits = torch.tensor(student).requires_grad_()
    target, others = decoupled_divergences(torch.tensor(teacher), logits, torch.tensor([label]))
    (target + others + classical_divergence(torch.tensor(teacher), logits)).backward()
    assert torch.isfinite(logits.grad).all()


def losses_of(term, logits, seen=1.0) -> tuple[float, float]:
    """Cross-entropy, and what the term makes of it."""
    loss = functional.cross_entropy(logits, torch.from_numpy(LABELS))
    return loss, term(loss, batch(START, seen=seen, logits=logits))


def test_classical_distillation_weighs_the_softened_divergence_by_the_squared_temperature():
    loss, value = losses_of(Distillation(weight=0.7, temperature=4.0), tensor(LOGITS))
    whole, _, _ = plain_divergences(TEACHER / 4, LOGITS / 4, LABELS)
    assert float(value) == pytest.approx(float(loss) + 0.7 * 16 * whole, rel=1e-10)


def test_decoupled_distillation_mixes_cross_entropy_with_both_parts():
    """ACDP-pFSD eq. 8-9: α CE + (1 - α) T² (TCKD + 𝒩 NCKD)."""
    term = DecoupledDistillation(weight=0.4, temperature=2.0, non_target=0.25)
    loss, value = losses_of(term, tensor(LOGITS))
    _, target, others = plain_divergences(TEACHER / 2, LOGITS / 2, LABELS)
    assert float(value) == pytest.approx(0.6 * float(loss) + 0.4 * 4 * (target + 0.25 * others), rel=1e-10)


@pytest.mark.parametrize("term", [Distillation(), DecoupledDistillation()], ids=lambda term: term.kind)
def test_distillation_waits_for_a_teacher(term):
    loss, value = losses_of(term, tensor(LOGITS), seen=0.0)
    assert float(value) == float(loss)


@pytest.mark.parametrize("term", [Distillation(), DecoupledDistillation()], ids=lambda term: term.kind)
def test_a_distillation_gradient_is_that_of_its_value_and_none_reaches_the_teacher(term):
    leaf, teacher = tensor(LOGITS).requires_grad_(), tensor(TEACHER).requires_grad_()

    def value_at(logits):
        made = batch(START, logits=logits)
        made.context["teacher_logits"] = teacher.detach()
        return term(functional.cross_entropy(logits, torch.from_numpy(LABELS)), made)

    value_at(leaf).backward()
    for row, column in ((0, 0), (1, 4), (2, 0), (5, 3)):
        step = torch.zeros_like(leaf)
        step[row, column] = 1e-6
        slope = float(value_at(leaf.detach() + step) - value_at(leaf.detach() - step)) / 2e-6
        assert float(leaf.grad[row, column]) == pytest.approx(slope, abs=1e-7)
    assert teacher.grad is None


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_found_by_name_with_weights_in_range(name):
    term = find_term(name)
    assert term.kind == name
    for weight in (-0.1, math.inf, math.nan):
        with pytest.raises(InputError, match=rf"^{name}\.weight is {weight}, but it must be a number in"):
            type(term)(weight=weight)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: DecoupledDistillation(weight=1.1),
            r"decoupled-distillation\.weight is 1.1, but it must be a number in \[0, 1",
        ),
        (lambda: DecoupledDistillation(temperature=0.0), r"decoupled-distillation\.temperature is 0.0"),
        (lambda: DecoupledDistillation(non_target=-1.0), r"decoupled-distillation\.non_target is -1.0"),
        (lambda: Distillation(temperature=-1.0), r"distillation\.temperature is -1.0"),
        (lambda: find_term("proximall"), "loss term 'proximall' is unknown; did you mean proximal"),
    ],
)
def test_settings_of_terms_out_of_range_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
