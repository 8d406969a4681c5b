from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from agents.online import OnlinePPO
from agents.online_learner import OnlineSettings
from agents.online_spec import parse_online
from envs import EnvCore, make_core
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings

TINY: dict[str, Any] = {
    "clients": 10, "rounds": 9, "partition": "iid", "executor": "vectorized", "reward": "paper", "signals": "paper",
    "knobs": "clip_norm", "method": "acdp-pfsd",
}  # fmt: skip
QUICK = OnlineSettings(buffer=3, passes=2, network=(4,))


@pytest.fixture(scope="module")
def core() -> EnvCore:
    return make_core(2, **TINY)


def _agent(core: EnvCore, seed: int = 0, **changes: Any) -> OnlinePPO:
    return OnlinePPO.for_env(core, seed, dataclasses.replace(QUICK, **changes))


def _played(core: EnvCore, agent: OnlinePPO) -> tuple[list[Any], list[Any], list[Any]]:
    """Observations, actions and rewards of an episode of each row."""
    core.reset([0, 1], [RunSettings(seed=1), RunSettings(seed=2)])
    seen, actions, rewards, state = [], [], [], None
    while not core.finished.all():
        seen.append(core.observe())
        action, state = agent.predict(seen[-1], state)
        actions.append(action)
        rewards.append(core.step(action)[0])
    seen.append(core.observe())
    return seen, actions, rewards


def test_rewards_are_the_papers_computed_from_what_is_seen(core: EnvCore) -> None:
    """The environment computes the same reward from the exact figures."""
    agent = _agent(core)
    seen, _, rewards = _played(core, agent)
    columns = [[feature.name for feature in core.features].index(name) for name in ("trimmed_accuracy", "trimmed_loss")]
    for before, after, expected in zip(seen, seen[1:], rewards, strict=False):
        for row in range(2):
            found = agent.reward(before[row, columns].astype(float), after[row, columns].astype(float))
            assert found == pytest.approx(expected[row], abs=1e-5)


def test_an_agent_learns_from_its_observations_alone(core: EnvCore) -> None:
    """Replayed observations lead to the same actions without any environment; it keeps a hold of none."""
    seen, actions, _ = _played(core, _agent(core))
    alone = OnlinePPO(tuple(_agent(core)._columns), len(core.features), np.log(10), "paper", 0, QUICK)  # type: ignore[arg-type]
    state = None
    for one, action in zip(seen, actions, strict=False):
        again, state = alone.predict(one, state)
        np.testing.assert_array_equal(again, action)
    held = [type(value).__module__.split(".")[0] for value in vars(alone).values()]
    assert not {"envs", "fl_core"} & set(held)


def test_deterministic_by_seed(core: EnvCore) -> None:
    first = np.array(_played(core, _agent(core))[1])
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    np.testing.assert_array_equal(np.array(_played(core, _agent(core))[1]), first)
    assert not np.allclose(np.array(_played(core, _agent(core, seed=1))[1]), first)
    assert not np.allclose(first[:, 0], first[:, 1])  # runs do not explore alike


def test_global_random_numbers_go_on_as_if_nothing_had_happened(core: EnvCore) -> None:
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    agent, state = _agent(core), None
    for _ in range(6):  # one update among them
        _, state = agent.predict(np.zeros((2, len(core.features))), state)
    assert torch.equal(torch.rand(3), expected[0])
    np.testing.assert_array_equal(np.random.rand(3), expected[1])  # noqa: NPY002


def test_it_learns_when_the_buffer_is_full_and_goes_on_from_a_saved_state(core: EnvCore) -> None:
    agent = _agent(core)
    seen, actions, _ = _played(core, agent)
    state = None
    changes = []
    for step, one in enumerate(seen[:-1]):
        before = None if state is None else state[1].copy()
        copied = None if state is None else tuple(part.copy() for part in state)
        action, state = _agent(core).predict(one, copied)  # an agent made anew every time
        np.testing.assert_array_equal(action, actions[step])
        if before is not None and not np.array_equal(before, state[1]):
            changes.append(step)
    assert changes == [5, 8]  # two random decisions, then three transitions each
    assert state is not None
    assert (state[0][:, 1] == 9).all()


def test_a_new_run_begins_with_a_new_agent(core: EnvCore) -> None:
    agent = _agent(core)
    seen = np.zeros((2, len(core.features)))
    _, state = agent.predict(seen)
    for _ in range(6):
        _, state = agent.predict(seen, state)
    _, fresh = agent.predict(seen, state, np.array([True, False]))
    assert fresh[0][:, :2].tolist() == [[1, 1], [0, 8]]
    assert not np.array_equal(fresh[1][0], state[1][0])
    np.testing.assert_array_equal(fresh[1][0][1:], 0.0)


def test_an_update_is_that_of_stable_baselines3(core: EnvCore) -> None:
    """One pass of PPO's loss over a full buffer, from its formula."""
    agent = _agent(core, passes=1)
    random = np.random.default_rng(0)
    seen = np.zeros((8, len(core.features)))
    seen[:, agent._columns] = random.uniform(-1, 1, (8, 2))
    state = None
    for one in seen[:5]:
        _, state = agent.predict(one, state)
    assert state is not None
    agent._learner.put(state[1][0], steps=0)
    policy = agent._learner._model.policy
    buffer = state[2][0].copy()
    buffer[2, 5] = agent.reward(buffer[2, :2], seen[5, agent._columns])
    observed = torch.tensor(buffer[:, :2], dtype=torch.float32)
    with torch.no_grad():
        last = policy.predict_values(torch.tensor(seen[5, agent._columns], dtype=torch.float32)[None]).item()
    values, advantages, following = [*buffer[:, 4], last], np.zeros(3), 0.0
    for step in (2, 1, 0):
        error = buffer[step, 5] + 0.99 * values[step + 1] - values[step]
        following = advantages[step] = error + 0.99 * 0.95 * following
    returns = torch.tensor(advantages + buffer[:, 4], dtype=torch.float32)
    scaled = torch.tensor((advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8), dtype=torch.float32)
    value, log_probability, _ = policy.evaluate_actions(observed, torch.tensor(buffer[:, 2:3], dtype=torch.float32))
    ratio = torch.exp(log_probability - torch.tensor(buffer[:, 3], dtype=torch.float32))
    surrogate = torch.minimum(scaled * ratio, scaled * ratio.clamp(0.8, 1.2)).mean()
    loss = -surrogate + 0.5 * torch.nn.functional.mse_loss(value.flatten(), returns)
    policy.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    policy.optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(policy.parameters()).detach().numpy()
    _, state = agent.predict(seen[5], state)
    np.testing.assert_allclose(state[1][0, 0], expected, rtol=0, atol=2e-5)


def test_paid_signals_serve_as_well() -> None:
    core = make_core(1, **{**TINY, "signals": "accounted", "telemetry": "accuracy,loss", "reward": "final-accuracy"})
    agent = OnlinePPO.for_env(core)
    assert agent.signals == "accounted"
    assert "accounted" in agent.label
    names = [feature.name for feature in core.features]
    assert [names[column] for column in agent._columns] == ["accuracy_noised", "loss_noised"]


@pytest.mark.parametrize("changes", [{"signals": "public"}, {"signals": "accounted"}])
def test_an_environment_without_accuracy_and_loss_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"telemetry 'accuracy,loss'\.$"):
        OnlinePPO.for_env(make_core(1, **{**TINY, **changes, "reward": "final-accuracy"}))


def test_an_observation_of_another_environment_is_refused(core: EnvCore) -> None:
    with pytest.raises(InputError, match="was made for"):
        _agent(core).predict(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("text", "signals", "seed"),
    [
        ("online-ppo", "", 0),
        ("online-ppo:paper", "paper", 0),
        ("online-ppo:7", "", 7),
        ("online-ppo:paper:7", "paper", 7),
    ],
)
def test_specs(text: str, signals: str, seed: int) -> None:
    spec = parse_online(text)
    assert (spec.signals, spec.seed) == (signals, seed)
    assert str(spec) == text
    assert spec.signals_in("sound") == (signals or "accounted")
    assert spec.signals_in("as-published") == (signals or "paper")


@pytest.mark.parametrize("text", ["online-ppo:exact", "online-ppo:paper:x", "online-ppo:1:2", "online-ppo:paper:1:2"])
def test_bad_specs_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="online-ppo"):
        parse_online(text)


def test_another_environment_and_memory_are_refused(core: EnvCore) -> None:
    agent = _agent(core)
    agent.check(core)
    for changes, words in (
        ({"signals": "accounted", "telemetry": "accuracy,loss"}, "made for signals 'paper' .* shows 'accounted'"),
        ({"signals": "public"}, "does not show"),
        ({"knobs": "server_learning_rate"}, "sets the knob 'clip_norm'"),
    ):
        with pytest.raises(InputError, match=words):
            agent.check(make_core(1, **{**TINY, "method": "dp-fedavg", "reward": "final-accuracy", **changes}))
    seen = np.zeros((2, len(core.features)))
    _, state = agent.predict(seen)
    with pytest.raises(InputError, match="state is"):
        agent.predict(seen[:1], state)
