import pytest
import torch

from fl_core.base.streams import STREAMS, numpy_generator, stream_seed, torch_generator


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
