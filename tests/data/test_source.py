"""Which datasets can be opened, what is in them, and how refusals read."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from tfdist.data import Recipe, load
from tfdist.data.prepare import default_data_dir
from tfdist.errors import ConfigError


def refusal(*args: object, **kwargs: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load(*args, **kwargs)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_digits_are_the_uci_ones(digits):
    bundle = pytest.importorskip("sklearn.datasets").load_digits()
    source = digits(recipe=Recipe(crop="none", flip=False, mean=(0.0,), std=(1.0,)))
    found = []
    for pipeline in (source.train(1500, shuffle=False), source.test(297)):
        ((images, labels),) = pipeline.dataset().as_numpy_iterator()
        counts = np.bincount(labels)
        assert counts.max() - counts.min() <= 10  # stratified: as equal as in the original
        found += [((i * 16).round().tobytes(), int(y)) for i, y in zip(images, labels, strict=True)]
    expected = [
        (i.astype(np.float32).tobytes(), int(y))
        for i, y in zip(bundle.images, bundle.target, strict=True)
    ]
    assert sorted(found) == sorted(expected)


def test_digits_are_sharded_and_registered(digits, data_dir):
    digits()
    builder = tfds.builder("digits:1.0.0", data_dir=data_dir)
    assert builder.is_prepared()
    assert builder.info.splits["train"].num_shards == 8
    assert "Alpaydin" in builder.info.citation


@pytest.mark.parametrize("name", ["cifar10", "cifar10:3.0.2"])
def test_cifar10(name):
    with tfds.testing.mock_data(num_examples=10):
        source = load(name)
        assert (source.num_classes, source.image_shape) == (10, (32, 32, 3))
        sizes = [images.shape for images, _ in source.train(4).dataset()]
    assert sizes == [(4, 32, 32, 3), (4, 32, 32, 3), (2, 32, 32, 3)]


def test_imagenet_is_streamed_resized_and_tested_on_its_validation_split():
    with tfds.testing.mock_data(num_examples=5):
        source = load("imagenet2012", image_size=64)
        assert source.num_classes == 1000
        for pipeline in (source.train(4), source.test(4)):
            sizes = [images.shape for images, _ in pipeline.dataset()]
            assert sizes == [(4, 64, 64, 3), (1, 64, 64, 3)]
        with pytest.raises(ConfigError, match="vary in size"):
            source.train(4, cache=True)
        assert load("imagenet2012").image_shape == (224, 224, 3)


def test_a_config_is_part_of_the_name():
    with tfds.testing.mock_data(num_examples=2):
        assert load("emnist/letters").num_classes == 37


@pytest.fixture
def folder(tmp_path):
    """Seven training and three test images whose red value is their number."""
    number = 0
    for split, count in (("train", 7), ("val", 3)):
        for _ in range(count):
            path = tmp_path / split / f"class{number % 2}"
            path.mkdir(parents=True, exist_ok=True)
            pixels = np.full((20 + number, 30, 3), number, np.uint8)
            Image.fromarray(pixels).save(path / f"{number}.png")
            number += 1
    return tmp_path


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_folder_of_images(folder, workers):
    plain = Recipe(crop="none", flip=False, mean=(0.0,), std=(1.0,))
    source = load(f"folder:{folder}", image_size=16, recipe=plain)
    assert (source.num_train, source.num_test, source.num_classes) == (7, 3, 2)
    assert source.class_names == ("class0", "class1")
    train = source.train(5)
    seen = []
    for index in range(workers):
        for images, labels in train(tf.distribute.InputContext(workers, index, workers)):
            numbers = np.rint(images.numpy()[:, 0, 0, 0] * 255).astype(int)
            np.testing.assert_array_equal(labels, numbers % 2)
            seen += numbers.tolist()
    assert sorted(seen) == list(range(7))


def test_a_folder_gets_the_imagenet_recipe(folder):
    source = load(f"folder:{folder}")
    assert source.image_shape == (224, 224, 3)
    assert source.recipe.crop == "resized"


def test_a_folder_without_a_test_split(folder, tmp_path):
    (tmp_path / "val").rename(tmp_path / "other")
    with pytest.raises(ConfigError, match="has no test split"):
        load(f"folder:{folder}").test(2)


def test_bad_folders_are_refused(tmp_path):
    assert "there is no folder '/no/such'" in refusal("folder:/no/such")
    assert "there is no folder ''" in refusal("folder:")
    assert "no images in train (splits: none)" in refusal(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-10", "either); did you mean 'cifar10'?"),
        ("nosuch", "there is no 'nosuch'; give digits, synthetic, folder:PATH, or a name from"),
        ("mnist:9.9.9", "cannot be loaded at version 9.9.9, only: 3.0.1"),
        ("cifar10/nosuch", "BuilderConfig nosuch not found"),
        ("", "there is no ''; give digits"),
        ("coco", "coco/2014/1.1.0 has no image with a class label; its features are image, "),
        ("imdb_reviews", "has no image with a class label"),
        ("imagenet2012", "could not be prepared: Manual directory"),
    ],
)
def test_bad_names_are_refused(tmp_path, name, message):
    assert message in refusal(name, data_dir=tmp_path)


def test_without_a_network_it_says_so_at_once(tmp_path, monkeypatch):
    def unresolved(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    message = refusal("mnist", data_dir=tmp_path)
    assert message.startswith(f"dataset: mnist/3.0.1 is not in {tmp_path} and cannot be downloaded")
    assert "no network" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed: -1 is not allowed"),
        ({"channels": 2}, "channels: 2 is not allowed; give 1 or 3"),
        ({"image_size": 0}, "image_size: 0 is not allowed"),
        ({"image_size": (8, 8, 8)}, "image_size: "),
        ({"num_classes": 5}, "num_classes: digits has its own"),
        ({"data_dir": "/proc/none"}, "data_dir: cannot write /proc/none"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    assert message in refusal("digits", **options)


def test_bad_synthetic_arguments_are_refused():
    assert "num_classes: 0 is not allowed" in refusal("synthetic", num_classes=0)
    assert "num_examples: -3 is not allowed" in refusal("synthetic", num_examples=-3)


def test_the_data_dir_comes_from_the_environment(monkeypatch, tmp_path, digits, data_dir):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert default_data_dir() == "~/tensorflow_datasets"
    monkeypatch.setenv("TFDS_DATA_DIR", "/elsewhere")
    assert default_data_dir() == "/elsewhere"
    monkeypatch.setenv("TFDIST_DATA_DIR", str(data_dir))
    assert load("digits").num_train == 1500


def test_a_folder_without_a_test_split_is_divided(tmp_path):
    import tensorflow as tf

    for number in range(20):
        folder = tmp_path / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        png = tf.io.encode_png(np.full((8, 8, 3), number, np.uint8))
        (folder / f"{number}.png").write_bytes(png.numpy())
    assert load(f"folder:{tmp_path}").num_test == 0
    divided = [load(f"folder:{tmp_path}", validation_split=0.25) for _ in range(2)]
    files = [(s.train(4).file_paths, s.test(4).file_paths) for s in divided]
    assert files[0] == files[1], "the same each time"
    train, test = map(set, files[0])
    assert (len(train), len(test), train & test) == (15, 5, set())
    labels = [int(y) for _, batch in divided[0].test(4)() for y in batch]
    assert labels == [int(file.split("/")[-2] == "b") for file in divided[0].test(4).file_paths]
    assert "leaves none" in refusal(f"folder:{tmp_path}", validation_split=0.01)
    assert "allowed: with folder:PATH" in refusal("synthetic", validation_split=0.5)
    (tmp_path / "test" / "a").mkdir(parents=True)
    (tmp_path / "test" / "a" / "0.png").write_bytes(png.numpy())
    assert "has a split named test" in refusal(f"folder:{tmp_path}", validation_split=0.5)
