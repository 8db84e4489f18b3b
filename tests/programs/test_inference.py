"""What a run leaves can be used: evaluated, asked about files, exported."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

FILES = 12


@pytest.fixture(scope="module")
def trained(devices, tmp_path_factory):
    """A run with the options that change what is saved."""
    from tfdist.programs import train
    from tfdist.programs.options import TrainOptions

    output = tmp_path_factory.mktemp("run")
    options = TrainOptions(
        strategy="one_device",
        model="small_cnn",
        image_size=16,
        epochs=2,
        base_learning_rate=0.5,
        label_smoothing=0.1,
        ema=0.9,
        weight_decay=1e-4,
        clip_norm=10.0,
        output_dir=str(output),
    )
    return train.train(Cluster.local(), options), output


@pytest.fixture(scope="module")
def run(trained):
    return trained[1]


@pytest.fixture(scope="module")
def images(devices, tmp_path_factory):
    """Test images as PNG files, and their pixels as the model takes them."""
    import tensorflow as tf

    import tfdist

    folder = tmp_path_factory.mktemp("images")
    pixels = tfdist.data.Recipe(mean=(0.0,), std=(1 / 255,))
    written = tfdist.data.load("digits", recipe=pixels).test(FILES)
    for number, image in enumerate(next(iter(written()))[0]):
        png = tf.io.encode_png(tf.cast(tf.round(image), tf.uint8))
        (folder / f"{number:02}.png").write_bytes(png.numpy())
    read = tfdist.data.load("digits", recipe=pixels, image_size=16, channels=3).test(FILES)
    return folder, next(iter(read()))[0].numpy()


@pytest.mark.long
def test_it_evaluates_to_what_training_came_to(trained):
    from tfdist.programs import inference

    summary, run = trained
    found = inference.evaluate(str(run), None, None, 64)
    assert found["loss"] == pytest.approx(summary.metrics["val_loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(summary.metrics["val_accuracy"], abs=1e-6)
    # Those are of the averaged weights, which are the ones that are saved.
    history = json.loads((run / "history.json").read_text())
    assert abs(found["loss"] / history["val_loss"][-1] - 1) > 1e-4


def test_files_are_what_the_model_takes_them_for(run, images):
    import keras

    from tfdist.programs import inference

    folder, pixels = images
    found = list(inference.predict(str(run), [str(folder)], top=10))
    assert [guess.path for guess in found] == [str(p) for p in sorted(folder.iterdir())]
    # Plain Keras takes the same pixels.
    expected = keras.models.load_model(run / "model.keras").predict(pixels, verbose=0)
    for guess, row in zip(found, expected, strict=True):
        by_class = dict(zip(guess.classes, guess.probabilities, strict=True))
        np.testing.assert_allclose([by_class[str(n)] for n in range(10)], row, atol=1e-5)
        assert list(guess.probabilities) == sorted(guess.probabilities, reverse=True)


def test_what_is_exported_says_the_same(run, images, tmp_path):
    import keras
    import tensorflow as tf

    from tfdist.programs import inference

    path = inference.export(str(run), str(tmp_path / "new" / "exported"))
    loaded = tf.saved_model.load(str(path))
    served = loaded.serve(tf.constant(images[1]))
    expected = keras.models.load_model(run / "model.keras").predict(images[1], verbose=0)
    np.testing.assert_allclose(served, expected, atol=1e-5)
    assert json.loads((path / "images.json").read_text())["classes"][3] == "3"
    with pytest.raises(
        ConfigError, match=r"export\(--output\): .* already exists; give another name"
    ):
        inference.export(str(run), str(path))


def test_what_cannot_be_used_is_one_line(run, tmp_path):
    from tfdist.programs import inference

    (tmp_path / "bad.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    for paths, problem in (
        ([str(tmp_path / "bad.png")], "bad.png' is not a readable image"),
        ([str(tmp_path / "empty")], "has no images; allowed: files of .png"),
        (["nowhere.png"], "'nowhere.png' does not exist"),
    ):
        with pytest.raises(ConfigError, match=problem):
            list(inference.predict(str(run), paths, 1))
    with pytest.raises(ConfigError, match="has no model.keras; give the --output-dir of a run"):
        inference.evaluate(str(tmp_path), None, None, 64)
    with pytest.raises(ConfigError, match="synthetic has 1000 classes"):
        inference.evaluate(str(run), "synthetic", None, 64)


def copied(run, folder):
    """A copy of a run that may be damaged, and its description."""
    for name in ("model.keras", "images.json"):
        (folder / name).write_bytes((run / name).read_bytes())
    return json.loads((run / "images.json").read_text())


def refused(folder):
    from tfdist.programs import saved_model

    with pytest.raises(ConfigError) as error:
        saved_model.load(str(folder), "evaluate")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipe": 3}, "is not the description of a model"),
        ({"recipe": {"crop": "pad"}}, "recipe: has ['crop']; allowed: crop, pad, flip, mean"),
        ({"classes": "0123456789"}, "classes: '0123456789' is not a list of names"),
        ({"classes": ["0"] * 9}, "is for height, width, channels and classes (16, 16, 3, ...)"),
        ({"image_shape": [16, 16, 10**9]}, "image_shape: 1000000000 is given; allowed: a whole"),
        ({"image_shape": [90_000, 90_000, 3]}, "is for height, width, channels and classes"),
        ({"image_shape": None}, "image_shape: None is not height, width and channels"),
        ({"dataset": ["digits"]}, "dataset: ['digits'] is not the name of a dataset"),
        ({"validation_split": 2}, "validation_split: 2 is given; allowed: a finite number"),
    ],
)
def test_a_wrong_description_is_one_line(run, tmp_path, changes, said):
    description = copied(run, tmp_path) | changes
    (tmp_path / "images.json").write_text(json.dumps(description))
    message = refused(tmp_path)
    assert message.startswith(f"evaluate: {tmp_path / 'images.json'}") and said in message


@pytest.mark.parametrize(
    "changes",
    [
        *({"crop": "all"}, {"pad": float("1e400")}, {"flip": "no"}, {"mean": 0.5}),
        *({"std": [0.0]}, {"std": []}, {"mean": [["0.1"]]}, {"default_size": 10**12}),
    ],
)
def test_a_wrong_recipe_is_one_line(run, tmp_path, changes):
    description = copied(run, tmp_path)
    description["recipe"] |= changes
    (tmp_path / "images.json").write_text(json.dumps(description).replace("Infinity", "1e400"))
    assert "recipe" in refused(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "", "9" * 5000, "[]", '{"a": 1, "a": 2}'])
def test_a_description_that_is_none_is_one_line(run, tmp_path, text):
    copied(run, tmp_path)
    (tmp_path / "images.json").write_text(text)
    assert "images.json" in refused(tmp_path)


def repacked(run, folder, change):
    """A copy of a run whose model has other files in it."""
    copied(run, folder)
    with zipfile.ZipFile(run / "model.keras") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    change(content)
    with zipfile.ZipFile(folder / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in content.items():
            archive.writestr(name, text)


def test_a_model_that_was_packed_again_is_read(run, tmp_path):
    from tfdist.programs import saved_model

    repacked(run, tmp_path, lambda content: None)
    assert saved_model.load(str(tmp_path), "evaluate").classes[3] == "3"


@pytest.mark.parametrize("name", ["config.json", "model.weights.h5", "assets/a"])
def test_a_model_that_unpacks_to_far_more_than_it_has_is_refused(run, tmp_path, name):
    repacked(run, tmp_path, lambda content: content.update({name: bytes(40 << 20)}))
    assert "bytes to 4" in refused(tmp_path) and (tmp_path / "model.keras").stat().st_size < 9 << 20


def test_weights_that_unpack_to_far_more_than_they_have_are_refused(run, tmp_path):
    import h5py

    def add(content):
        file = io.BytesIO(content["model.weights.h5"])
        with h5py.File(file, "r+") as weights:
            zeros = {"shape": (100 << 20,), "chunks": (1 << 20,), "compression": "gzip"}
            weights.create_dataset("bomb", dtype="float32", **zeros)
        content["model.weights.h5"] = file.getvalue()

    repacked(run, tmp_path, add)
    assert "bytes to 4" in refused(tmp_path)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2]])
def test_a_damaged_model_is_one_line(run, tmp_path, damage):
    copied(run, tmp_path)
    (tmp_path / "model.keras").write_bytes(damage((run / "model.keras").read_bytes()))
    assert "model.keras cannot be read: " in refused(tmp_path)
