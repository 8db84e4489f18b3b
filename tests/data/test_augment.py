"""What happens to an image between decoding and the model."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.augment import Transform
from tfdist.data.recipe import IMAGENET, Recipe, recipe_for

PLAIN = Recipe(crop="none", flip=False, mean=(0.0,), std=(1.0,))


def seed(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def image(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def test_pixels_are_scaled_and_normalised():
    recipe = Recipe(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    raw = image(4, 4, 3)
    result = Transform(recipe, (4, 4, 3))(raw, None).numpy()
    np.testing.assert_allclose(result, (raw / 255 - recipe.mean) / recipe.std, atol=1e-5)


def test_enlarging_is_bilinear():
    result = Transform(PLAIN, (2, 4, 1))(np.array([[[0], [255]]], np.uint8), None).numpy()
    np.testing.assert_allclose(result[..., 0], [[0, 0.25, 0.75, 1]] * 2, atol=1e-6)


@pytest.mark.parametrize(("have", "want"), [(1, 3), (3, 1), (4, 3), (4, 1), (3, 3)])
def test_channels_are_converted(have, want):
    result = Transform(PLAIN, (6, 6, want))(tf.constant(image(6, 6, have)), None)
    assert result.shape == (6, 6, want)
    if have == 1:
        assert np.ptp(result.numpy(), axis=-1).max() == 0


def test_padding_moves_the_image_by_up_to_an_eighth_with_black():
    recipe = Recipe(pad=1 / 8, flip=False, mean=(0.0,), std=(1.0,))
    raw = np.maximum(image(32, 32, 1), 1)
    padded = np.pad(raw, [(4, 4), (4, 4), (0, 0)]) / 255
    windows = {
        padded[y : y + 32, x : x + 32].astype(np.float32).round(4).tobytes(): (y, x)
        for y in range(9)
        for x in range(9)
    }
    transform = Transform(recipe, (32, 32, 1))
    results = [transform(raw, seed(n, 5)).numpy().round(4) for n in range(60)]
    seen = {windows[result.tobytes()] for result in results}
    assert {y for y, _ in seen} == {x for _, x in seen} == set(range(9))


def test_half_are_flipped_and_a_seed_always_gives_the_same():
    recipe = Recipe(crop="none", mean=(0.0,), std=(1.0,))
    raw = image(5, 5, 3)
    transform = Transform(recipe, (5, 5, 3))
    results = [transform(raw, seed(n, 1)).numpy() for n in range(100)]
    straight = transform(raw, None).numpy()
    flipped = [np.array_equal(result, straight[:, ::-1]) for result in results]
    assert all(f or np.array_equal(r, straight) for f, r in zip(flipped, results, strict=True))
    assert 30 <= sum(flipped) <= 70
    np.testing.assert_array_equal(results[3], transform(raw, seed(3, 1)).numpy())


def test_flipping_does_not_go_with_the_crop():
    recipe = Recipe(pad=1 / 8, mean=(0.0,), std=(1.0,))
    raw = np.zeros((8, 8, 1), np.uint8)
    raw[3, 2] = 255  # its row shows the crop, its half of the image the flip
    transform = Transform(recipe, (8, 8, 1))
    flips: dict[int, list[bool]] = {}
    for number in range(150):
        row, column, _ = np.argwhere(transform(raw, seed(number, 9)).numpy())[0]
        flips.setdefault(int(row), []).append(column >= 4)
    assert sorted(flips) == [2, 3, 4]
    for flipped in flips.values():
        assert 0.25 < np.mean(flipped) < 0.75


@pytest.mark.parametrize("shape", [(300, 500), (500, 301), (20, 33), (224, 224), (256, 256)])
@pytest.mark.parametrize("key", [None, (1, 2)])
def test_imagenet_images_of_any_size_become_one_size(shape, key):
    raw = tf.constant(image(*shape, 3))
    result = Transform(IMAGENET, (224, 224, 3))(raw, None if key is None else seed(*key))
    assert result.shape == (224, 224, 3)
    assert np.isfinite(result.numpy()).all()


def test_testing_takes_the_centre_of_the_resized_image():
    raw = np.zeros((256, 512, 3), np.uint8)
    raw[16:240, 144:368] = 255
    recipe = Recipe(crop="resized", mean=(0.0,), std=(1.0,))
    assert Transform(recipe, (224, 224, 3))(raw, None).numpy().min() == pytest.approx(1)


def test_recipes_by_name_and_by_size():
    assert not recipe_for("digits", (8, 8, 1)).flip
    assert not recipe_for("mnist", (28, 28, 1)).flip
    assert recipe_for("cifar10", (32, 32, 3)).flip
    assert recipe_for("imagenet2012", (None, None, 3)) is IMAGENET
    assert recipe_for("something", (48, 48, 3)).crop == "pad"
    assert recipe_for("something", (512, 512, 1)).crop == "resized"
