"""Models of the trainer program: by name, and by a function of the user's."""

from __future__ import annotations

import textwrap

import keras
import pytest

from tfdist import data
from tfdist.errors import ConfigError
from tfdist.programs.model import make_model
from tfdist.programs.options import TrainOptions
from tfdist.programs.train import make_plan, open_source

FUNCTIONS = """
    import keras

    def plain(input_shape, classes):
        return keras.Sequential([
            keras.Input(input_shape), keras.layers.Flatten(),
            keras.layers.Dense(classes, "softmax"),
        ])

    def compiled(classes):
        model = plain((32, 32, 3), classes)
        model.compile("adadelta", "sparse_categorical_crossentropy")
        return model

    def other_classes(input_shape):
        return plain(input_shape, 3)

    def no_model():
        return 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module in the working directory."""
    name = f"mine_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FUNCTIONS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    return name


def made(**given):
    options = TrainOptions(dataset="synthetic", **given).settled()
    source = data.load("synthetic", image_size=32, num_classes=10, num_examples=320)
    return make_model(options, source, make_plan(options, source, 1))


def test_a_model_of_keras_applications():
    model = made(model="MobileNet", optimizer="adamw", weight_decay=0.01, clip_norm=2.0, ema=0.99)
    assert (model.input_shape, model.output_shape) == ((None, 32, 32, 3), (None, 10))
    optimizer = model.optimizer
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (0.01, 2.0)
    assert (optimizer.use_ema, optimizer.ema_momentum) == (True, 0.99)


def test_functions_of_the_users(mine):
    model = made(model=f"{mine}:plain", label_smoothing=0.1)
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert model.loss.label_smoothing == 0.1
    assert isinstance(made(model=f"{mine}:compiled").optimizer, keras.optimizers.Adadelta)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"model": "ResNet5O"}, "allowed: resnet50, .*did you mean 'ResNet50'"),
        ({"model": "M:compiled", "optimizer": "adam"}, "optimizer.: adam is given, but the model"),
        ({"model": "M:other_classes"}, r"outputs of shape \(None, 3\); allowed: \(None, 10\)"),
        ({"model": "M:no_model"}, "returns int; allowed: a keras.Model"),
        ({"model": "M:missing"}, "'missing'.; give package.module:function"),
        ({"model": "nowhere.at.all:f"}, "No module named 'nowhere'"),
        ({"model": "MobileNet", "synchronized_batch_norm": True}, "its own layers"),
    ],
)
def test_what_cannot_be_trained_is_one_line(mine, given, problem):
    given = {**given, "model": given["model"].replace("M:", f"{mine}:")}
    with pytest.raises(ConfigError, match=problem) as error:
        made(**given)
    assert "\n" not in str(error.value)


def test_images_have_their_own_size_and_32_pixels_at_least(tmp_path):
    digits = {"data_dir": str(tmp_path)}
    assert open_source(TrainOptions(**digits)).image_shape == (32, 32, 3)
    assert open_source(TrainOptions(image_size=16, **digits)).image_shape == (16, 16, 3)
    assert open_source(TrainOptions(dataset="synthetic")).image_shape == (32, 32, 3)
