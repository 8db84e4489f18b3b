"""TensorFlow's profiler, the arithmetic of layers and published figures agree."""

from __future__ import annotations

import keras
import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.models.named import named_model
from tfdist.models.operations import count_operations, multiply_adds


def strided_in_the_middle() -> keras.Model:
    """ResNet50 with the stride in a block's 3x3 convolution, often called v1.5."""
    layers = keras.layers

    def conv(x, filters, size, stride=1):
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((224, 224, 3))
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(conv(inputs, 64, 7, 2)))
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            stride = first if index == 0 else 1
            shortcut = conv(x, 4 * width, 1, stride) if index == 0 else x
            y = layers.ReLU()(conv(x, width, 1))
            y = layers.ReLU()(conv(y, width, 3, stride))
            x = layers.ReLU()(layers.Add()([shortcut, conv(y, 4 * width, 1)]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1000)(x))


def test_resnet50_is_that_of_the_paper():
    """Keras' has the stride in a block's first convolution, as He et al. 2016 have it.

    Their table 1 gives 3.8 G multiply-adds. The 4.1 G that are often quoted are of the stride in
    the 3x3 convolution (torchvision; NVIDIA's v1.5): 4.09 G.
    """
    count = count_operations(tfdist.models.resnet50())
    assert count.multiply_adds == pytest.approx(3.8e9, rel=0.02)
    assert count.multiply_adds == 3_857_973_248
    assert count.profiled_flop / 2 == pytest.approx(count.multiply_adds, rel=0.02)
    assert (count.parameters, count.trainable) == (25_636_712, 25_583_592)
    assert count.input_bytes == 602_112
    assert count.uncounted == ()


def test_resnet50_with_the_later_stride_has_the_quoted_number():
    count = count_operations(strided_in_the_middle())
    assert count.multiply_adds == pytest.approx(4.1e9, rel=0.02)
    assert count.profiled_flop / 2 == pytest.approx(4.1e9, rel=0.02)


LAYERS = {
    "dense": (lambda: keras.layers.Dense(7), (5, 3), 5 * 7 * 3),
    "valid": (lambda: keras.layers.Conv2D(4, 3), (8, 8, 2), 36 * 9 * 2 * 4),
    "strided": (lambda: keras.layers.Conv2D(4, 3, 2, padding="same"), (8, 8, 2), 16 * 9 * 2 * 4),
    "groups": (lambda: keras.layers.Conv2D(4, 3, groups=2), (8, 8, 2), 36 * 9 * 1 * 4),
    "one axis": (lambda: keras.layers.Conv1D(4, 3), (8, 2), 6 * 3 * 2 * 4),
    "depthwise": (
        lambda: keras.layers.DepthwiseConv2D(3, depth_multiplier=2),
        (8, 8, 3),
        36 * 9 * 6,
    ),
    "separable": (lambda: keras.layers.SeparableConv2D(5, 3), (8, 8, 2), 36 * (9 * 2 + 2 * 5)),
    "transposed": (lambda: keras.layers.Conv2DTranspose(4, 3, 2), (8, 8, 2), 64 * 9 * 2 * 4),
    "embedding": (lambda: keras.layers.Embedding(50, 8), (5,), 0),
    "batch norm": (lambda: keras.layers.BatchNormalization(), (8, 8, 2), 0),
    "lstm": (lambda: keras.layers.LSTM(3), (8, 2), None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_arithmetic_of_a_layer(name):
    make, shape, want = LAYERS[name]
    layer = make()
    layer(keras.Input(shape))
    assert multiply_adds(layer) == want


@pytest.mark.parametrize("name", ["dense", "valid", "strided", "depthwise", "separable"])
def test_the_profiler_agrees(name):
    make, shape, want = LAYERS[name]
    inputs = keras.Input(shape)
    count = count_operations(keras.Model(inputs, make()(inputs)))
    assert count.multiply_adds == want
    # It also counts an addition of the bias for each output.
    assert count.profiled_flop == 2 * want + count.activations


def test_layers_that_are_not_known_are_named():
    model = keras.Sequential([keras.Input((8, 2)), keras.layers.LSTM(3), keras.layers.Dense(1)])
    count = count_operations(model)
    assert count.multiply_adds == 3
    assert [name.split(" ")[1] for name in count.uncounted] == ["(LSTM)"]


def test_a_model_within_a_model_is_counted():
    inner = tfdist.models.small_cnn()
    outer = keras.Sequential([keras.Input((8, 8, 1)), inner])
    assert count_operations(outer).multiply_adds == count_operations(inner).multiply_adds


def test_shapes_that_are_not_fixed_are_refused():
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, keras.layers.Conv2D(2, 3)(inputs), name="open")
    with pytest.raises(ConfigError, match=r"plan\(--model\): 'open' has inputs of shapes"):
        count_operations(model)


def test_models_by_name(tmp_path):
    assert named_model("resnet50", 32, 10).output_shape == (None, 10)
    assert named_model("MobileNetV2", 96).input_shape == (None, 96, 96, 3)
    assert named_model("small_cnn", 12).input_shape == (None, 12, 12, 1)
    path = tmp_path / "saved.keras"
    tfdist.models.small_cnn().save(path)
    assert named_model(str(path)).count_params() == 1418


@pytest.mark.parametrize(
    ("name", "size", "problem"),
    [
        ("resnet51", None, "'resnet51' is given; allowed: resnet50, small_cnn, a file"),
        ("/none.keras", None, "is not a file"),
        ("x.keras", 32, "whose model has its own size"),
        ("resnet50", 16, "too small"),
        ("ResNet101", 8, "cannot be built with"),
    ],
)
def test_models_that_are_not_there(name, size, problem):
    with pytest.raises(ConfigError, match=problem):
        named_model(name, size)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "damaged.keras"
    path.write_bytes(b"PK\3\4 no archive")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        named_model(str(path))
