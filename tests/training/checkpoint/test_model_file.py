"""What a trainer saves: whole or not at all, by the chief alone."""

from __future__ import annotations

import re
from types import SimpleNamespace

import keras
import pytest

import tfdist
from tfdist.errors import ConfigError
from tfdist.training.checkpoint.model_file import save_model


def test_a_model_that_was_good_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    save_model(model, path)
    good = path.read_bytes()

    def broken_off(self, file):
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "save", broken_off)
        with pytest.raises(KeyboardInterrupt):
            save_model(model, path)
    assert path.read_bytes() == good


def test_the_chief_saves_and_the_others_do_not(devices, tmp_path):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    trainer = tfdist.Trainer(model)
    trainer.save(tmp_path / "model.keras")
    there = keras.models.load_model(tmp_path / "model.keras").get_weights()
    assert all((a == b).all() for a, b in zip(there, model.get_weights(), strict=True))
    trainer._group = SimpleNamespace(is_chief=False)
    trainer.save(tmp_path / "other.keras")
    assert not (tmp_path / "other.keras").exists()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("model.h5", "allowed: a name.keras"), ("no/folder/model.keras", "cannot be written")],
)
def test_a_place_that_cannot_be_is_one_line(tmp_path, name, problem):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match=re.escape(problem)):
        save_model(model, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
