"""Both guarantees of every method: what is claimed, what the noise certifies, and what a run keeps and continues."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fl_core.base.errors import InputError
from fl_core.privacy import accounting
from fl_core.privacy.filters import claim_for
from fl_core.privacy.ledger import Ledger
from fl_core.recipes.catalog import METHODS, find_method
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from tests.fl_core.plain import BODY, choose_cohorts, config, plan, same_state, snapshot
from tests.fl_core.privacy.independent import require_within_budget

torch.set_num_threads(1)
GUARANTEES = ("sound", "as-published")
LAYERS = (slice(0, BODY), slice(BODY, None))
PUBLISHED_DIFFERS = [name for name, recipe in METHODS.items() if recipe.in_mode("as-published") != recipe]


def published(method: str, **changes) -> FederationConfig:
    base = {"clients": 5, "guarantee": "as-published", "partition": "dirichlet(0.3)", "epsilon": 50.0}
    return config(method, **(base | changes))


def still(federation: Federation) -> Federation:
    """A federation whose clients do not move."""
    federation.executor.train = lambda work, images: (work.parameters.clone(), torch.ones(len(work.parameters)))
    return federation


def epsilon_of(precision: float, delta: float = 1e-5) -> float:
    """Of Gaussian releases whose 1/σ² sum to this, by SciPy (Dong, Roth, Su 2022, corollary 2.13)."""
    mu = math.sqrt(precision)

    def excess(epsilon: float) -> float:
        low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(stats.norm.cdf(low) - np.exp(epsilon + stats.norm.logcdf(high))) - delta

    return float(optimize.brentq(excess, 1e-9, 2000, xtol=1e-11))


# ---------------------------------------------------------------- the papers' claims


@pytest.mark.parametrize(("epsilon", "printed"), [(2, 3.97), (4, 2.55), (6, 1.96), (8, 1.64), (16, 1.06)])
def test_fedglp_adps_table_of_noise_multipliers(epsilon, printed):
    """δ = 0.1, T = 20, every client in every round."""
    claimed = Ledger(epsilon, 0.1, 1.0, 20, claim=True).uniform_noise_multiplier
    assert claimed == pytest.approx(printed, abs=0.0051)
    made = replace(published("fedglp-adp", clients=10), epsilon=1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so large a delta
        made = replace(made, epsilon=float(epsilon), delta=0.1, rounds=20)
    report = still(Federation(made)).run_round(plan())
    assert report.figures["noise_multiplier"][0] == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize(
    ("sigma", "printed", "exact"),
    [(0.8, 112.56, 104.8), (1.0, 77.0, 71.2), (1.3, 50.01, 45.7), (1.5, 39.78, 36.1), (2.1, 23.55, 21.1)],
)
def test_acdp_pfsds_claims_and_what_the_same_noise_costs_exactly(sigma, printed, exact):
    """q = 1, T = 100, N = 50, δ = N^-1.1."""
    delta = 50**-1.1
    assert claim_for(200.0, delta, 1.0, 100).epsilon(100 / sigma**2) == pytest.approx(printed, rel=0.01)
    assert epsilon_of(100 / sigma**2, delta) == pytest.approx(exact, abs=0.06)


def test_the_claim_gives_out_the_noise_and_is_spent_while_the_ledger_has_no_limit():
    sound, claimed = (still(Federation(config(rounds=4, guarantee=one))) for one in GUARANTEES)
    for index in range(4):
        figures, honest = claimed.run_round(plan()).figures, sound.run_round(plan()).figures
        assert figures["noise_multiplier"] > honest["noise_multiplier"]  # the papers' conversion is looser
        assert figures["epsilon_of_updates"][0] == pytest.approx(
            epsilon_of((index + 1) / figures["noise_multiplier"][0] ** 2), rel=1e-6
        )
        assert figures["epsilon_of_updates"] < figures["epsilon_spent"] <= 7.5
        assert "epsilon_of_updates" not in honest
        assert figures["budget_left"][0] == pytest.approx(1 - (index + 1) / 4, abs=1e-4)
    assert claimed.ledgers[0].epsilon == math.inf
    assert figures["epsilon_spent"][0] == pytest.approx(7.5, rel=1e-3)


# ---------------------------------------------------------------- what the noise certifies


def factor_of(federation: Federation) -> float:
    """Noise multiplier in the ledger over the claimed one, of the last round's update."""
    (claim,), (ledger,) = federation.charging.claims, federation.ledgers
    claimed = {release.name: release.noise_multiplier for release in claim.charges[-1].releases}
    real = {release.name: release.noise_multiplier for release in ledger.charges[-1].releases}
    assert {name: value for name, value in real.items() if name != "update"} == {
        name: value for name, value in claimed.items() if name != "update"
    }
    return real["update"] / claimed["update"]


@pytest.mark.parametrize("method", ["dp-fedavg", "feddpa", "blur-lus", "fed-smp", "ppsgd"])
def test_equal_weights_and_full_noise_certify_what_they_claim(method):
    federation = still(Federation(published(method, telemetry_share=0.1)))
    federation.run_round(plan())
    assert factor_of(federation) == 1


def test_weights_by_data_leave_the_largest_client_less_noise():
    """σ·√(Σp²)/(√m·max p), p the shares of the samples."""
    federation = still(Federation(published("adp-pfl")))
    federation.run_round(plan())
    counts = federation.tables.train.count[0].double().numpy()
    shares = counts / counts.sum()
    expected = math.sqrt((shares**2).sum()) / (math.sqrt(5) * shares.max())
    assert expected < 0.9
    assert factor_of(federation) == pytest.approx(expected, rel=1e-5)


def test_a_weight_of_its_own_is_no_gain_where_every_upload_is_seen():
    federation = still(Federation(published("adp-pfl", placement="local")))
    federation.run_round(plan())
    assert factor_of(federation) == 1


def test_masks_of_each_step_leave_a_coordinate_to_a_single_clients_noise():
    federation = still(Federation(published("dp-pfeddsu")))
    federation.run_round(plan())
    assert factor_of(federation) == pytest.approx(1 / math.sqrt(5), rel=1e-6)


def test_a_clip_per_coordinate_bounds_the_norm_by_the_number_of_coordinates():
    federation = still(Federation(published("fedaddp")))
    federation.run_round(plan())
    assert factor_of(federation) == pytest.approx(math.sqrt(5 / 2410), rel=1e-6)
    right = still(Federation(published("fedaddp", set="mechanism.clamp_count=2410")))
    right.run_round(plan())
    assert factor_of(right) == pytest.approx(1)


def set_masks(federation: Federation, seed: int) -> np.ndarray:
    """Give every client a mask and layer weights of its own; what each shares `[clients, size]`."""
    random = np.random.default_rng(seed)
    personal = (random.random((5, 2410)) < 0.6).astype(np.float32)
    kept, everybody = federation.state.clients, torch.arange(5)
    kept.put("personal", torch.zeros_like(everybody), everybody, torch.from_numpy(personal))
    if "log_odds" in kept.names:
        log_odds = torch.from_numpy(random.normal(0, 1.5, (5, 2)).astype(np.float32))
        kept.put("log_odds", torch.zeros_like(everybody), everybody, log_odds)
    return 1 - personal


def test_masked_noise_and_layer_weights_of_each_client_certify_less():
    """A coordinate with k contributors has σ·√(k/m); with layer weights the worst client's distance over all layers.

    Client j moves layer l by C√w_jl; the noise of its coordinates has variance C²σ²L/m·Σ_i w_il over their sharers.
    """
    federation = still(Federation(published("fedglp-adp")))
    federation.run_round(plan())
    assert factor_of(federation) == pytest.approx(1)  # at first all is shared, and the weights are alike
    shared = set_masks(federation, 1).astype(np.float64)
    odds = 1 / (1 + np.exp(-federation.clients["log_odds"][0].double().numpy()))
    weights = odds / odds.sum(1, keepdims=True)
    distances = []
    for client in range(5):
        distance = 0.0
        for index, layer in enumerate(LAYERS):
            variances = []
            for place in range(*layer.indices(2410)):
                sharers = [one for one in range(5) if shared[one, place]]
                if sharers:
                    variances.append(sum(2 * weights[one, index] for one in sharers) / 5)
            distance += weights[client, index] / min(variances)
        distances.append(distance)
    federation.run_round(plan())
    assert factor_of(federation) == pytest.approx(1 / math.sqrt(max(distances)), rel=1e-4)
    assert factor_of(federation) < 0.5
    shared = set_masks(federation, 2)
    federation.run_round(replace(plan(), settings={"layer_weights": np.array([[0.3, 0.1]])}))
    least = [shared[:, layer].sum(0)[shared[:, layer].sum(0) > 0].min() for layer in LAYERS]
    assert factor_of(federation) == pytest.approx(math.sqrt(2 / sum(5 / k for k in least)), rel=1e-5)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedglp-adp", {"without": "adaptive-clipping"}),
        ("dp-fedavg", {"set": "personalization=growing-mask,mask_from=uploads"}),
    ],
)
def test_masks_of_the_uploads_mask_the_noise_whoever_asks_for_it(method, changes):
    """Noise that k of m clients add to a coordinate certifies σ·√(k/m), also where nobody set upload_noise."""
    told = []
    for edit in ("", ",mechanism.upload_noise=true"):
        made = {**changes, "set": (changes.get("set", "") + edit).strip(",")}
        federation = still(Federation(published(method, **made)))
        federation.run_round(plan())
        shared = set_masks(federation, 1).sum(0)
        report = federation.run_round(plan())
        assert factor_of(federation) == pytest.approx(math.sqrt(shared[shared > 0].min() / 5), rel=1e-6)
        told.append(report.figures["epsilon_of_updates"][0])
    assert told[0] == told[1]


def test_nobodys_cohort_is_noised_also_where_clients_weigh_layers_by_themselves(monkeypatch):
    choose_cohorts(monkeypatch, [])
    made = published("fedglp-adp", sampling_rate=0.5, without="growing-mask")
    federation = Federation(made)
    report = federation.run_round(plan())
    std = report.figures["clip_norm"][0] * report.figures["noise_multiplier"][0]
    normal = federation.last_release[0].numpy() / std
    assert report.figures["participants"] == 0
    assert stats.kstest(normal, "norm").pvalue > 1e-3


def test_the_ledger_adds_up_the_noise_that_was_there():
    federation = still(Federation(published("fedglp-adp", telemetry_share=0.2, epsilon=4.0)))
    precision, figures = 0.0, {}
    for seed in range(3):
        set_masks(federation, seed)
        figures = federation.run_round(plan()).figures
        bit = figures["noise_multiplier"][0] * math.sqrt(0.8) / math.sqrt(0.2)
        precision += (factor_of(federation) * figures["noise_multiplier"][0]) ** -2 + bit**-2
    assert figures["epsilon_of_updates"][0] == pytest.approx(epsilon_of(precision), rel=1e-5)
    assert figures["epsilon_of_updates"] > 2 * figures["epsilon_spent"]
    ledger = federation.ledgers[0]
    single = ledger.epsilon_of_uploads([5] * len(ledger.charges))
    assert single == pytest.approx(epsilon_of(5 * precision), rel=1e-5)
    assert ledger.epsilon_of_noise(delta=1e-3) == pytest.approx(epsilon_of(precision, 1e-3), rel=1e-5)


def test_with_sampling_the_certified_epsilon_is_rényi_accounting_of_the_real_noise(monkeypatch):
    choose_cohorts(monkeypatch, [0, 1, 2])
    federation = still(Federation(published("adp-pfl", sampling_rate=0.5, epsilon=20.0)))
    figures = federation.run_round(plan()).figures
    counts = federation.tables.train.count[0, :3].double().numpy()
    factor = math.sqrt((counts**2).sum() / 3) / counts.max()
    assert factor_of(federation) == pytest.approx(factor, rel=1e-5)
    real = factor * figures["noise_multiplier"][0]
    expected = accounting.epsilon([(real, 0.5, 1)], 1e-5, "rdp")
    assert figures["epsilon_of_updates"][0] == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------- schedules of the budget


def test_adp_pfls_schedule_spends_more_and_more_until_all_is_spent():
    federation = still(Federation(config("adp-pfl", clients=5, rounds=12)))
    sigmas, left = [], 1.0
    for index in range(12):
        figures = federation.run_round(plan()).figures
        sigmas.append(figures["noise_multiplier"][0])
        share = 1 - figures["budget_left"][0] / left
        left = figures["budget_left"][0]
        assert share == pytest.approx(math.exp(-2 * (1 - ((index + 1) / 12) ** 2)) / (12 - index), abs=1e-3)
    assert sigmas == sorted(sigmas, reverse=True)
    assert left == pytest.approx(0, abs=1e-4)
    assert 7.5 * (1 - 1e-4) < figures["epsilon_spent"][0] <= 7.5


def test_the_printed_schedule_ends_the_run_when_nothing_is_left():
    federation = still(Federation(published("adp-pfl", rounds=12)))
    ran = 0
    for _ in range(12):
        report = federation.run_round(plan())
        if report.refused[0]:
            break
        ran += 1
    left, expected = 1.0, 0
    while left > 1e-4:
        t = expected + 1
        left -= min(left, math.exp(-2 * (1 - (t / 12) ** 2)) * left * t / (12 - t + 1))
        expected += 1
    assert ran == expected < 12
    require_within_budget(federation.charging.claims[0])


def test_a_controllers_pace_replaces_the_methods_schedule():
    federation = still(Federation(config("adp-pfl", clients=5, rounds=4)))
    for index, pace in enumerate((1.0, 0.5, 2.0)):
        before = federation.ledgers[0].remaining_share
        federation.run_round(replace(plan(), settings={"budget_pace": np.array([pace])}))
        spent = before - federation.ledgers[0].remaining_share
        assert spent == pytest.approx(before * min(1, pace / (4 - index)), rel=1e-4)


# ---------------------------------------------------------------- all methods, both modes


def modes() -> list[tuple[str, str]]:
    return [
        (name, guarantee)
        for name in METHODS
        for guarantee in GUARANTEES
        if guarantee == "sound" or name in PUBLISHED_DIFFERS
    ]


def made_for(method: str, guarantee: str, **changes) -> FederationConfig:
    recipe = find_method(method)
    epsilon = 50.0 if recipe.private or not recipe.exchanges else math.inf
    base = {"clients": 5, "guarantee": guarantee, "epsilon": epsilon, "test_fraction": 0.5, "local_steps": 2}
    return config(method, **(base | changes))


@pytest.mark.parametrize(("method", "guarantee"), modes())
def test_executors_agree_a_run_resumes_bit_for_bit_and_who_stays_away_keeps_its_state(method, guarantee, monkeypatch):
    cohorts = [[0, 1, 3], [1, 2, 4]]
    monkeypatch.setattr(
        "fl_core.run.cohort.draw_members", lambda config, seed, index: np.array(cohorts[index % 2], dtype=np.int64)
    )
    made = made_for(method, guarantee, sampling_rate=0.6)
    whole, plain = Federation(made), Federation(replace(made, executor="sequential"))
    whole.run_round(plan())
    plain.run_round(plan())
    saved, before = whole.state_dict(), {name: value.clone() for name, value in whole.clients.items()}
    report, other = whole.run_round(plan(), evaluate=True), plain.run_round(plan(), evaluate=True)
    for name, value in whole.clients.items():
        assert torch.equal(value[0, [0, 3]], before[name][0, [0, 3]]), name
    torch.testing.assert_close(whole.server, plain.server, atol=2e-4, rtol=1e-3)
    for name in ("train_loss", "personal_loss", "global_loss"):
        assert report.figures[name][0] == pytest.approx(other.figures[name][0], rel=2e-3), name
    resumed = Federation(made)
    resumed.load_state_dict({"tensors": saved["tensors"], "plain": json.loads(json.dumps(saved["plain"]))})
    again = resumed.run_round(plan(), evaluate=True)
    assert same_state(snapshot(whole), snapshot(resumed))
    assert all(np.array_equal(again.figures[name], value) for name, value in report.figures.items())


@pytest.mark.parametrize(
    ("method", "guarantee"),
    [
        ("fedglp-adp", "sound"),
        ("fedglp-adp", "as-published"),
        ("adp-pfl", "sound"),
        ("adp-pfl", "as-published"),
        ("dp-pfeddsu", "as-published"),
        ("fed-smp", "sound"),
        ("acdp-pfsd", "as-published"),
    ],
)
def test_a_row_of_a_batch_equals_the_run_alone(method, guarantee):
    """Rows of other seeds, budgets (on which β depends), cohorts and rates; one of them a round behind."""
    made = made_for(method, guarantee, sampling_rate=0.6, executor="sequential", telemetry_share=0.1)
    starts = [RunSettings(seed=3), RunSettings(seed=4, epsilon=200.0, learning_rate=0.1), RunSettings(seed=8)]
    batch = Federation(made, runs=3)
    batch.start(range(3), starts)
    singles = [Federation(made) for _ in starts]
    for single, one in zip(singles, starts, strict=True):
        single.start([0], [one])
    for active in ([True, True, True], [False, True, True], [True, True, False]):
        report = batch.run_round(plan(3), np.array(active))
        for row, single in enumerate(singles):
            if active[row]:
                figures = single.run_round(plan()).figures
                for name, value in figures.items():
                    assert report.figures[name][row] == pytest.approx(value[0], rel=1e-4, abs=1e-5), name
            torch.testing.assert_close(batch.server[row], single.server[0], atol=1e-5, rtol=1e-4)
            for name, value in batch.clients.items():
                torch.testing.assert_close(value[row], single.clients[name][0], atol=1e-5, rtol=1e-4)
            for name, value in batch.state.runs.items():
                torch.testing.assert_close(value[row], single.state.runs[name][0], atol=1e-5, rtol=1e-4)
            assert batch.ledgers[row].state_dict() == single.ledgers[0].state_dict()


@pytest.mark.parametrize("method", METHODS)
def test_sound_methods_leave_nothing_uncovered_and_published_ones_say_what(method):
    recipe = find_method(method)
    sound, paper = recipe.in_mode("sound"), recipe.in_mode("as-published")
    if recipe.private:
        for placement in ("central", "distributed", "local"):
            assert sound.uncovered(placement, True) == ()
        assert paper.uncovered("distributed", True)
        assert len(set(paper.uncovered("distributed", True))) == len(paper.uncovered("distributed", True))
    elif recipe.exchanges:
        assert sound.uncovered("central", True) == ("the updates themselves, without noise",)
    else:
        assert paper == sound
        assert sound.uncovered("central", True) == ()


def test_what_the_papers_leave_open_is_named():
    def uncovered(method, placement="distributed", varies=False):
        return "; ".join(find_method(method).in_mode("as-published").uncovered(placement, varies))

    assert "number of participants" in uncovered("dp-fedavg", varies=True)
    assert uncovered("dp-fedavg") == ""
    assert "number of samples" in uncovered("adp-pfl")
    assert "Jacobian risk" in uncovered("adp-pfl")
    assert "masks built from each client's own upload" in uncovered("fedglp-adp")
    assert "masks built from" not in uncovered("fedglp-adp", placement="local")
    assert "exact layer norms" in uncovered("fedglp-adp", placement="local")
    assert "number of participants" in uncovered("fedglp-adp", varies=True)
    assert "which weights each client kept" in uncovered("dp-pfeddsu")
    assert "updates longer than C" in uncovered("fedaddp")
    assert "accuracy and loss" in uncovered("acdp-pfsd")


def test_charges_that_were_taken_out_of_a_saved_claim_are_missed():
    federation = still(Federation(published("adp-pfl")))
    federation.run_round(plan())
    state = federation.state_dict()
    state["plain"]["books"][0]["claim"] = Federation(published("adp-pfl")).charging.claims[0].state_dict()
    with pytest.raises(InputError, match="its ledger has charged 0"):
        federation.load_state_dict(state)


# ---------------------------------------------------------------- methods that fall together


def servers(made: FederationConfig) -> torch.Tensor:
    """The server's model after two rounds."""
    federation = Federation(made)
    for _ in range(2):
        federation.run_round(plan(clip=0.5))
    return federation.server


@pytest.mark.parametrize("part", ["top-k", "top-weights", "fisher", "random", "reparameterized"])
def test_keeping_everything_is_no_sparsification(part):
    made = config("dp-fedavg", clients=5, test_fraction=0.5)
    sparse = servers(replace(made, set=f"sparsification={part},sparsification.sparsity=1.0"))
    torch.testing.assert_close(sparse, servers(made), atol=2e-6, rtol=1e-5)


def test_a_mask_that_marks_nothing_is_training_under_the_shared_constraint(monkeypatch):
    """FedDPA with a Fisher information that is flat, hence 0 everywhere once it is stretched."""
    made = config("feddpa", clients=5)
    monkeypatch.setattr(
        "fl_core.run.simulation.fisher_information", lambda model, models, *rest: torch.ones_like(models)
    )
    flat = servers(made)
    constrained = servers(config("dp-fedavg", clients=5, set="term=shared-constraint"))
    torch.testing.assert_close(flat, constrained, atol=2e-6, rtol=1e-5)
    assert not torch.allclose(flat, servers(config("dp-fedavg", clients=5)), atol=1e-3)


def test_ablations_are_the_methods_they_leave():
    pairs = [
        (
            config("fedglp-adp", clients=5, without="adaptive-constraint,layer-wise-personalization,adaptive-clipping"),
            "dp-fedavg",
        ),
        (config("blur-lus", clients=5, without="bounded-norm,sparsification"), "dp-fedavg"),
        (config("dp-fedsam", clients=5, without="sharpness"), "dp-fedavg"),
        (config("dp-pfeddsu", clients=5, without="reparameterization,dynamic-adaptive-norm"), "centaur"),
        (config("acdp-pfsd", clients=5, without="decoupled-distillation,personalization"), "dp-fedavg"),
    ]
    for made, other in pairs:
        expected = servers(config(other, clients=5))
        torch.testing.assert_close(servers(made), expected, atol=2e-6, rtol=1e-5)


def test_a_prox_term_or_a_constraint_of_weight_zero_changes_nothing():
    plain = servers(config("dp-fedavg", clients=5))
    for term in ("proximal", "bounded-norm", "shared-constraint", "adaptive-norm"):
        made = config("dp-fedavg", clients=5, set=f"term={term},{term}.weight=0")
        torch.testing.assert_close(servers(made), plain, atol=2e-6, rtol=1e-5)
        other = servers(replace(made, set=f"term={term},{term}.weight=3"))
        assert not torch.allclose(other, plain, atol=1e-3)


# ---------------------------------------------------------------- what the methods are good for


@pytest.fixture(scope="module")
def global_accuracy():
    return accuracy_without_noise("dp-fedavg", "global_accuracy")


def accuracy_without_noise(method: str, figure: str) -> np.ndarray:
    """Of four seeds, with two shards of digits for each of ten clients."""
    edits = "personalization.samples=20" if find_method(method).personalization.kind == "fisher-mask" else ""
    made = config(method, epsilon=math.inf, clients=10, rounds=8, partition="shards(2)", local_steps=5, set=edits)
    federation = Federation(replace(made, batch_size=16), runs=4)
    while not federation.done.all():
        federation.run_round(plan(4, clip=2.0))
    return federation.evaluate()[figure]


@pytest.mark.parametrize(
    "method", ["centaur", "ppsgd", "pmtl-ft", "feddpa", "fedaddp", "fedglp-adp", "dp-lg", "dp-pfeddsu"]
)
def test_personal_models_beat_the_global_one_where_clients_differ(method, global_accuracy):
    assert (accuracy_without_noise(method, "personal_accuracy") > global_accuracy + 0.1).all()
