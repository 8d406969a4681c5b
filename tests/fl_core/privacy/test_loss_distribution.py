"""The privacy loss distribution of a sampled release is the one that dp-accounting constructs point by point."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_pmf import PLDPmf
from numpy.typing import NDArray
from scipy.stats import norm

from fl_core.privacy.accounting import epsilon
from fl_core.privacy.loss_distribution import sampled_gaussian


def dense(pmf: PLDPmf) -> tuple[int, NDArray[np.float64], float]:
    """Least loss on the grid, probabilities, and the probability of an infinite loss."""
    pmf = pmf.to_dense_pmf()
    return pmf._lower_loss, np.asarray(pmf._probs), pmf._infinity_mass


@pytest.mark.parametrize(
    ("sigma", "q", "interval"),
    [
        (0.85, 0.01, 1e-3),
        (5.9, 0.5, 5e-4),
        (0.7, 0.001, 1e-3),
        (0.3, 0.3, 5e-3),
        (20.0, 0.1, 1e-4),
        (2.0, 0.99, 2e-3),
        (3.0, 1.0, 1e-3),
    ],
)
def test_both_directions_are_those_of_dp_accounting(sigma: float, q: float, interval: float) -> None:
    ours = sampled_gaussian(sigma, q, interval)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=interval
    )
    for own, other in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        low, probabilities, infinite = dense(own)
        their_low, their_probabilities, their_infinite = dense(other)
        assert low == their_low
        # second differences of δ over the width of the grid, which multiplies the rounding errors of both
        np.testing.assert_allclose(probabilities, their_probabilities, rtol=0, atol=2e-15 / interval)
        assert infinite == pytest.approx(their_infinite, abs=1e-15)
    for steps in (1, 50):
        for delta in (1e-3, 1e-6):
            composed, again = ours.self_compose(steps), theirs.self_compose(steps)
            expected = again.get_epsilon_for_delta(delta)
            assert composed.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-8, abs=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("sigma", "q"), [(0.025, 0.5), (0.03, 0.1), (0.02, 0.01), (0.028, 0.999)])
def test_losses_past_the_range_of_numbers_are_not_cut_off(sigma: float, q: float) -> None:
    delta = 1e-5

    def least_delta(bound: float) -> float:
        """Compute P(loss > ε) − e^ε Q(loss > ε) for removing a client, in logarithms, as e^ε is no number."""
        x = sigma * (bound - np.log(q) + 0.5 / sigma**2)  # the loss is ln q + x/σ − 1/(2σ²) there
        return q * float(norm.sf(x - 1 / sigma)) - float(np.exp(bound + norm.logsf(x)))

    found = epsilon([(sigma, q, 1)], delta, "pld")
    assert found <= epsilon([(sigma, q, 1)], delta, "rdp") * (1 + 1e-12)
    assert least_delta(found) <= delta < least_delta(0.5 * found)


@pytest.mark.filterwarnings("error")
def test_many_steps_past_the_range_of_numbers_cost_more_than_their_mean_loss() -> None:
    sigma, q, steps = 0.3, 0.5, 400  # the loss of removing a client is at least x/σ − 1/(2σ²) + ln q
    mean = steps * q * (0.5 / sigma**2 + np.log(q))
    assert mean > 900
    assert epsilon([(sigma, q, steps)], 1e-5, "pld") > mean
