import numpy as np
import pytest
import torch

from fl_core.base.counters import below, happens, mixed, stream_words


def splitmix32(state: int) -> int:
    """The finalizer as it is written in C, one word at a time."""
    word = (state + 0x9E3779B9) % 2**32
    word = (word ^ (word >> 16)) * 0x21F0AAAD % 2**32
    word = (word ^ (word >> 15)) * 0x735A2D97 % 2**32
    return word ^ (word >> 15)


def test_mixed_hashes_word_by_word():
    first = torch.tensor([0, 1, 2**31, 2**32 - 1])
    for second in (0, 7, 2**32 - 1):
        expected = [splitmix32(splitmix32(int(one)) ^ second) for one in first]
        assert mixed(first, second).tolist() == expected


def test_draws_are_uniform_and_do_not_follow_from_their_neighbours():
    words = mixed(mixed(torch.arange(400), 3)[:, None], torch.arange(500))
    assert int(words.min()) >= 0
    assert int(words.max()) < 2**32
    counts = np.bincount(below(words, 9).flatten().numpy(), minlength=9)
    assert len(counts) == 9
    np.testing.assert_allclose(counts / words.numel(), 1 / 9, atol=0.004)
    units = words.double() / 2**32 - 0.5
    for other in (units.roll(1, 0), units.roll(1, 1), units.roll((1, 1), (0, 1))):
        assert abs(float((units * other).mean()) * 12) < 0.01
    assert float(happens(words, 0.3).double().mean()) == pytest.approx(0.3, abs=0.005)
    assert not happens(words, 0.0).any()
    assert happens(words, 1.0).all()


def test_words_of_a_stream_differ_by_seed_round_and_purpose():
    words = {
        stream_words(seed, "augmentation", purpose, done)
        for seed in range(5)
        for done in range(5)
        for purpose in ("minibatch", "evaluation")
    }
    assert len(words) == 50
    assert stream_words(3, "augmentation", "minibatch", 2) == stream_words(3, "augmentation", "minibatch", 2)
