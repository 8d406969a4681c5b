"""Augmentation against shifts, mirrorings and rotations written out image by image."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from fl_core.base.counters import below, happens, mixed
from fl_core.base.errors import InputError
from fl_core.data.augmentation import Crop, Flip, Rotate, augment, check_augmentation, parse_augmentation

BLACK = torch.tensor([-1.0, -2.0])


def images_of(count: int, height: int, width: int) -> torch.Tensor:
    return torch.arange(count * 2 * height * width, dtype=torch.float32).view(count, 2, height, width) + 1


def words_of(count: int, seed: int) -> torch.Tensor:
    return mixed(torch.arange(count), seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(6, 9), st.integers(6, 9), st.integers(0, 10**6))
def test_a_crop_is_a_window_of_the_padded_image(padding, height, width, seed):
    images, words = images_of(8, height, width), words_of(8, seed)
    found = augment(images, words, (Crop(padding),), BLACK)
    for image, word, own in zip(images, words, found, strict=True):
        padded = BLACK.view(2, 1, 1).expand(2, height + 2 * padding, width + 2 * padding).clone()
        padded[:, padding : padding + height, padding : padding + width] = image
        top, left = (int(below(mixed(mixed(word, 1), axis), 2 * padding + 1)) for axis in range(2))
        assert 0 <= top <= 2 * padding
        assert torch.equal(own, padded[:, top : top + height, left : left + width])


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.integers(0, 10**6))
def test_a_flip_mirrors_those_that_are_drawn_and_is_its_own_inverse(probability, seed):
    images, words = images_of(20, 5, 7), words_of(20, seed)
    once = augment(images, words, (Flip(probability),), BLACK)
    mirrored = happens(mixed(mixed(words, 1), 0), probability)
    assert torch.equal(once, torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images))
    assert torch.equal(augment(once, words, (Flip(probability),), BLACK), images)


@pytest.mark.parametrize("nothing", [(), (Crop(0),), (Flip(0.0),), (Rotate(0.0),), (Flip(0.0), Crop(0), Rotate(0.0))])
def test_transforms_of_no_size_change_nothing(nothing):
    images = images_of(6, 8, 8)
    assert torch.equal(augment(images, words_of(6, 0), nothing, BLACK), images)


def test_all_shifts_and_both_sides_come_up_equally_often():
    words = words_of(20_000, 5)
    image = torch.zeros(1, 9, 9)
    image[0, 4, 3] = 1
    moved = augment(image.expand(20_000, 1, 9, 9), words, (Crop(2),), torch.zeros(1))
    shares = moved.mean(0)[0]
    np.testing.assert_allclose(shares[2:7, 1:6], 1 / 25, atol=0.006)
    assert float(shares.sum()) == pytest.approx(1)
    flipped = augment(image.expand(20_000, 1, 9, 9), words, (Flip(),), torch.zeros(1)).mean(0)[0]
    assert float(flipped[4, 5]) == pytest.approx(0.5, abs=0.02)


def test_a_rotation_agrees_with_scipy_to_the_nearest_pixel():
    images, words = images_of(10, 9, 9), words_of(10, 8)
    found = augment(images, words, (Rotate(30.0),), BLACK)
    angles = 30 * (2 * mixed(mixed(words, 1), 0).double() / 2**32 - 1)
    assert float(angles.abs().max()) <= 30
    for image, angle, own in zip(images, angles, found, strict=True):
        turn = np.deg2rad(float(angle))
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        for channel in range(2):
            expected = ndimage.affine_transform(
                image[channel].numpy(),
                matrix,
                [4, 4] - matrix @ [4, 4],
                order=0,
                mode="grid-constant",
                cval=float(BLACK[channel]),
            )
            assert (own[channel].numpy() == expected).mean() > 0.97  # ties of rounding aside


def test_transforms_act_in_their_order_and_the_black_of_each_step_stays():
    images, words = images_of(12, 6, 6), words_of(12, 3)
    both = augment(images, words, (Flip(), Crop(3)), BLACK)
    flipped = augment(images, words, (Flip(),), BLACK)
    for one, word, own in zip(flipped, words, both, strict=True):
        padded = BLACK.view(2, 1, 1).expand(2, 12, 12).clone()
        padded[:, 3:9, 3:9] = one
        top, left = (int(below(mixed(mixed(word, 2), axis), 7)) for axis in range(2))
        assert torch.equal(own, padded[:, top : top + 6, left : left + 6])


def test_stacked_images_are_changed_as_single_ones():
    images, words = images_of(12, 6, 6), words_of(12, 4)
    transforms = (Flip(), Crop(2), Rotate(10.0))
    flat = augment(images, words, transforms, BLACK)
    stacked = augment(images.view(3, 4, 2, 6, 6), words.view(3, 4), transforms, BLACK)
    assert torch.equal(stacked.flatten(0, 1), flat)


def test_names_are_read_with_their_parameters():
    assert parse_augmentation("") == ()
    assert parse_augmentation("flip, crop(3)") == (Flip(0.5), Crop(3))
    assert parse_augmentation("rotate(15),flip(0.25)") == (Rotate(15.0), Flip(0.25))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flop", "did you mean flip"),
        ("crop(4", "crop(4"),
        ("crop(two)", "it must be a whole number"),
        ("crop(-1)", "-1"),
        ("flip(1.5)", "1.5"),
        ("rotate(200)", "200"),
        ("crop,crop(2)", "may stand there once"),
        ("crop(28)", "below 28"),
        ("crop(999)", "out of sight"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_sentence(text, words):
    with pytest.raises(InputError) as error:
        check_augmentation(text, (1, 28, 28))
    assert words in str(error.value)
    assert str(error.value).count(".") - str(error.value).count("0.") <= 2
