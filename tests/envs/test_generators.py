"""Instances drawn by a generator: frozen, disjoint, met in every face, and told or hidden."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as check_gymnasium
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from stable_baselines3.common.env_checker import check_env as check_stable_baselines3

from envs import DPilotEnv, DPilotVecEnv, make_core
from envs.context import CONTEXT
from envs.generators import GENERATORS, RUN_SETTINGS, SHAPES, Generator, parse_generator
from envs.instances import INSTANCE_SETS, instance_seeds
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from policies import make_controller
from tests.envs.conftest import PLAIN, assert_same_info, random_actions

EVERYTHING = (
    "clients=6|9,model=mlp-small|mlp,epsilon=2..9,partition=iid|shards(2),learning_rate=0.1..1,update_scale=0.2..5"
)
SMALL: dict[str, Any] = PLAIN | {"clients": 6, "evaluation_samples": 100}


def test_the_instances_of_a_set_are_frozen() -> None:
    mixed = parse_generator("mixed-scale")
    assert [mixed.draw(seed) for seed in instance_seeds("test", 2)] == [
        {"epsilon": 11.7, "learning_rate": 0.396, "partition": "shards(3)", "update_scale": 2.92},
        {"epsilon": 3.5, "learning_rate": 0.333, "partition": "dirichlet(0.3)", "update_scale": 3.36},
    ]
    assert parse_generator("sizes").draw(1_000_000) == {"clients": 25, "model": "mlp-small"}


def test_a_setting_more_leaves_the_draws_of_the_others_as_they_are() -> None:
    one, more = parse_generator("epsilon=2..8"), parse_generator("update_scale=0.2..5,clients=5|6,epsilon=2..8")
    for seed in range(20):
        assert one.draw(seed)["epsilon"] == more.draw(seed)["epsilon"]


def test_draws_spread_evenly_over_a_range_and_over_choices() -> None:
    generator = parse_generator("update_scale=0.2..5,partition=iid|shards(2)|shards(3)")
    drawn = [generator.draw(seed) for seed in range(2000)]
    logs = np.log([one["update_scale"] for one in drawn])
    low, width = math.log(0.2), math.log(25)
    assert stats.kstest(logs, stats.uniform(low, width).cdf).pvalue > 0.01
    counts = np.unique([one["partition"] for one in drawn], return_counts=True)[1]
    assert stats.chisquare(counts).pvalue > 0.01
    halves = np.corrcoef(logs, [one["partition"] == "iid" for one in drawn])
    assert abs(halves[0, 1]) < 4 / math.sqrt(2000), "settings are drawn independently"


def test_the_sets_share_no_instance() -> None:
    generator = parse_generator("mixed-scale")
    drawn = {name: {str(generator.draw(seed)) for seed in instance_seeds(name, 300)} for name in INSTANCE_SETS}
    for one in drawn:
        for other in drawn:
            assert one == other or not drawn[one] & drawn[other]


def test_the_update_scale_of_the_catalogue_spans_a_factor_of_25() -> None:
    axis = next(axis for axis in parse_generator(GENERATORS["scale"].spec).axes if axis.field == "update_scale")
    assert axis.high / axis.low >= 25


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_of_the_catalogue_can_be_read(name: str) -> None:
    generator = parse_generator(name)
    assert generator.axes
    assert {axis.field for axis in generator.axes} <= {*RUN_SETTINGS, *SHAPES}
    for seed in range(30):
        assert generator.shapes[generator.shape_of(seed)].items() <= generator.draw(seed).items()


def test_what_is_given_is_not_drawn() -> None:
    generator = parse_generator("epsilon=2..8,learning_rate=0.1..1")
    filled = generator.fill(RunSettings(seed=5, epsilon=3.5))
    assert filled.epsilon == 3.5
    assert filled.learning_rate == generator.draw(5)["learning_rate"]
    assert Generator().fill(RunSettings(seed=5)) == RunSettings(seed=5)


# ---------------------------------------------------------------- in an environment


def final_info(env: DPilotEnv, seed: int, actions: np.ndarray) -> dict[str, Any]:
    env.reset(options={"instance": seed})
    info: dict[str, Any] = {}
    for action in actions:
        *_, info = env.step(action)
    return info


def test_an_instance_is_the_run_with_the_settings_that_are_drawn_for_its_seed() -> None:
    actions = random_actions(1, SMALL["rounds"], 1)
    drawn_by, generator = DPilotEnv(generator=EVERYTHING, **SMALL), parse_generator(EVERYTHING)
    for seed in (3, 4):
        own = generator.draw(seed)
        shape = {name: own[name] for name in SHAPES if name in own}
        plain = DPilotEnv(**(SMALL | shape))
        plain.reset(options={name: value for name, value in {**own, "instance": seed}.items() if name not in SHAPES})
        info: dict[str, Any] = {}
        for action in actions:
            *_, info = plain.step(action)
        assert_same_info(final_info(drawn_by, seed, actions), info)


def test_rows_of_different_shapes_equal_single_runs() -> None:
    actions = random_actions(2, SMALL["rounds"], 4, 1)
    batch = DPilotVecEnv(4, generator=EVERYTHING, context="visible", **SMALL)
    shapes = {parse_generator(EVERYTHING).shape_of(seed) for seed in range(4)}
    assert len(shapes) > 1, "the seeds of this test must need several federations"
    batch.set_instances(range(4))
    seen = [batch.reset()]
    ends: list[dict[str, Any]] = []
    for step in actions:
        observation, _, done, ends = batch.step(step)
        seen.append(observation)
    assert done.all()
    single = DPilotEnv(generator=EVERYTHING, context="visible", **SMALL)
    for row in range(4):
        observation, _ = single.reset(options={"instance": row})
        np.testing.assert_allclose(observation, seen[0][row], atol=1e-6)
        for step in range(len(actions)):
            observation, _, _, _, info = single.step(actions[step, row])
            if step + 1 < len(actions):
                np.testing.assert_allclose(observation, seen[step + 1][row], atol=2e-3)
        np.testing.assert_allclose(observation, ends[row]["terminal_observation"], atol=2e-3)
        assert info["global_accuracy"] == pytest.approx(ends[row]["global_accuracy"], abs=0.011)


def test_rows_of_different_lengths_end_when_their_own_rounds_are_done() -> None:
    generator = "rounds=2|3"
    settings = PLAIN | {"clients": 6, "knobs": "clip_median", "signals": "accounted", "reward": "advantage"}
    lengths = [parse_generator(generator).draw(seed)["rounds"] for seed in range(8)]
    assert set(lengths) == {2, 3}, "the seeds of this test must need both"
    core = make_core(8, generator=generator, **settings)
    core.reset(range(8), [RunSettings(seed=seed) for seed in range(8)])
    actions = np.zeros((8, 1))
    for done in range(3):
        over = [done >= length for length in lengths]
        assert core.finished.tolist() == over
        going = ~core.finished
        fraction = [2 * done / length - 1 for length in lengths]
        np.testing.assert_allclose(core.observe()[going, 0], np.array(fraction)[going], atol=1e-6)
        column = [one.name for one in core.features].index("rounds")
        np.testing.assert_allclose(10 ** (core.observe()[:, column] + 2), lengths, rtol=1e-5)
        core.step(actions)
    assert core.finished.all()
    assert core.rounds.tolist() == lengths
    for row, length in enumerate(lengths):
        own = make_core(1, **(settings | {"rounds": length}))
        own.reset([0], [RunSettings(seed=row)])
        for _ in range(length):
            own.step(actions[:1])
        assert own.final_accuracy(0) == pytest.approx(core.final_accuracy(row), abs=0.011)


def test_a_schedule_made_for_one_length_is_refused_where_lengths_differ() -> None:
    core = make_core(1, generator="rounds=2|3", **(SMALL | {"rounds": 3}))
    with pytest.raises(InputError, match="runs of one length, but the generator draws rounds"):
        make_controller("exponential-decay", core)


def test_a_batch_of_shapes_goes_on_where_it_was_saved() -> None:
    actions = random_actions(3, SMALL["rounds"], 3, 1)
    whole, broken = (make_core(3, generator=EVERYTHING, **SMALL) for _ in range(2))
    for core in (whole, broken):
        core.reset(range(3), [RunSettings(seed=seed) for seed in range(3)])
    for step in actions[:2]:
        whole.step(step)
        broken.step(step)
    again = make_core(3, generator=EVERYTHING, **SMALL)
    again.load_state_dict(broken.state_dict())
    for step in actions[2:]:
        whole.step(step)
        again.step(step)
    assert whole.finished.all()
    np.testing.assert_array_equal(whole.observe(), again.observe())
    assert [whole.final_accuracy(row) for row in range(3)] == [again.final_accuracy(row) for row in range(3)]


def test_rewards_are_measured_against_the_same_instance() -> None:
    core = make_core(2, generator=EVERYTHING, **(SMALL | {"reward": "advantage"}))
    core.reset([0, 1], [RunSettings(seed=3), RunSettings(seed=4)])
    middle = np.array([[float(core.knobs[0].encode(core.task.clip_norm))]] * 2)
    total = np.zeros(2)
    while not core.finished.all():
        total += core.step(middle)[0]
    np.testing.assert_allclose(total, 0, atol=0.11)  # the default clip norm has no advantage over itself
    assert core.references([3, 4]) == core.references([3, 4])


def test_contexts_are_shown_where_they_are_visible_and_the_knob_is_blind_elsewhere() -> None:
    hidden, visible = (make_core(1, generator="scale", context=context, **SMALL) for context in ("hidden", "visible"))
    names = [feature.name for feature in visible.features]
    assert names[: len(hidden.features)] == [feature.name for feature in hidden.features]
    assert names[len(hidden.features) :] == list(CONTEXT)
    scales = []
    for seed in (1, 2):
        for core in (hidden, visible):
            core.reset([0], [RunSettings(seed=seed)])
        np.testing.assert_array_equal(hidden.observe()[0], visible.observe()[0, : len(hidden.features)])
        scales.append(visible.observe()[0, names.index("context_update_scale")])
        drawn = parse_generator("scale").draw(seed)["update_scale"]
        assert scales[-1] == pytest.approx(math.log10(drawn), abs=1e-6)
    assert scales[0] != scales[1]


def test_contexts_tell_the_settings_of_the_run() -> None:
    core = make_core(1, context="visible", model="mlp-wide", learning_rate=0.5, **SMALL)
    core.reset([0], [RunSettings(seed=0, partition="shards(2)")])
    shown = dict(zip([feature.name for feature in core.features], core.observe()[0].tolist(), strict=True))
    assert shown["context_learning_rate"] == pytest.approx(math.log10(0.5) + 1, abs=1e-6)
    assert shown["context_heterogeneity"] == pytest.approx(2 * 8 / 18 - 1, abs=1e-6)
    assert shown["context_clients"] == pytest.approx(math.log10(6) - 2, abs=1e-6)
    assert shown["context_parameters"] == pytest.approx((math.log10(64 * 128 + 128 + 1290) - 4) / 2, abs=1e-6)
    assert shown["context_update_scale"] == 0


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("mixedd", "did you mean mixed"),
        ("epsilon=", "generator is 'epsilon=', but it must read SETTING=VALUE"),
        ("epsilon=2..8,scale", "generator is 'scale', but it must read SETTING=VALUE"),
        ("delta=0.1|0.2", "delta"),
        ("epsilon=8..2", "0 < LOW < HIGH"),
        ("epsilon=0..2", "0 < LOW < HIGH"),
        ("epsilon=two|3", "must be a number"),
        ("clients=10.5|3", "must be a whole number"),
        ("clients=10..20", "takes VALUE|VALUE only"),
        ("epsilon=2|2.0", "repeats a value"),
        ("epsilon=2..3,epsilon=4|5", "twice"),
        ("clients=1|2|3|4|5,model=mlp|cnn2|mlp-small|mlp-wide", "16 are the most"),
    ],
)
def test_a_generator_that_cannot_be_read_is_refused_in_one_sentence(written: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_generator(written)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"generator": "clients=6|5000"}, "5000"),
        ({"generator": "partition=iid|classes(11)"}, "classes(11)"),
        ({"generator": "update_scale=0.0001..1"}, "update_scale is 0.0001"),
        ({"context": "seen"}, "context"),
        ({"generator": "model=mlp|cnn2", "method": "fedglp-adp", "knobs": "layer_weights"}, "different layers"),
    ],
)
def test_instances_that_cannot_be_are_refused_before_any_is_played(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_core(1, **(SMALL | asked))
    assert words in str(caught.value)


@given(text=st.text(alphabet="epsilonclients=|.,()0123456789 -", max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        generator = parse_generator(text)
    except InputError:
        return
    generator.draw(0)


# ---------------------------------------------------------------- faces


def test_the_checkers_pass_where_instances_differ_and_contexts_are_seen() -> None:
    env = gym.make("DPilot/Clip-v0", generator=EVERYTHING, context="visible", **SMALL)
    assert env.unwrapped.observation_space.shape == (11,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_gymnasium(env.unwrapped, skip_render_check=True)
        check_stable_baselines3(env.unwrapped)


def test_the_vector_face_plays_generated_instances() -> None:
    vector = gym.make_vec(
        "DPilot/Clip-v0", num_envs=3, vectorization_mode="vector_entry_point", generator=EVERYTHING, **SMALL
    )
    observations, infos = vector.reset(options={"instance": [3, 4, 5]})
    assert infos["seed"].tolist() == [3, 4, 5]
    single = DPilotEnv(generator=EVERYTHING, **SMALL)
    for row, seed in enumerate((3, 4, 5)):
        np.testing.assert_array_equal(single.reset(options={"instance": seed})[0], observations[row])
    for _ in range(SMALL["rounds"] + 2):
        observations, *_ = vector.step(np.zeros((3, 1), dtype=np.float32))
        assert vector.observation_space.contains(observations)


def test_a_start_that_one_shape_refuses_changes_no_row_of_another() -> None:
    core = make_core(2, **SMALL | {"generator": "clients=6|60", "knobs": "clip_norm"})
    seeds = [next(seed for seed in range(99) if core.generator.shape_of(seed) == place) for place in (0, 1)]
    core.reset([0, 1], [RunSettings(seed=seed) for seed in seeds])
    core.step(np.zeros((2, 1)))
    before = core.state_dict()
    with pytest.raises(InputError, match="60 clients with 30 shards each"):
        core.reset([0, 1], [RunSettings(seed=seed, partition="shards(30)") for seed in seeds])
    after = core.state_dict()
    assert after["plain"] == before["plain"]
    for name, tensor in after["tensors"].items():
        assert np.array_equal(tensor.numpy(), before["tensors"][name].numpy(), equal_nan=True), name


def test_a_state_of_other_shapes_is_refused_in_one_sentence() -> None:
    one, two = (make_core(1, **SMALL | {"generator": text}) for text in ("clients=6", "clients=6|8"))
    for core in (one, two):
        core.reset([0], [RunSettings(seed=0)])
    with pytest.raises(InputError, match="is of 1 shape of instances, but here are 2"):
        two.load_state_dict(one.state_dict())
    with pytest.raises(InputError, match="format of the saved state is 1, but"):
        one.load_state_dict(two.state_dict())
