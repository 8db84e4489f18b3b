"""Augments, resizes and normalises images, without state."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdist.data.recipe import Recipe

_AREA_RANGE = (0.08, 1.0)
_ASPECT_RANGE = (3 / 4, 4 / 3)
_TEST_MARGIN = 8 / 7  # 256 for a crop of 224


@dataclasses.dataclass(frozen=True)
class Transform:
    """Turns a decoded image into the input of a model.

    Attributes:
        recipe: The operations.
        shape: Height, width and channels of the result.
    """

    recipe: Recipe
    shape: tuple[int, int, int]

    def __call__(self, image: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """Transforms one image.

        Args:
            image: `(height, width, channels)`, an integer type over its whole range or
                floating point in 0 to 1; 1, 3 or 4 channels.
            seed: An int32 tensor of shape `(2,)` for the augmentation, which is always the same for
                the same seed; None for no augmentation.

        Returns:
            float32, of shape `self.shape`.
        """
        image = tf.image.convert_image_dtype(image, tf.float32)
        size = self.shape[:2]
        if seed is None:
            image = _centre(image, size) if self.recipe.crop == "resized" else _resize(image, size)
        else:
            if self.recipe.crop == "resized":
                image = _random_resized_crop(image, size, seed)
            else:
                image = _resize(image, size)
                if self.recipe.crop == "pad":
                    image = _pad_and_crop(image, size, self.recipe.pad, seed)
            if self.recipe.flip:
                # Another seed than the crop's, so that the two cannot depend on each other.
                image = tf.image.stateless_random_flip_left_right(image, seed + [0, 1])
        image = _channels(image, self.shape[2])
        image = (image - _per_channel(self.recipe.mean, self.shape[2])) / _per_channel(
            self.recipe.std, self.shape[2]
        )
        return tf.ensure_shape(image, self.shape)


def _resize(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    if tuple(image.shape[:2]) == size:
        return image
    # antialias matters when shrinking only; when enlarging it is plain bilinear.
    return tf.image.resize(image, size, method="bilinear", antialias=True)


def _pad_and_crop(
    image: tf.Tensor, size: tuple[int, int], pad: float, seed: tf.Tensor
) -> tf.Tensor:
    rows, columns = (max(1, round(side * pad)) for side in size)
    image = tf.pad(image, [[rows, rows], [columns, columns], [0, 0]])
    return tf.image.stateless_random_crop(image, [*size, tf.shape(image)[2]], seed)


def _random_resized_crop(image: tf.Tensor, size: tuple[int, int], seed: tf.Tensor) -> tf.Tensor:
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        area_range=_AREA_RANGE,
        aspect_ratio_range=_ASPECT_RANGE,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    channels = image.shape[2]
    image = tf.slice(image, begin, extent)
    image.set_shape([None, None, channels])
    return _resize(image, size)


def _centre(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    channels = image.shape[2]
    height, width = size
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    scale = tf.reduce_max(tf.constant([height, width], tf.float32) * _TEST_MARGIN / shape)
    # ceil, so that rounding never leaves the image smaller than the crop.
    resized = tf.cast(tf.math.ceil(shape * scale), tf.int32)
    image = tf.image.resize(image, resized, method="bilinear", antialias=True)
    top, left = (resized[0] - height) // 2, (resized[1] - width) // 2
    image = tf.image.crop_to_bounding_box(image, top, left, height, width)
    image.set_shape([height, width, channels])
    return image


def _channels(image: tf.Tensor, wanted: int) -> tf.Tensor:
    have = image.shape[2]
    if have == 4:
        image, have = image[..., :3], 3  # the transparency is dropped
    if have == wanted:
        return image
    return tf.image.grayscale_to_rgb(image) if wanted == 3 else tf.image.rgb_to_grayscale(image)


def _per_channel(values: tuple[float, ...], channels: int) -> tf.Tensor:
    if len(values) != channels:  # grey from colour or the other way round
        values = (sum(values) / len(values),) * channels
    return tf.constant(values, tf.float32)
