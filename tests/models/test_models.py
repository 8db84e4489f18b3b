"""What the models promise: size, names, precision, starting weights."""

import keras
import numpy as np
import pytest

from tfdist.errors import ConfigError
from tfdist.models import resnet50, small_cnn


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return resnet50((32, 32, 3), 10)


def norms(model):
    return [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]


def test_resnet50_is_keras_resnet50(model):
    reference = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    assert model.count_params() == reference.count_params() == 23_608_202
    assert sum(int(np.prod(w.shape)) for w in model.trainable_weights) == 23_555_082
    names = [layer.name for layer in model.layers]
    assert names[1:] == [layer.name for layer in reference.layers][1:]
    reference.set_weights(model.get_weights())
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    np.testing.assert_allclose(
        model.predict(images, verbose=0), reference.predict(images, verbose=0), rtol=1e-5
    )


def test_batch_norm_settings_reach_every_layer_and_the_saved_file(tmp_path):
    model = resnet50(
        (32, 32, 1), 3, batch_norm_momentum=0.8, synchronized_batch_norm=True, zero_gamma=True
    )
    model.save(tmp_path / "model.keras")
    for made in (model, keras.models.load_model(tmp_path / "model.keras")):
        layers = norms(made)
        assert len(layers) == 53
        assert {layer.momentum for layer in layers} == {0.8}
        assert all(layer.synchronized for layer in layers)
        zero = [layer.name for layer in layers if not np.any(layer.gamma.numpy())]
        assert len(zero) == 16
        assert all(name.endswith("_3_bn") for name in zero)


def test_defaults_are_plain_with_momentum_for_short_runs(model):
    assert {layer.momentum for layer in norms(model)} == {0.9}
    assert not any(layer.synchronized for layer in norms(model))


def test_output_is_float32_under_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        mixed = resnet50((32, 32, 3), 10)
        small = small_cnn()
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert mixed.get_layer("conv1_conv").compute_dtype == "bfloat16"
    assert mixed.output.dtype == "float32"
    assert str(mixed(np.zeros((1, 32, 32, 3), "float32")).dtype).endswith("float32'>")
    assert small.output.dtype == "float32"


def test_starting_weights(model, tmp_path):
    path = tmp_path / "saved.keras"
    model.save(path)
    same = resnet50((32, 32, 3), 10, weights=path)
    for got, want in zip(same.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.long
def test_starting_weights_for_other_classes(model, tmp_path):
    path = tmp_path / "saved.weights.h5"
    model.save_weights(path)
    fresh_head = resnet50((64, 64, 3), 4, weights=str(path))
    assert fresh_head.output_shape == (None, 4)
    for got, want in zip(fresh_head.get_weights()[:-2], model.get_weights()[:-2], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.long
def test_weights_that_do_not_fit(model, tmp_path):
    model.save_weights(tmp_path / "colour.weights.h5")
    with pytest.raises(ConfigError, match=r"resnet50\(weights\): .* 1 channels") as caught:
        resnet50((32, 32, 1), 10, weights=tmp_path / "colour.weights.h5")
    assert "\n" not in str(caught.value)
    small_cnn().save_weights(tmp_path / "small.weights.h5")
    with pytest.raises(ConfigError, match="does not fit"):
        resnet50((32, 32, 3), 10, weights=tmp_path / "small.weights.h5")
    with pytest.raises(ConfigError, match=r"resnet50\(weights\): .* is not a file"):
        resnet50((32, 32, 3), 10, weights=tmp_path / "absent.weights.h5")
    (tmp_path / "text.weights.h5").write_text("no weights")
    with pytest.raises(ConfigError, match="does not fit"):
        resnet50((32, 32, 3), 10, weights=tmp_path / "text.weights.h5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (8, 8, 1)}, r"^resnet50\(input_shape\): 8 x 8 is too small"),
        ({"input_shape": (32, 32)}, r"^resnet50\(input_shape\): \(32, 32\) is not"),
        ({"classes": 0}, r"^resnet50\(classes\): 0 is not"),
        ({"batch_norm_momentum": 1.0}, r"^resnet50\(batch_norm_momentum\): 1.0 is not"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        resnet50(**arguments)


@pytest.mark.parametrize("kind", ["none", "plain", "synchronized"])
def test_small_cnn(kind):
    model = small_cnn((8, 8, 1), 10, batch_norm=kind)
    assert model.count_params() < 2000
    assert len(norms(model)) == (0 if kind == "none" else 2)
    assert all(layer.synchronized == (kind == "synchronized") for layer in norms(model))
    assert model(np.zeros((2, 8, 8, 1), "float32")).shape == (2, 10)


def test_small_cnn_kinds():
    with pytest.raises(ConfigError, match=r"^small_cnn\(batch_norm\): 'sync' is not one of none"):
        small_cnn(batch_norm="sync")
