import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_core.base.errors import InputError
from fl_core.privacy.mechanism import (
    Clipped,
    check_placement,
    clip_factors,
    noise_std,
    noised_mean,
    scaled_sum,
    scaled_uploads,
)


def clip_and_sum(
    updates: torch.Tensor, present: torch.Tensor, clip_norm: torch.Tensor | None
) -> tuple[torch.Tensor, Clipped]:
    """Sum of the clipped updates, and the clip."""
    clipped = clip_factors(updates, present, None if clip_norm is None else clip_norm[:, None, None])
    return scaled_sum(updates, clipped), clipped


def test_sum_equals_a_plain_loop_over_clients():
    torch.manual_seed(0)
    updates = torch.randn(2, 5, 7) * 3
    present = torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 0, 1]], dtype=torch.bool)
    clip = torch.tensor([1.0, 6.0])
    total_of, clipped = clip_and_sum(updates, present, clip)
    for run in range(2):
        total = torch.zeros(7)
        for client in range(5):
            norm = updates[run, client].norm() if present[run, client] else torch.tensor(0.0)
            torch.testing.assert_close(clipped.norms[run, client], norm)
            assert bool(clipped.within[run, client]) == bool(present[run, client] and norm <= clip[run])
            if present[run, client]:
                total += updates[run, client] * min(1.0, float(clip[run] / norm))
        torch.testing.assert_close(total_of[run], total)


@given(
    sizes=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6),
    clip=st.floats(1e-3, 1e3),
    removed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_one_client_more_or_less_changes_the_sum_by_at_most_the_clip_norm(sizes, clip, removed):
    updates = torch.randn(1, len(sizes), 11, generator=torch.Generator().manual_seed(0))
    updates = updates * torch.tensor(sizes, dtype=torch.float32)[None, :, None]
    everyone = torch.ones(1, len(sizes), dtype=torch.bool)
    without = everyone.clone()
    without[0, removed % len(sizes)] = False
    bound = torch.tensor([clip])
    change = clip_and_sum(updates, everyone, bound)[0] - clip_and_sum(updates, without, bound)[0]
    assert float(change.norm()) <= clip * (1 + 1e-4 * math.sqrt(len(sizes)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_client_that_is_not_finite_contributes_zero_and_is_reported(bad):
    updates = torch.ones(1, 3, 4)
    updates[0, 1, 2] = bad
    total, result = clip_and_sum(updates, torch.ones(1, 3, dtype=torch.bool), torch.tensor([10.0]))
    torch.testing.assert_close(total, torch.full((1, 4), 2.0))
    assert result.finite.tolist() == [[True, False, True]]
    assert not result.within[0, 1]


def test_without_a_clip_norm_updates_are_summed_as_they_are():
    updates = torch.randn(1, 3, 4) * 100
    torch.testing.assert_close(clip_and_sum(updates, torch.ones(1, 3, dtype=torch.bool), None)[0], updates.sum(1))


def test_a_zero_update_stays_zero():
    total, result = clip_and_sum(torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.bool), torch.tensor([1.0]))
    assert torch.equal(total, torch.zeros(1, 3))
    assert result.within.all()


@pytest.mark.parametrize(("placement", "expected"), [("central", 6.0), ("distributed", 6.0), ("local", 6.0 * 3.0)])
def test_noise_of_each_placement_on_the_sum(placement, expected):
    std = noise_std(placement, torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([9.0]))
    assert float(std) == pytest.approx(expected)


def test_an_empty_local_cohort_still_releases_noise():
    assert float(noise_std("local", torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([0.0]))) == 6.0


def test_a_noised_mean_is_unbiased_and_carries_the_claimed_noise():
    values = torch.tensor([[[1.0, 0.5]] * 14 + [[-1.0, 0.0]] * 6])
    noise = torch.randn(4000, 2, generator=torch.Generator().manual_seed(1))
    expected, std = torch.tensor([25.0]), torch.tensor([4.0])
    means = torch.cat([noised_mean(values, expected, std, draw[None]) for draw in noise]).numpy()
    scores = (means - [8 / 25, 7 / 25]) / (4 / 25)  # the exact sums over the expected, not the present, clients
    assert np.abs(scores.mean(0)).max() < 4 / math.sqrt(4000)
    for column in scores.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(scores.T)[0, 1]) < 4 / math.sqrt(4000)


def test_an_unknown_placement_is_refused():
    with pytest.raises(InputError, match="did you mean central"):
        check_placement("centrl")


def lengths_after_clip(updates: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Norms of single clipped uploads, taken in float64 by NumPy."""
    present = torch.ones(updates.shape[:2], dtype=torch.bool)
    clipped = clip_factors(updates, present, torch.full((1, 1, 1), clip_norm))
    return torch.from_numpy(np.linalg.norm(scaled_uploads(updates, clipped).double().numpy(), axis=-1))


@pytest.mark.parametrize(
    ("size", "kind"),
    [*((size, kind) for size in (10, 2410, 1_000_003) for kind in ("equal", "normal")), (11_173_962, "equal")],
)
def test_no_update_is_longer_than_the_clip_norm_at_any_size(size: int, kind: str):
    """Adam's first step makes all coordinates equal, which is where float32 sums of squares are worst."""
    generator = torch.Generator().manual_seed(3)
    signs = torch.randint(0, 2, (size,), generator=generator) * 2.0 - 1
    update = 0.1 * signs if kind == "equal" else torch.randn(size, generator=generator)
    length = float(lengths_after_clip(update.view(1, 1, -1), 0.25))
    assert 0.25 * (1 - 2e-6) < length <= 0.25


@given(st.integers(1, 400), st.floats(1e-3, 8.0), st.floats(-30, 37), st.integers(0, 2**31))
def test_no_update_is_longer_than_any_clip_norm_whatever_its_own_length(
    size: int, clip: float, power: float, seed: int
):
    update = torch.randn(1, 1, size, generator=torch.Generator().manual_seed(seed)) * 10.0**power
    clip = float(torch.tensor(clip))  # C as the rounds have it, in float32
    assert float(lengths_after_clip(update, clip)) <= clip
