"""Sparsification, layer weights, budget schedules, aggregation and phases, each by hand or by a plain loop."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from fl_core.base.errors import InputError
from fl_core.models.build import build_model
from fl_core.recipes.aggregation import Aggregation
from fl_core.recipes.clipping import layer_norms, layer_weights, moved_log_odds
from fl_core.recipes.mechanism import Mechanism
from fl_core.recipes.objective import Objective
from fl_core.recipes.parameterization import Parameterization
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.personalization_kinds import FisherMask, GrowingMask
from fl_core.recipes.sparsification import (
    FisherTop,
    RandomMask,
    Reparameterized,
    Sparsification,
    TopK,
    TopWeights,
    Trained,
)
from fl_core.recipes.terms import AdaptiveNorm, PersonalConstraint, Proximal, SharedConstraint

torch.set_num_threads(1)
MLP = build_model("mlp", (1, 8, 8), 10)
CNN = build_model("cnn2", (1, 8, 8), 10)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def largest_of(scores, count: int) -> np.ndarray:
    mask = np.zeros(len(scores))
    mask[np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")[:count]] = 1
    return mask


# ---------------------------------------------------------------- sparsification


def trained(fisher=None, sparsity=(0.1, 0.5), context=None) -> Trained:
    update, parameters, draws = draw(2, MLP.size, seed=1), draw(2, MLP.size, seed=2), draw(2, MLP.size, seed=6)
    fisher = fisher or (lambda models, samples: models)
    return Trained(MLP, update, parameters, context or {}, torch.tensor(sparsity), fisher, lambda: draws)


def test_top_k_keeps_the_largest_changes_and_top_weights_the_largest_weights():
    work = trained()
    for part, scores in ((TopK(), work.update), (TopWeights(), work.parameters)):
        kept = part.kept(work)
        for row, share in enumerate((0.1, 0.5)):
            expected = largest_of(scores[row].abs(), round(share * MLP.size))
            assert kept[row].tolist() == expected.tolist()


def test_fisher_information_is_compared_globally_after_it_is_stretched_per_tensor():
    """ADP-PFL eq. 14-16: min-max within each tensor, then one quantile over all of them, at the trained model."""
    information = draw(2, MLP.size, seed=3).abs()
    information[:, MLP.tensors[0].slice] *= 1e-6  # a quiet tensor has its say all the same
    asked = []

    def fisher(models, samples):
        asked.append((models, samples))
        return information

    work = trained(fisher)
    kept = FisherTop(samples=40).kept(work)
    assert torch.equal(asked[0][0], work.parameters)
    assert asked[0][1] == 40
    for row, share in enumerate((0.1, 0.5)):
        stretched = np.concatenate(
            [
                (piece - piece.min()) / (piece.max() - piece.min())
                for piece in (information[row, span.slice].numpy() for span in MLP.tensors)
            ]
        )
        assert kept[row].tolist() == largest_of(stretched, round(share * MLP.size)).tolist()
        assert kept[row, MLP.tensors[0].slice].sum() > 0.02 * share * 2048


@pytest.mark.parametrize("part", [TopK(), TopWeights(), FisherTop()], ids=lambda part: part.kind)
def test_keeping_all_is_keeping_everything(part):
    assert torch.equal(part.kept(trained(sparsity=(1.0, 1.0))), torch.ones(2, MLP.size))
    assert not part.is_public
    assert not part.noises_kept_only


def test_a_random_mask_is_the_largest_of_the_servers_draws_whatever_clients_did():
    draws = torch.rand(2, MLP.size, generator=torch.Generator().manual_seed(5))
    part = RandomMask()
    mask = part.public_mask(MLP, draw(2, MLP.size), torch.tensor([0.4, 0.03]), draws)
    for row, share in enumerate((0.4, 0.03)):
        assert mask[row].tolist() == largest_of(draws[row], round(share * MLP.size)).tolist()
    assert part.kept(trained(context={"support": mask})) is mask
    assert part.support(MLP, draws[0], {"support": mask[0]}) is None  # clients train on the whole model
    assert part.is_public
    assert part.draws_mask


def test_a_random_mask_of_a_clients_own_is_the_largest_of_its_draws_and_no_public_one():
    part, work = RandomMask(drawn_by="client"), trained()
    kept = part.kept(work)
    for row, share in enumerate((0.1, 0.5)):
        assert kept[row].tolist() == largest_of(work.draws()[row], round(share * MLP.size)).tolist()
    assert (part.is_public, part.noises_kept_only, part.draws_mask) == (False, False, False)
    assert part.public_mask(MLP, draw(2, MLP.size), torch.tensor([0.4, 0.03]), None) is None
    with pytest.raises(InputError, match=r"sparsification\.drawn_by 'clients' is unknown; did you mean client"):
        RandomMask(drawn_by="clients")


def plain_support(model, weights: np.ndarray, layers: list[str], share: float) -> np.ndarray:
    """Top-S by |weight| within each of these layers, ones elsewhere (DP-pFedDSU eq. 6-8)."""
    mask = np.ones(model.size)
    for span in model.layers:
        if span.name in layers:
            mask[span.slice] = largest_of(np.abs(weights[span.slice]), max(1, round(share * (span.stop - span.start))))
    return mask


@pytest.mark.parametrize(
    ("model", "count", "layers"),
    [(CNN, 1, ["conv2"]), (CNN, 2, ["conv1", "conv2"]), (CNN, 0, ["conv1", "conv2"]), (MLP, 1, ["fc1"])],
    ids=["last", "both", "as-many-as-there-are", "no-convolution"],
)
def test_the_extractors_last_convolutions_are_sparse_and_nothing_else(model, count, layers):
    weights = draw(2, model.size, seed=4)
    part = Reparameterized(sparsity=0.05, layers=count)
    mask = part.public_mask(model, weights, torch.tensor([0.05, 0.3]), None)
    for row, share in enumerate((0.05, 0.3)):
        assert mask[row].tolist() == plain_support(model, weights[row].numpy(), layers, share).tolist()
    by_step = Reparameterized(sparsity=0.05, layers=count, mask_from="step")
    assert torch.equal(by_step.support(model, weights[0], {}), mask[0])
    assert by_step.public_mask(model, weights, torch.tensor([0.05, 0.05]), None) is None
    assert by_step.knobs == ()  # its size is traced


def test_a_broadcast_mask_stays_for_the_round_and_a_step_mask_follows_the_weights():
    server, own = draw(1, MLP.size, seed=6), draw(MLP.size, seed=7)
    broadcast, step = Reparameterized(layers=1), Reparameterized(layers=1, mask_from="step")
    mask = broadcast.public_mask(MLP, server, torch.tensor([0.05]), None)
    assert torch.equal(broadcast.support(MLP, own, {"support": mask[0]}), mask[0])
    assert step.support(MLP, own, {}).tolist() == plain_support(MLP, own.numpy(), ["fc1"], 0.05).tolist()
    assert not torch.equal(step.support(MLP, own, {}), mask[0])
    assert (broadcast.is_public, step.is_public) == (True, False)
    assert step.uncovered
    assert not broadcast.uncovered
    after = trained()
    kept = step.kept(Trained(MLP, after.update, after.parameters, {}, torch.ones(2), after.fisher, after.draws))
    assert kept[1].tolist() == plain_support(MLP, after.parameters[1].numpy(), ["fc1"], 0.05).tolist()


@pytest.mark.parametrize("straight", [False, True], ids=["product", "straight-through"])
def test_masked_weights_get_no_gradient_unless_it_passes_straight_through(straight):
    """Both run forward on θ⊙M; the product's gradient is masked, the straight-through one is that at θ⊙M."""
    images, labels = torch.rand(5, 1, 8, 8), torch.tensor([1, 0, 3, 9, 3])
    weights = draw(MLP.size, seed=8)
    mask = torch.from_numpy(plain_support(MLP, weights.numpy(), ["fc1"], 0.05)).float()
    view = Parameterization(Personalization(), Reparameterized(layers=1, straight_through=straight))
    leaf = weights.clone().requires_grad_()
    parameters, support = view(MLP, leaf, {"support": mask})
    assert torch.equal(support, mask)
    loss = torch.nn.functional.cross_entropy(MLP.logits(parameters, images), labels)
    loss.backward()
    inner = (weights * mask).requires_grad_()
    expected = torch.nn.functional.cross_entropy(MLP.logits(inner, images), labels)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(leaf.grad, inner.grad if straight else inner.grad * mask)
    assert bool(leaf.grad[mask == 0].any()) == straight


def test_without_sparsification_everything_is_kept():
    part = Sparsification()
    assert part.kept(trained()) is None
    assert part.public_mask(MLP, draw(1, MLP.size), torch.ones(1), None) is None


# ---------------------------------------------------------------- layer weights (FedGLP-ADP, Algorithm 1)


def sigmoid(value: float) -> float:
    return math.exp(value) / (1 + math.exp(value))


def test_three_layers_move_in_log_odds_and_are_scaled_to_one():
    shares = [0.1, 0.3, 0.6]
    odds = torch.tensor([[math.log(share / (1 - share)) for share in shares]])
    assert layer_weights(odds)[0].tolist() == pytest.approx(shares, rel=1e-6)  # sigmoids of these already sum to 1
    first = moved_log_odds(odds, torch.tensor([[True, False, True]]), 0.8)
    raw = [sigmoid(odds[0, 0].item() + 0.8), sigmoid(odds[0, 1].item() - 0.8), sigmoid(odds[0, 2].item() + 0.8)]
    assert layer_weights(first)[0].tolist() == pytest.approx([value / sum(raw) for value in raw], rel=1e-6)
    second = moved_log_odds(first, torch.tensor([[False, False, True]]), 0.8)  # goes on from h, not from the weights
    raw = [sigmoid(odds[0, 0].item()), sigmoid(odds[0, 1].item() - 1.6), sigmoid(odds[0, 2].item() + 1.6)]
    assert layer_weights(second)[0].tolist() == pytest.approx([value / sum(raw) for value in raw], rel=1e-6)


def test_a_layers_weight_rises_only_where_its_norm_grew():
    clipping = Mechanism(clip="layers", log_odds_step=0.5).clipping
    sizes = np.array([span.stop - span.start for span in CNN.layers], dtype=np.float64)
    fresh = clipping.initial_run_state(CNN, draw(1))
    shares = sizes / sizes.sum()
    assert fresh["log_odds"].tolist() == pytest.approx(np.log(shares / (1 - shares)).tolist(), rel=1e-5)
    assert fresh["layer_norms"].tolist() == [0] * len(CNN.layers)
    state, norms, odds = {name: value[None] for name, value in fresh.items()}, [0.0] * 4, fresh["log_odds"].tolist()
    for seed in (1, 2, 3):
        update = draw(1, CNN.size, seed=seed) * torch.rand(CNN.size, generator=torch.Generator().manual_seed(seed))
        state = clipping.next_run_state(CNN, state, update)
        for index, span in enumerate(CNN.layers):
            norm = float(update[0, span.slice].double().norm())
            odds[index] += 0.5 if norm > norms[index] else -0.5
            norms[index] = norm
        assert state["log_odds"][0].tolist() == pytest.approx(odds, rel=1e-5)
        assert state["layer_norms"][0].tolist() == pytest.approx(norms, rel=1e-5)
    assert layer_norms(CNN, update)[0].tolist() == pytest.approx(norms, rel=1e-5)
    equal = clipping.next_run_state(CNN, state, update)  # not larger: down
    assert torch.allclose(equal["log_odds"], state["log_odds"] - 0.5)


@given(some.lists(some.floats(-300, 300, width=32), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_layer_weights_sum_to_one_however_far_the_log_odds_went(odds):
    weights = layer_weights(torch.tensor([odds]))[0].double()
    assert float(weights.sum()) == pytest.approx(1, rel=1e-6)
    assert (weights > 0).all()


def test_only_layer_clips_have_layer_weights():
    for kind in ("none", "global", "coordinates"):
        assert Mechanism(clip=kind).clipping.initial_run_state(CNN, draw(1)) == {}
        assert Mechanism(clip=kind).clipping.initial_client_state(CNN, draw(1)) == {}
    exact = Mechanism(clip="layers", trend_from="exact").clipping
    assert exact.initial_run_state(CNN, draw(1)) == {}
    assert set(exact.initial_client_state(CNN, draw(1))) == {"log_odds", "layer_norms"}


# ---------------------------------------------------------------- budget schedules


def spent_by(mechanism: Mechanism, rounds: int) -> list[float]:
    left, spent = 1.0, []
    for index in range(rounds):
        share = mechanism.budget_share(index, rounds)
        spent.append(share * left)
        left -= spent[-1]
    return spent


@pytest.mark.parametrize("rounds", [1, 2, 10, 100])
@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0, 5.0])
def test_the_increasing_schedule_grows_keeps_its_ceiling_and_spends_all(rounds, beta):
    """ε^t = exp(-β(1 - (t/T)²))·ε_r/(T - t + 1), and eq. 9: no more than an equal share of what is left."""
    spent = spent_by(Mechanism(budget="increasing", budget_growth=beta), rounds)
    left = 1.0
    for index, value in enumerate(spent):
        t = index + 1
        equal = left / (rounds - t + 1)
        assert value == pytest.approx(math.exp(-beta * (1 - (t / rounds) ** 2)) * equal, rel=1e-9)
        assert value <= equal * (1 + 1e-12)
        left -= value
    assert sum(spent) == pytest.approx(1)
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in itertools.pairwise(spent))


def test_the_printed_schedule_passes_its_ceiling_and_is_cut_at_what_is_left():
    """ADP-PFL eq. 11 has another factor t: at T = 100, β = 2 all is spent in round 73, by our count of rounds."""
    mechanism, left, ended = Mechanism(budget="printed", budget_growth=2.0), 1.0, None
    for index in range(100):
        t = index + 1
        wanted = math.exp(-2 * (1 - (t / 100) ** 2)) * left * t / (100 - t + 1)
        share = mechanism.budget_share(index, 100)
        assert share * left == pytest.approx(min(left, wanted), rel=1e-9)
        left -= share * left
        if left <= 0:
            ended = t
            break
    assert ended == 73
    assert Mechanism().budget_share(0, 10) is None


# ---------------------------------------------------------------- aggregation


def test_the_three_divisors():
    released, sharers = torch.tensor([[6.0, -3.0, 9.0]]), torch.tensor([[3.0, 1.0, 0.0]])
    participants = torch.tensor([3.0])

    def mean(divide_by, shared=sharers):
        return Aggregation(divide_by=divide_by).mean(released, 2.5, participants, shared)[0].tolist()

    assert mean("expected") == pytest.approx([2.4, -1.2, 3.6])
    assert mean("participants") == pytest.approx([2, -1, 3])
    assert mean("count") == pytest.approx([2, -3, 0])  # nobody shares the last one: the server keeps its value
    assert mean("count", None) == pytest.approx([2, -1, 3])
    empty = Aggregation(divide_by="participants").mean(released, 2.5, torch.tensor([0.0]), None)
    assert torch.equal(empty, released)


def test_data_weights_are_shares_of_the_samples_and_average_to_one():
    samples = torch.tensor([[10.0, 30.0, 60.0, 0.0], [5.0, 5.0, 0.0, 0.0]])
    present = torch.tensor([[True, True, True, False], [True, False, False, False]])
    weights = Aggregation(weights="data").client_weights(samples, present)
    assert weights[0].tolist() == pytest.approx([0.3, 0.9, 1.8, 0.0])
    assert weights[1].tolist() == pytest.approx([1, 0, 0, 0])
    assert Aggregation().client_weights(samples, present)[0].tolist() == [1, 1, 1, 0]
    nobody = Aggregation(weights="data").client_weights(samples[:1], torch.zeros(1, 4, dtype=torch.bool))
    assert nobody.tolist() == [[0, 0, 0, 0]]


# ---------------------------------------------------------------- phases


def test_schedules_train_what_they_say_in_the_order_they_say():
    terms = (PersonalConstraint(), SharedConstraint(), AdaptiveNorm(), Proximal())

    def shape(schedule, **changes):
        return [
            (
                phase.work,
                [(update.trains, update.only, [term.kind for term in update.terms]) for update in phase.updates],
            )
            for phase in Objective(schedule, terms, **changes).phases
        ]

    every = [term.kind for term in terms]
    personal = [kind for kind in every if kind != "shared-constraint"]
    shared = [kind for kind in every if kind != "personal-constraint"]
    assert shape("joint") == [(1.0, [("all", "", every)])]
    assert shape("head-only", head_work=2.0) == [(2.0, [("head", "", [])])]
    assert shape("head-then-body", head_work=3.0) == [(3.0, [("head", "", [])]), (1.0, [("body", "", every)])]
    assert shape("personal-then-shared") == [(1.0, [("all", "personal", personal), ("all", "shared", shared)])]


@pytest.mark.parametrize("schedule", ["joint", "head-then-body", "personal-then-shared"])
def test_sharpness_and_clamps_belong_to_what_is_exchanged(schedule):
    phases = Objective(schedule, sharpness=0.3, adaptive_sharpness=True, clamp_count=5).phases
    assert phases[-1].clamped
    assert all(update.sharpness == 0.3 and update.adaptive_sharpness for update in phases[-1].updates)
    assert [update.gradient_passes for update in phases[-1].updates] == [2] * len(phases[-1].updates)
    if len(phases) == 2:
        assert not phases[0].clamped
        assert phases[0].updates[0].sharpness == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Objective("jointly"), "objective.schedule 'jointly' is unknown; did you mean joint"),
        (lambda: Objective(sharpness=-1.0), "objective.sharpness is -1.0"),
        (lambda: Objective(head_work=0.0), "objective.head_work is 0.0"),
        (lambda: Objective(clamp_count=-2), "objective.clamp_count is -2"),
        (lambda: Mechanism(clip="layer"), "mechanism.clip 'layer' is unknown; did you mean layers"),
        (lambda: Mechanism(trend_from="raw"), "mechanism.trend_from 'raw' is unknown"),
        (lambda: Mechanism(log_odds_step=-0.1), "mechanism.log_odds_step is -0.1"),
        (lambda: Mechanism(budget_growth=math.inf), "mechanism.budget_growth is inf"),
        (lambda: Mechanism(clamp_count=0), "mechanism.clamp_count is 0"),
        (lambda: Aggregation(divide_by="size"), "aggregation.divide_by 'size' is unknown"),
        (lambda: Aggregation(weights="datas"), "aggregation.weights 'datas' is unknown; did you mean data"),
        (lambda: TopK(sparsity=0.0), "sparsification.sparsity is 0.0"),
        (lambda: TopK(sparsity=1.1), "sparsification.sparsity is 1.1"),
        (lambda: FisherTop(samples=-1), "sparsification.samples is -1"),
        (lambda: FisherMask(samples=-1), "personalization.samples is -1"),
        (lambda: FisherMask(threshold=1.1), "personalization.threshold is 1.1"),
        (lambda: Reparameterized(layers=-1), "sparsification.layers is -1"),
        (lambda: Reparameterized(mask_from="steps"), "sparsification.mask_from 'steps' is unknown; did you mean step"),
        (lambda: Reparameterized(layers=3).sparse_layers(CNN), "layers is 3, but model 'cnn2' has 2 such layers"),
        (lambda: Personalization(local="tail").check(CNN), "local: layer of model 'cnn2' 'tail' is unknown"),
        (lambda: Personalization(local=" "), "personalization.local is empty"),
        (lambda: Personalization(adaptation="body"), "personalization.adaptation 'body' is unknown"),
        (lambda: Personalization(tests="end"), "personalization.tests 'end' is unknown"),
        (lambda: Personalization(adaptation_work=0.0), "personalization.adaptation_work is 0.0"),
        (lambda: GrowingMask(limit=1.5), "personalization.limit is 1.5"),
        (lambda: GrowingMask(mask_from="server"), "personalization.mask_from 'server' is unknown"),
        (lambda: GrowingMask(local="head"), "personalization.local is 'head', but 'growing-mask' has no such part"),
        (lambda: GrowingMask(tests="start"), "personalization.tests must be 'trained'"),
    ],
)
def test_settings_of_parts_out_of_range_are_refused(make, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        make()


def test_the_limit_of_personalization_follows_the_noise():
    """FedGLP-ADP eq. 11: β = β₀·exp(a(σ - σ₀))."""
    part = GrowingMask(limit=0.3, noise_growth=0.2)
    assert part.default_limit(1.96, 1.96) == pytest.approx(0.3)
    assert part.default_limit(3.97, 1.96) == pytest.approx(0.3 * math.exp(0.2 * 2.01))
    assert part.default_limit(1.06, 1.96) == pytest.approx(0.3 * math.exp(-0.2 * 0.9))
    assert part.default_limit(1e6, 1.96) == 1.0
    noise = {None: 2.5, 6.0: 1.5}
    assert part.knob_defaults(noise.__getitem__, 20) == {
        "personal_limit": pytest.approx(0.3 * math.exp(0.2)),
        "personal_rate": pytest.approx(0.3 * math.exp(0.2) / 20),
    }
    assert GrowingMask(limit=0.3, noise_growth=0.0).knob_defaults(noise.__getitem__, 3)["personal_rate"] == 0.3 / 3
