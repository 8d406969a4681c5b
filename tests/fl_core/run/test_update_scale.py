"""The unit of norms: another parametrisation of the same network, with updates of another length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from fl_core.audit.audit import audit
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import METRICS
from tests.fl_core.plain import PlainRun, config, module, plan, positions_of

SCALE = 5.0
CLIP = 2.0


class RescaledRun(PlainRun):
    """The plain loop of a network that keeps φ = s·w in place of its weights w, trained at the rate s²·η."""

    def train(
        self, model: np.ndarray, client: int, stream: str, head_only: bool, work: int = 1
    ) -> tuple[np.ndarray, float]:
        own = self.config
        samples = self.index.train.of(client)
        place = (self.seed, stream, self.round, client)
        positions = positions_of(*place, len(samples), own.local_steps, own.batch_size)
        network = module(model)  # its parameters are φ
        optimizer = torch.optim.SGD(network.parameters(), SCALE**2 * own.learning_rate)
        losses = []
        for batch in samples[positions]:
            weights = {name: phi / SCALE for name, phi in network.named_parameters()}
            output = functional_call(network, weights, (self.data.train_images[batch].float() / 16,))
            loss = nn.functional.cross_entropy(output, self.data.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return parameters_to_vector(network.parameters()).detach().double().numpy(), float(np.mean(losses))


def test_a_run_in_another_unit_is_the_run_of_a_network_whose_weights_are_kept_in_it() -> None:
    federation = Federation(config(update_scale=SCALE))
    slow = RescaledRun(config(), 0, SCALE * federation.server[0])
    for _ in range(3):
        figures = federation.run_round(plan(clip=CLIP)).figures
        expected = slow.step(CLIP, 1.0, float(figures["noise_multiplier"][0]))
        for name in ("train_loss", "update_norm", "clipped_share"):
            assert figures[name][0] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name
        np.testing.assert_allclose(SCALE * federation.server[0].numpy(), slow.server, rtol=1e-3, atol=2e-3)
        assert figures["server_norm"][0] == pytest.approx(float(np.linalg.norm(slow.server)), rel=1e-4)
        assert figures["clip_norm"][0] == pytest.approx(CLIP)


@pytest.mark.parametrize("method", ["dp-fedavg", "fedglp-adp", "blur-lus", "fedaddp"])
def test_a_clip_norm_in_another_unit_does_what_the_same_length_does_in_the_usual_one(method: str) -> None:
    plain, scaled = Federation(config(method)), Federation(config(method))
    scaled.start([0], [RunSettings(seed=0, update_scale=SCALE)])
    plain.start([0], [RunSettings(seed=0)])
    for _ in range(2):
        expected = plain.run_round(plan(clip=0.5), evaluate=True).figures
        figures = scaled.run_round(plan(clip=0.5 * SCALE), evaluate=True).figures
        assert figures.keys() == expected.keys()
        for name, value in expected.items():
            factor = SCALE if METRICS[name.partition(".")[0]].is_norm else 1.0
            np.testing.assert_allclose(figures[name], factor * value, rtol=1e-4, atol=1e-4, err_msg=name)
    torch.testing.assert_close(plain.server, scaled.server, rtol=1e-4, atol=1e-5)


def test_rows_may_have_units_of_their_own() -> None:
    federation = Federation(config(), 2)
    federation.start([0, 1], [RunSettings(seed=4), RunSettings(seed=4, update_scale=0.5)])
    figures = federation.run_round(plan(2)).figures
    assert figures["update_norm"][1] == pytest.approx(figures["update_norm"][0] / 2, rel=1e-5)
    assert figures["clipped_share"][1] < figures["clipped_share"][0]


def test_an_audit_measures_in_the_units_of_the_model() -> None:
    usual, other = (audit(config(update_scale=scale), 1.0, canaries=20) for scale in (1.0, SCALE))
    assert other.sensitivity == usual.sensitivity
    assert other.noise == usual.noise


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-4, 1e4, float("nan"), float("inf"), "two"])
def test_a_unit_that_is_none_is_refused(scale: float) -> None:
    for make in (lambda: config(update_scale=scale), lambda: RunSettings(seed=0, update_scale=scale)):
        with pytest.raises(InputError, match=r"update_scale is .* in \[0.001, 1000\]"):
            make()
