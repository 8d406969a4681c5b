"""Cohorts are the samples that the accounting takes them for."""

import numpy as np
import pytest
import torch
from scipy import stats

from fl_core.run.cohort import draw_cohort, of_runs
from tests.fl_core.plain import config

torch.set_num_threads(1)


def membership(settings, draws: int) -> np.ndarray:
    """Bool table [draws, clients] of who takes part, one seed per draw."""
    cohort = draw_cohort(settings, range(draws), np.full(draws, 3), np.ones(draws, dtype=bool), torch.device("cpu"))
    table = np.zeros((draws, settings.clients), dtype=bool)
    table[cohort.run.numpy(), cohort.client.numpy()] = True
    assert table.sum() == cohort.sizes.sum()  # nobody twice
    return table


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_poisson_cohorts_have_binomial_sizes_and_independent_members(rate):
    table = membership(config(sampling_rate=rate), 4000)
    counts = np.bincount(table.sum(axis=1), minlength=9)
    expected = 4000 * stats.binom.pmf(np.arange(9), 8, rate)
    common = expected > 5
    merged = np.append(counts[common], counts[~common].sum()), np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(*(part[part_of(merged)] for part in merged)).pvalue > 1e-3
    for i in range(8):
        assert stats.binomtest(int(table[:, i].sum()), 4000, rate).pvalue > 1e-3
        for j in range(i):
            both = int((table[:, i] & table[:, j]).sum())
            assert stats.binomtest(both, 4000, rate**2).pvalue > 1e-4


def part_of(merged):
    """Cells that exist at all."""
    return merged[1] > 0


def test_poisson_at_rate_one_takes_everybody():
    assert membership(config(sampling_rate=1.0), 50).all()


@pytest.mark.parametrize(("rate", "size"), [(0.5, 4), (0.3, 2), (0.01, 1), (1.0, 8)])
def test_fixed_cohorts_have_one_size_and_treat_clients_alike(rate, size):
    settings = config(sampling="fixed", sampling_rate=rate)
    table = membership(settings, 3000)
    assert (table.sum(axis=1) == size).all()
    assert settings.cohort == size
    for i in range(8):
        assert stats.binomtest(int(table[:, i].sum()), 3000, size / 8).pvalue > 1e-3
    if size == 4:
        assert len({tuple(row) for row in table}) == 70  # every one of C(8, 4) comes up


def test_rounds_and_seeds_draw_afresh_and_repeat_exactly():
    settings = config(clients=40, sampling_rate=0.5)
    rounds = [membership_of(settings, seed, index) for seed in (0, 1) for index in range(50)]
    assert len(set(rounds)) == 100
    assert rounds[:50] == [membership_of(settings, 0, index) for index in range(50)]
    lag = np.array([[client in cohort for client in range(40)] for cohort in rounds])
    assert abs(np.corrcoef(lag[:49].ravel(), lag[1:50].ravel())[0, 1]) < 0.08
    assert abs(np.corrcoef(lag[:50].ravel(), lag[50:].ravel())[0, 1]) < 0.08


def membership_of(settings, seed: int, index: int) -> tuple[int, ...]:
    cohort = draw_cohort(settings, [seed], np.array([index]), np.array([True]), torch.device("cpu"))
    return tuple(cohort.client.tolist())


def test_a_run_that_does_not_take_part_draws_nobody_and_rows_find_their_places():
    settings = config(sampling="fixed", sampling_rate=0.5)
    cohort = draw_cohort(settings, [0, 1, 2], np.array([0, 5, 1]), np.array([True, False, True]), torch.device("cpu"))
    assert cohort.sizes.tolist() == [4, 0, 4]
    assert cohort.width == 4
    assert cohort.present().tolist() == [[True] * 4, [False] * 4, [True] * 4]
    values = torch.arange(1.0, 9.0).unsqueeze(-1) * torch.ones(2)
    spread = cohort.scatter(values)
    assert spread.shape == (3, 4, 2)
    assert spread[0, :, 0].tolist() == [1, 2, 3, 4]
    assert not spread[1].any()
    assert spread[2, :, 1].tolist() == [5, 6, 7, 8]


def test_a_batch_in_which_nobody_takes_part_still_has_a_place():
    cohort = draw_cohort(config(), [0, 1], np.array([0, 0]), np.array([False, False]), torch.device("cpu"))
    assert cohort.width == 1
    assert cohort.scatter(torch.zeros(0, 5)).shape == (2, 1, 5)
    assert not cohort.present().any()


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rows_find_their_run_client_and_place(rate):
    cohort = draw_cohort(config(sampling_rate=rate), range(3), np.zeros(3, int), np.ones(3, bool), torch.device("cpu"))
    assert (len(set(cohort.sizes)) == 1) == (rate == 1)
    held = torch.arange(3 * 8 * 2).view(3, 8, 2)
    assert torch.equal(of_runs(held, cohort.run), held[cohort.run])
    rows = held[cohort.run, cohort.client]
    expected = torch.zeros(3, cohort.width, 2, dtype=torch.int64)
    for run, client, place in zip(cohort.run, cohort.client, cohort.place, strict=True):
        expected[run, place] = held[run, client]
    assert torch.equal(cohort.scatter(rows), expected)
    assert cohort.present().sum() == cohort.sizes.sum()
