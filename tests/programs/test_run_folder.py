"""The folder of a run: what continues there, and what is not written over."""

from __future__ import annotations

import pytest
import yaml

from tfdist.errors import ConfigError
from tfdist.programs.options import TrainOptions
from tfdist.programs.run_folder import open_run


def options(path, **given):
    return TrainOptions(model="small_cnn", output_dir=str(path / "run"), **given).settled()


def test_a_run_goes_on_with_more_epochs_and_other_replicas(tmp_path):
    open_run(options(tmp_path))
    folder = open_run(options(tmp_path, epochs=20, strategy="mirrored", per_replica_batch=8))
    assert yaml.safe_load((folder / "config.yaml").read_text())["epochs"] == 20


@pytest.mark.parametrize(
    ("given", "message"),
    [({"seed": 1}, "--seed 0, and 1 is given"), ({"ema": 0.9}, "--ema None, and 0.9 is given")],
)
def test_another_run_is_not_written_over(tmp_path, given, message):
    folder = open_run(options(tmp_path))
    (folder / "model.keras").write_text("trained")
    before = (folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=f"has a run with {message}; give another"):
        open_run(options(tmp_path, **given))
    assert (folder / "model.keras").read_text() == "trained"
    assert (folder / "config.yaml").read_text() == before


def test_overwrite_removes_the_run_and_nothing_else(tmp_path, monkeypatch):
    saved = options(tmp_path).checkpoint_dir
    folder = open_run(options(tmp_path))
    (folder / "checkpoints").mkdir()
    for name in ("model.keras", "history.json", "notes.txt", "checkpoints/checkpoint-1.tfdist"):
        (folder / name).write_text("")
    # The job was started again after a failure: what it has saved since must stay.
    monkeypatch.setenv("TFDIST_ATTEMPT", "2")
    open_run(options(tmp_path, overwrite=True))
    assert (folder / "checkpoints/checkpoint-1.tfdist").exists()
    monkeypatch.setenv("TFDIST_ATTEMPT", "1")
    open_run(options(tmp_path, overwrite=True, seed=1))
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {"checkpoints", "notes.txt", "config.yaml"}
    assert saved == str(folder / "checkpoints")


def test_what_follows_from_other_options():
    assert TrainOptions().settled().warmup_epochs == 1.0
    assert TrainOptions(epochs=1).settled().warmup_epochs == 0.5
    assert TrainOptions(epochs=1, warmup_epochs=0.0).settled().warmup_epochs == 0.0
    smoke = TrainOptions(smoke=True, epochs=90).settled()
    assert (smoke.epochs, smoke.limit_steps, smoke.warmup_epochs) == (1, 3, 0.5)
    assert TrainOptions().settled().checkpoint_dir is None
    assert TrainOptions(output_dir="a", checkpoint_dir="b").settled().checkpoint_dir == "b"
