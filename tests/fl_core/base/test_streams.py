import math

import pytest
import torch

from fl_core.base.streams import STREAMS, noise_key, normal_draws, numpy_generator, stream_seed, torch_generator


def test_streams_rounds_and_seeds_are_independent():
    seeds = {stream_seed(seed, stream, index) for seed in range(5) for stream in STREAMS for index in range(20)}
    assert len(seeds) == 5 * len(STREAMS) * 20


def test_a_draw_is_a_function_of_its_coordinates():
    first = torch.randn(4, generator=torch_generator(3, "noise", 7))
    torch_generator(3, "cohort", 7)
    assert torch.equal(first, torch.randn(4, generator=torch_generator(3, "noise", 7)))
    assert numpy_generator(1, "cohort", 2).random() == numpy_generator(1, "cohort", 2).random()


def test_an_unknown_stream_is_a_programming_error():
    with pytest.raises(KeyError):
        stream_seed(0, "nois")


def test_a_million_rounds_have_a_million_noise_keys_of_128_bits():
    keys = {noise_key(0, "noise", index) for index in range(1_000_000)}
    assert len(keys) == 1_000_000
    assert max(key.bit_length() for key in keys) == 128


def test_noise_depends_on_every_part_of_its_key():
    draws = [
        normal_draws((3,), *coordinates)
        for coordinates in (
            (7, "noise", 1),
            (8, "noise", 1),
            (7, "noise", 2),
            (7, "telemetry", 1),
            (7 + 2**32, "noise", 1),
        )
    ]
    draws += [normal_draws((3,), 7, "noise", 1, secret=secret) for secret in (b"one", b"two")]
    assert len({tuple(draw.tolist()) for draw in draws}) == 7
    assert torch.equal(draws[0], normal_draws((3,), 7, "noise", 1))


def test_noise_whose_keys_share_32_bits_differs():
    """Torch's CPU generator keeps 32 bits of a seed, so that such rounds had the same noise."""
    low: dict[int, int] = {}
    for index in range(300_000):
        other = low.setdefault(noise_key(0, "noise", index) % 2**32, index)
        if other != index:
            assert not torch.equal(normal_draws((5,), 0, "noise", index), normal_draws((5,), 0, "noise", other))
            return
    pytest.fail("300,000 keys share no 32 bits, though about ten pairs are to be expected")


def test_noise_is_normal_also_in_its_tail():
    draws = normal_draws((6_000_000,), 0, "noise")
    assert draws.dtype == torch.float64
    assert abs(float(draws.mean())) < 5 / len(draws) ** 0.5
    assert abs(float(draws.square().mean()) - 1) < 5 * (2 / len(draws)) ** 0.5
    for bound in (3.0, 4.0, 4.5, 5.0):
        expected = len(draws) * math.erfc(bound / math.sqrt(2))
        assert abs(int((draws.abs() > bound).sum()) - expected) < 5 * math.sqrt(expected)


def test_noise_has_no_end_where_float32_normals_have_theirs():
    """Float32 normals by Box and Muller from 24 random bits never pass 5.77; this draw was searched for."""
    assert float(normal_draws((1_000_000,), 1587, "noise").abs().max()) > 7
