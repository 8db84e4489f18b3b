"""A folder of images, packed: the same images with the same labels, shared by workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.data.pack import pack
from tfdist.errors import ConfigError

IMAGES = 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for split, count in (("train", IMAGES), ("test", 6)):
        for number in range(count):
            place = tmp_path / "images" / split / ("cat", "dog", "eel")[number % 3]
            place.mkdir(parents=True, exist_ok=True)
            image = draw.integers(0, 256, (9, 7 + number % 2, 3)).astype(np.uint8)
            (place / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    return tmp_path / "images"


def census(source: tfdist.data.Source, contexts: list[object]) -> Counter[tuple[bytes, int]]:
    found: Counter[tuple[bytes, int]] = Counter()
    for context in contexts:
        for images, labels in source.train(8, augment=False)(context):
            found.update((i.numpy().tobytes(), int(y)) for i, y in zip(images, labels, strict=True))
    return found


def test_workers_read_what_was_packed(folder: Path, tmp_path: Path) -> None:
    data_dir = str(tmp_path / "tfds")
    assert pack(str(folder), "animals", data_dir, shards=4) == {"test": 6, "train": IMAGES}
    files = list((tmp_path / "tfds/animals/1.0.0").glob("animals-train.tfrecord*"))
    assert len(files) == 4
    recipe = tfdist.data.Recipe(crop="none", flip=False)
    packed = tfdist.data.load("animals", data_dir=data_dir, image_size=8, recipe=recipe)
    loose = tfdist.data.load(f"folder:{folder}", image_size=8, recipe=recipe)
    assert packed.class_names == loose.class_names == ("cat", "dog", "eel")
    assert (packed.num_train, packed.num_test) == (IMAGES, 6)
    alone: list[object] = [None]
    both: list[object] = [tf.distribute.InputContext(2, index, 2) for index in range(2)]
    want = census(loose, alone)
    assert sum(want.values()) == IMAGES
    assert census(packed, alone) == want
    assert census(packed, both) == want


def test_it_says_how_far_it_is_and_nothing_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pack(str(folder), "quiet", str(tmp_path / "tfds"))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("tfdist.data.pack._REPORT_SECONDS", 0.0)
    pack(str(folder), "loud", str(tmp_path / "tfds"))
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == IMAGES + 6
    assert "tfdist: packed 23 of 24 images of train" in lines


def test_what_cannot_be_packed_is_one_line(folder: Path, tmp_path: Path) -> None:
    data_dir = str(tmp_path / "tfds")
    for path, name, problem in (
        (str(folder), "My-Animals", r"pack\(name\): 'My-Animals' is given; allowed: lower-case"),
        (str(tmp_path / "nowhere"), "animals", "there is no folder"),
        (str(folder / "train"), "animals", "has no images in train"),
    ):
        with pytest.raises(ConfigError, match=problem):
            pack(path, name, data_dir)
    (folder / "train/cat/broken.png").write_text("no image")
    with pytest.raises(ConfigError, match="broken.png' is not a readable image") as error:
        pack(str(folder), "animals", data_dir)
    assert "\n" not in str(error.value)
    (folder / "train/cat/broken.png").unlink()
    pack(str(folder), "animals", data_dir)  # Nothing that broke off is in the way.
    with pytest.raises(ConfigError, match="animals' already exists; give another name"):
        pack(str(folder), "animals", data_dir)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"pack\(data_dir\): .* cannot be written"):
        pack(str(folder), "animals", str(tmp_path / "file"))
