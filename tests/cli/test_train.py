"""Flags of `tfdist train`, wrong ones above all. None of this imports TensorFlow."""

import os
import subprocess
import sys

import pytest

from tfdist import cli
from tfdist.cli import train
from tfdist.cluster import documents
from tfdist.errors import ConfigError


def test_the_defaults_are_those_of_the_run():
    options = train.parse([])
    assert options["dataset"] == "digits"
    assert options["model"] == "resnet50"
    assert options["per_replica_batch"] == 32


def test_flags_are_read():
    options = train.parse(["--epochs=3", "--strategy", "mirrored"])
    assert (options["epochs"], options["strategy"]) == (3, "mirrored")


@pytest.mark.parametrize(
    "argv",
    [
        ["--per-replica-batch", "16", "--no-augment", "--output-dir", "a-b_c"],
        ["--per_replica_batch", "16", "--noaugment", "--output_dir", "a-b_c"],
        ["--per-replica_batch=16", "--no_augment", "--output-dir=a-b_c"],
        ["-per-replica-batch=16", "--augment=false", "--output_dir=a-b_c"],
    ],
)
def test_dashes_and_underscores_are_the_same(argv):
    options = train.parse(argv)
    found = (options["per_replica_batch"], options["augment"], options["output_dir"])
    assert found == (16, False, "a-b_c")


def test_a_value_is_left_as_it_is():
    options = train.parse(["--output-dir=--data-dir", "--epochs", "2"])
    assert (options["output_dir"], options["data_dir"], options["epochs"]) == (
        "--data-dir",
        None,
        2,
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--strategy=tpu", "one_device"),
        ("--epochs=0", "epochs"),
        ("--epochs=many", "epochs"),
        ("--rule=cubic", "linear"),
        ("--colour=red", "colour"),
        ("--strategy", "argument --strategy: expected one argument"),
        ("surplus", "surplus"),
        ("--noaugment=3", "noaugment"),
        ("--no-epochs", "no-epochs"),
    ],
)
def test_a_wrong_flag_is_one_line(argument, message):
    with pytest.raises(ConfigError) as error:
        train.parse([argument])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_it_ends_with_2_and_without_tensorflow():
    script = (
        "import sys; from tfdist import cli; code = cli.main(['train', '--optimizer=lars']); "
        "sys.exit(code if 'tensorflow' not in sys.modules else 99)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "allowed: sgd, adam, adamw" in done.stderr


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    for name in [*train.parse([]), "config"]:
        dashed = name.replace("_", "-")
        assert f"  --{dashed} " in out or f"  --[no-]{dashed}" in out


def test_a_file_of_flags_is_read_and_the_command_line_wins(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "epochs: 7\nper-replica-batch: 8\naugment: false\nema: null\nwarmup_epochs: 2\n"
        "profile_tasks: [worker/0, worker/1]\n"
    )
    options = train.parse([f"--config={config}", "--epochs=3"])
    assert (options["epochs"], options["per_replica_batch"]) == (3, 8)
    assert (options["augment"], options["ema"], options["warmup_epochs"]) == (False, None, 2.0)
    assert options["profile_tasks"] == ["worker/0", "worker/1"]
    assert "config" not in options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 7", "'epoch' is not a flag of tfdist train; did you mean 'epochs'?"),
        ("epochs: many", "epochs"),
        ("rule: cubic", "linear"),
        ("- epochs", "holds a list; allowed: flags and their values"),
        ("epochs: 7\n---\nepochs: 8", "holds 2 documents; allowed: flags and their values"),
        ("", "holds 0 documents"),
        ("a: b: c", "is not YAML"),
        (None, "cannot be read: No such file or directory"),
        ("epochs: {a: 1}", "--epochs: an object is given; allowed: one value"),
        ("profile_tasks: [[worker/0]]", "--profile-tasks: a list is given; allowed: one value"),
        ("epochs: 2020-01-01", "--epochs: a date is given"),
        (f"epochs: {'9' * 5000}", "has a number of 5000 characters"),
        (f"epochs: 0x{'f' * 900}", "--epochs: "),
        (f"base_learning_rate: {'9' * 900}", "--base-learning-rate: "),
        ("[" * 100_000, "is not YAML that can be read"),
        ("epochs: 7\nepochs: 8", "has the key 'epochs' twice"),
        (
            "a0: &a0 [1]\n"
            + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 30)),
            "'a0' is not a flag",
        ),
        (
            "dataset: &a [x]\nmodel: &b [*a, *a]\nprofile_tasks: [*b, *b]",
            "--model: a list is given",
        ),
    ],
)
def test_a_file_of_wrong_flags_is_one_line(tmp_path, text, message):
    config = tmp_path / "config.yaml"
    if text is not None:
        config.write_text(text)
    with pytest.raises(ConfigError) as error:
        train.parse([f"--config={config}"])
    assert message in str(error.value) and "train(--config)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    monkeypatch.setattr(documents, "_PIPE_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=r"train\(--config\): .* has not been written to its end"):
        train.parse([f"--config={path}"])
    os.close(writer)
    with pytest.raises(ConfigError, match=r"train\(--config\): /dev/zero: has more than 8 MB"):
        train.parse(["--config=/dev/zero"])


def test_what_a_run_writes_is_such_a_file(tmp_path):
    from tfdist.programs.options import PLACES, TrainOptions

    config = tmp_path / "config.yaml"
    config.write_text(TrainOptions(epochs=3, ema=0.5, smoke=True).to_yaml())
    options = train.parse([f"--config={config}"])
    options.pop("wait")
    assert TrainOptions(**options) == TrainOptions(epochs=3, ema=0.5, smoke=True)
    assert not any(place in config.read_text() for place in PLACES)
