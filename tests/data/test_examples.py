"""Data of the user's own: arrays, datasets of examples, and functions that return them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.data import Recipe, Source, from_examples, load
from tfdist.errors import ConfigError

PLAIN = Recipe(crop="none", flip=False, mean=(0.0,), std=(1.0,))


def arrays(count: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 8, 8, 3)).astype("uint8"), np.arange(count) % 5


def examples(count: int = 20) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays(count))


def rows(source: Source, batch: int = 8, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of an epoch, in their order."""
    parts = list(source.train(batch, **options)().as_numpy_iterator())
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def test_arrays_come_as_they_are() -> None:
    images, labels = arrays()
    source = from_examples((images, labels), arrays(10), recipe=PLAIN)
    assert (source.num_train, source.num_test, source.num_classes) == (20, 10, 5)
    assert source.class_names == ("0", "1", "2", "3", "4")
    read, found = rows(source, augment=False, shuffle=False)
    np.testing.assert_allclose(read, images / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(found, labels)


def test_an_epoch_has_each_example_once_in_another_order() -> None:
    source = from_examples(arrays(), recipe=PLAIN, seed=3)
    train = source.train(8)
    epochs = [np.concatenate([y for _, y in train(epoch=e).as_numpy_iterator()]) for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(np.arange(20) % 5)
    assert list(epochs[0]) != list(epochs[1])


def test_workers_read_the_batches_of_one() -> None:
    train = from_examples(arrays(), recipe=PLAIN).train(8)
    whole = [y for _, y in train().as_numpy_iterator()]
    parts = [
        [y for _, y in train(tf.distribute.InputContext(2, part)).as_numpy_iterator()]
        for part in (0, 1)
    ]
    for batch, one, other in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(batch, np.concatenate([one, other]))


def test_a_dataset_of_examples_is_what_its_arrays_are() -> None:
    names = list("abcde")
    own = from_examples(arrays(), class_names=names, recipe=PLAIN)
    made = from_examples(examples(), class_names=names, recipe=PLAIN)
    assert repr(made) == repr(own)
    for one, other in zip(rows(made), rows(own), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_dataset_that_is_not_kept_in_memory_is_read_in_parts() -> None:
    source = from_examples(examples(), class_names=list("abcde"), recipe=PLAIN)
    train = source.train(8, cache=False, shuffle=False, augment=False)
    contexts = [tf.distribute.InputContext(2, part) for part in (0, 1)]
    parts = [
        np.concatenate([x for x, _ in train(context).as_numpy_iterator()]) for context in contexts
    ]
    expected = arrays()[0] / np.float32(255)
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-6)


def test_images_whose_sizes_vary_are_resized() -> None:
    def make() -> Any:
        for side in (8, 12, 16):
            yield np.full((side, side, 3), side, "uint8"), side % 2

    spec = (tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int64))
    varied = tf.data.Dataset.from_generator(make, output_signature=spec)
    varied = varied.apply(tf.data.experimental.assert_cardinality(3))
    source = from_examples(varied, class_names=["even", "odd"], image_size=10, recipe=PLAIN)
    images, _ = rows(source, 2, shuffle=False, augment=False)
    assert images.shape == (3, 10, 10, 3)
    np.testing.assert_allclose(images[2], 16 / 255, rtol=1e-5)


def test_grey_images_without_channels() -> None:
    source = from_examples((np.zeros((4, 9, 7), "float32"), np.arange(4)[:, None]), channels=3)
    assert source.image_shape == (9, 7, 3)
    assert rows(source, 2)[0].shape == (4, 9, 7, 3)


def test_the_stages_of_arrays_and_of_a_dataset() -> None:
    assert list(from_examples(arrays()).stages(4)) == ["memory", "augment", "batch"]
    named = from_examples(examples(), class_names=list("abcde"))
    assert list(named.stages(4)) == ["memory", "augment", "batch"]


IMAGES, LABELS = arrays()
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (IMAGES, {}, r"train\): a ndarray is given; allowed: \(images, labels\)"),
    ((IMAGES[0], LABELS), {}, "labels of shape"),
    ((IMAGES[0, 0], LABELS), {}, "images of shape"),
    ((IMAGES[:0], LABELS[:0]), {}, "images of shape"),
    ((IMAGES, np.eye(5)[LABELS]), {}, "labels of shape .* float64"),
    ((IMAGES, LABELS - 1), {}, "a label is -1"),
    ((IMAGES.astype("int64"), LABELS), {}, "images of type int64"),
    ((IMAGES.astype("float32"), LABELS), {}, "pixels from 0 to 255"),
    ((np.full_like(IMAGES, np.nan, "float32"), LABELS), {}, "pixels from nan"),
    ((IMAGES[..., :2], LABELS), {}, "2 channels"),
    ((IMAGES, LABELS), {"class_names": ["a", "b"]}, "a label is 4, but there are 2 class names"),
    ((IMAGES, LABELS), {"test": (IMAGES[..., :1], LABELS)}, "have 1 channels, and those"),
    ((IMAGES, LABELS), {"image_size": 0}, "image_size: 0"),
    ((IMAGES, LABELS), {"channels": 2}, "channels: 2 is not allowed; give 1 or 3"),
    ((IMAGES, LABELS), {"seed": -1}, "seed: -1 is not allowed"),
    (examples, {}, r"class_names\): missing"),
    (lambda: examples().batch(4), {"class_names": ["a"]}, "not batched"),
    (lambda: examples().repeat(), {"class_names": ["a"]}, "unknown, no or endless length"),
    (
        lambda: examples().filter(lambda x, y: y > 0),
        {"class_names": ["a"]},
        "unknown, no or endless",
    ),
    (
        lambda: examples().map(lambda x, y: (tf.cast(x, tf.float32), y)),
        {"class_names": ["a"]},
        "pixels from [0-9]+ to",
    ),
]


@pytest.mark.parametrize(("train", "options", "message"), REFUSED)
def test_other_forms_are_refused(train: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        # A dataset is made here: not before the devices are divided.
        from_examples(train() if callable(train) else train, **options)
    assert "\n" not in str(caught.value)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module of functions, to be found in the working directory."""
    monkeypatch.chdir(tmp_path)
    name = re.sub(r"\W", "_", tmp_path.name)

    def write(code: str) -> str:
        (tmp_path / f"{name}.py").write_text(
            "import numpy as np\nimport tensorflow as tf\nimport tfdist\n" + code
        )
        return f"{name}:load"

    return write


PAIRS = """
def load():
    images = np.zeros((12, 8, 8), 'uint8')
    return (images, np.arange(12) % 3), (images[:6], np.arange(6) % 3)
"""


def test_a_function_as_those_of_keras_datasets(module: Any) -> None:
    name = module(PAIRS)
    source = load(name, image_size=16, channels=3)
    assert (source.name, source.num_train, source.num_test) == (name, 12, 6)
    assert (source.image_shape, source.num_classes) == ((16, 16, 3), 3)


def test_a_function_that_makes_the_source_itself(module: Any) -> None:
    name = module(
        "def load(image_size):\n"
        "    assert image_size == (16, 16)\n"
        "    images = np.zeros((12, 8, 8, 3), 'uint8')\n"
        "    return tfdist.data.from_examples((images, np.arange(12) % 3), class_names='abc')\n"
    )
    recipe = Recipe(crop="none")
    source = load(name, image_size=16, seed=7, recipe=recipe, channels=1)
    assert (source.image_shape, source.seed, source.num_test) == ((16, 16, 1), 7, 0)
    assert source.recipe == recipe
    assert rows(source, 4)[0].shape == (12, 16, 16, 1)
    assert source.class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def load(): return 3", "returns a number"),
        ("def other(): pass", "is not found"),
        ("load = 3", "is not a function"),
        ("def load(batch): pass", "cannot be called .*'batch'.*; allowed .*: image_size, channels"),
        ("def load(): return tf.data.Dataset.range(3)", "returns a "),
        ("def load(): return tf.data.Dataset.range(3), None", "a tf.data.Dataset of"),
    ],
)
def test_functions_that_return_something_else(module: Any, code: str, message: str) -> None:
    name = module(code)
    with pytest.raises(ConfigError, match=message):
        load(name, image_size=(16, 16))


def test_a_function_that_is_nowhere() -> None:
    with pytest.raises(ConfigError, match="dataset: 'nowhere.at_all:load' is not found"):
        load("nowhere.at_all:load")


def test_a_version_is_no_function() -> None:
    with pytest.raises(ConfigError, match="there is no 'no_such_data:1.0.0'"):
        tfdist.data.load("no_such_data:1.0.0")
