"""Data that no step could take is refused in one line; a broken image is named."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.input.check import check_batched, check_kind, unreadable

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


class Loader:
    def __iter__(self):
        return iter([(X, Y)])


def compiled(strategy, shape=(4,)) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input(shape), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def strategies(devices):
    return [tfdist.one_device_strategy(devices[0]), tfdist.mirrored_strategy(devices[:2])]


@pytest.mark.parametrize("where", [0, 1])
def test_a_dataset_of_single_examples_is_refused_before_a_step(devices, where):
    model = compiled(strategies(devices)[where])
    before = [w.copy() for w in model.get_weights()]
    trainer = tfdist.Trainer(model)
    with pytest.raises(ConfigError, match=r"data: .*\(4,\).*\(None, 4\).*batch\(32\)") as caught:
        trainer.fit(tf.data.Dataset.from_tensor_slices((X, Y)), verbose=0)
    assert "\n" not in str(caught.value)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("where", [0, 1])
def test_no_data_is_refused(devices, where):
    trainer = tfdist.Trainer(compiled(strategies(devices)[where]))
    with pytest.raises(ConfigError, match="data: None is given"):
        trainer.fit(None, verbose=0)


def test_numbers_cannot_be_divided(devices):
    data = tf.data.Dataset.from_tensor_slices((X, Y[:, 0]))
    own = keras.Sequential([keras.layers.Dense(1)])  # Its inputs are not known.
    with pytest.raises(ConfigError, match="a single number"):
        check_batched(data, own, divides=True)
    check_batched(data, own, divides=False)
    check_batched(data.batch(4), own, divides=True)


def test_the_last_dimension_that_keras_adds_by_itself_is_not_missed(devices):
    model = compiled(tfdist.one_device_strategy(devices[0]), (1,))
    data = tf.data.Dataset.from_tensor_slices((X[:, 0], Y)).batch(4)
    tfdist.Trainer(model).fit(data, verbose=0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: Loader(), "a Loader object is given"),
        (lambda s: "digits", "'digits' is given"),
        (
            lambda s: s.experimental_distribute_dataset(
                tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
            ),
            "a DistributedDataset is given",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(devices, make, text):
    strategy = tfdist.mirrored_strategy(devices[:2])
    with pytest.raises(ConfigError, match=f"data: {text}.*allowed: a tf.data.Dataset"):
        tfdist.Trainer(compiled(strategy)).fit(make(strategy), verbose=0)


def test_what_can_be_divided_is_accepted(devices):
    for x in (X, [X, X], {"a": X}, iter([X]), tf.constant(X), lambda context: 0):
        check_kind(x)


@pytest.fixture
def images(tmp_path):
    for split in ("train", "test"):
        for label in ("a", "b"):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for number in range(3):
                image = np.full((16, 16, 3), 40 * number, "uint8")
                folder.joinpath(f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    return tmp_path


def train_on(source, strategy) -> None:
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input(source.image_shape), keras.layers.Flatten(), keras.layers.Dense(2)]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tfdist.Trainer(model).fit(source.train(2), verbose=0, epochs=1)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("broken", ["no image", "cut off", "empty"])
def test_a_broken_image_is_named(devices, images, broken, where):
    path = images / "train" / "b" / "1.png"
    whole = path.read_bytes()
    path.write_bytes({"no image": b"text", "cut off": whole[:60], "empty": b""}[broken])
    source = tfdist.data.load(f"folder:{images}", image_size=16)
    with pytest.raises(ConfigError, match=rf"data: {path} cannot be read \(.*\); repl") as caught:
        train_on(source, strategies(devices)[where])
    assert "\n" not in str(caught.value)
    assert "Iterator::Root" not in str(caught.value)


def test_a_file_that_was_removed_is_named(devices, images):
    source = tfdist.data.load(f"folder:{images}", image_size=16)
    path = images / "train" / "a" / "2.png"
    path.unlink()
    with pytest.raises(ConfigError, match=rf"data: {path} cannot be read"):
        train_on(source, strategies(devices)[0])


def test_a_broken_image_in_a_users_dataset_is_one_line(devices, images):
    images.joinpath("train", "a", "0.png").write_bytes(b"text")
    data = keras.utils.image_dataset_from_directory(
        images / "train", image_size=(16, 16), batch_size=2, verbose=False, shuffle=False
    )
    strategy = tfdist.one_device_strategy(devices[0])
    for given, text in ((data, "0.png cannot be read"), (data.map(lambda x, y: (x, y)), "decoded")):
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]
            )
            model.compile("sgd", "mse")
        with pytest.raises(ConfigError, match=f"data: .*{text}"):
            tfdist.Trainer(model).fit(given, verbose=0)


def test_other_errors_are_not_about_images(images):
    class Source:
        file_paths = tuple(str(path) for path in images.glob("*/*/*.png"))

    error = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [2] vs. [3]")
    assert unreadable(error, [Source()]) is None
    assert unreadable(tf.errors.CancelledError(None, None, "DecodeImage"), []) is None
