"""TFDS builder of the bundled UCI handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
import tensorflow_datasets as tfds


class Builder(tfds.core.GeneratorBasedBuilder):
    """1,797 grey 8x8 images in 10 classes: 1,500 to train on, 297 to test on.

    Needs no network: the images lie next to this file. `README.md` has their
    source, their licence (CC BY 4.0) and how they were divided.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://doi.org/10.24432/C50P49",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        del dl_manager  # nothing to download
        return {part: self._generate_examples(part) for part in ("train", "test")}

    def _generate_examples(self, part: str) -> Iterator[tuple[int, dict]]:
        with (resources.files(__package__) / "optdigits.npz").open("rb") as file:
            archive = np.load(file)
            images, labels = archive[f"{part}_images"], archive[f"{part}_labels"]
        images = np.rint(images * (255 / 16)).astype(np.uint8)[..., None]
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield index, {"image": image, "label": int(label)}
