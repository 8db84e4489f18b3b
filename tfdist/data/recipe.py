"""The table of recipes: the augmentation and normalisation of each dataset."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The operations on an image between decoding and the model.

    Attributes:
        crop: The crop in training. `"pad"`: pad with black by `pad` of the height and
            width, and crop the original size at random (He et al. 2016 for CIFAR: 4 of
            32 pixels). `"resized"`: crop 8 to 100 % of the area at an aspect ratio of 3:4
            to 4:3 and resize it (Szegedy et al. 2015, as in Goyal et al. 2017); testing
            resizes the shorter side to 8/7 of the size and crops the centre. `"none"`.
        pad: Padding as a fraction of the size, at least one pixel.
        flip: Mirror half of the training images left to right.
        mean: Subtracted from pixels in 0 to 1, per channel.
        std: Divides the difference, per channel.
        default_size: Image size where the dataset's own varies and none is given.

    Example:
        >>> recipe = tfdist.data.Recipe(crop="none", flip=False, mean=(0.3,), std=(0.4,))
        >>> source = tfdist.data.load("digits", recipe=recipe)
        >>> source.recipe.flip
        False
    """

    crop: Literal["none", "pad", "resized"] = "pad"
    pad: float = 1 / 8
    flip: bool = True
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    default_size: int = 224


IMAGENET = Recipe(
    crop="resized", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), default_size=224
)

# By TFDS name. Digits and house numbers are not flipped: a mirrored 2 is not a 2.
_RECIPES = {
    # Mean and deviation of the 1,500 training images; they fill their frame, so shift little.
    "digits": Recipe(pad=1 / 16, flip=False, mean=(0.3054,), std=(0.3759,)),
    "cifar10": Recipe(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Recipe(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    "mnist": Recipe(flip=False, pad=1 / 16, mean=(0.1307,), std=(0.3081,)),
    "emnist": Recipe(flip=False, pad=1 / 16, mean=(0.1307,), std=(0.3081,)),
    "kmnist": Recipe(flip=False, pad=1 / 16),
    "fashion_mnist": Recipe(mean=(0.2860,), std=(0.3530,)),
    "svhn_cropped": Recipe(flip=False),
}

_SMALL = 64


def recipe_for(name: str, shape: tuple[int | None, int | None, int]) -> Recipe:
    """Returns the usual recipe for a dataset.

    Args:
        name: The dataset's name without version and config.
        shape: Height, width (None where they vary) and channels of its images.

    Returns:
        The dataset's own recipe where it has one; the CIFAR one with pixels scaled to
        -1 to 1 for small images; the ImageNet one for others.
    """
    if name in _RECIPES:
        return _RECIPES[name]
    height, width, channels = shape
    if height is not None and width is not None and max(height, width) <= _SMALL:
        return Recipe()
    if channels == 3:
        return IMAGENET
    return Recipe(crop="resized")
