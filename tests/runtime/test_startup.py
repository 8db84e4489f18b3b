"""TensorFlow starts without its log lines, and no other output is lost meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.runtime import startup, tf_log_filter

LOG_LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795313136.429271    2109 port.cc:153] oneDNN custom operations are on.",
    "W0000 00:00:1795313136.429271    2109 gpu_device.cc:2431] Cannot dlopen some libraries",
    "E0000 00:00:1795313140.055905    2109 cuda_platform.cc:52] failed call to cuInit",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild.",
]


START = """
import os, sys
from tfdist.runtime.startup import start_tensorflow
start_tensorflow()
print("tensorflow" in sys.modules, os.environ.get("TF_CPP_MIN_LOG_LEVEL"))
"""
# In the place of TensorFlow: writes what it is given to standard error.
STAND_IN = """
import os
os.write(2, os.environ["SAYS"].encode())
class config:
    def list_physical_devices():
        os.write(2, b"E0000 00:00:1 of the devices\\nan error\\n")
"""


def started(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=kept | environment,
        timeout=120,
    )


def test_tensorflow_starts_and_logs_nothing() -> None:
    done = started(START + "import tfdist\ntfdist.virtual_devices(2)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 2\n", "")


@pytest.mark.parametrize(("given", "level"), [({}, "2"), ({"TF_CPP_MIN_LOG_LEVEL": "1"}, "1")])
def test_what_it_logs_at_its_start_is_filtered(
    tmp_path: Path, given: dict[str, str], level: str
) -> None:
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    says = "\n".join([LOG_LINES[0], "a warning", *LOG_LINES[1:], ""])
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = started(START, SAYS=says, PYTHONPATH=path, **given)
    assert (done.stdout, done.stderr) == (f"True {level}\n", "a warning\nan error\n")


@pytest.mark.parametrize("imported", ["keras", pytest.param("tensorflow", marks=pytest.mark.long)])
def test_a_script_that_imports_tfdist_first_is_quiet_too(imported: str) -> None:
    program = (
        f"import sys, tfdist\nassert 'tensorflow' not in sys.modules\nimport {imported}\n"
        "import tensorflow as tf\n"
        "assert not [f for f in sys.meta_path if type(f).__module__.startswith('tfdist')]\n"
        "tfdist.virtual_devices(2)\nprint(tf.reduce_sum(tf.ones(3)).numpy(), tf.__spec__.name)"
    )
    done = started(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3.0 tensorflow\n", "")
    assert "0000 " in started(program, TF_CPP_MIN_LOG_LEVEL="0").stderr


def test_other_output_of_an_import_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(STAND_IN + "raise ImportError('its own')\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    says = "\n".join([*LOG_LINES, "a warning", ""])
    program = "import tfdist\ntry:\n import tensorflow\nexcept ImportError as e:\n print(e)"
    done = started(program, SAYS=says, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("its own\n", "a warning\n")


def test_without_tensorflow_the_import_fails_as_usual(tmp_path: Path) -> None:
    program = (
        "import sys, tfdist\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        "try:\n import tensorflow\nexcept ModuleNotFoundError as error:\n print(error)"
    )
    done = started(program)
    assert (done.stdout, done.stderr) == ("No module named 'tensorflow'\n", "")


def test_where_it_is_imported_the_devices_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = started("import tensorflow\n" + START + START, SAYS="a warning\n", PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("True 2\nTrue 2\n", "a warning\nan error\n")


def test_nothing_is_done_where_the_user_wants_the_log_lines() -> None:
    done = started(START, TF_CPP_MIN_LOG_LEVEL="0")
    assert (done.stdout, done.stderr) == ("False 0\n", "")


def test_log_lines_are_dropped_and_the_rest_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    kept = ["  I0000 is not at the start", "I0001 something else", "a line of a user's", ""]
    with tf_log_filter.filtered_stderr():
        for line in [*LOG_LINES, *kept, *LOG_LINES]:
            os.write(2, f"{line}\n".encode())
        print("of Python", file=sys.stderr)
        print("to standard output")
        os.write(2, b"without an end")
    written = capfd.readouterr()
    assert written.out == "to standard output\n"
    assert sorted(written.err.split("\n")) == sorted([*kept, "of Python", "without an end"])


def test_other_output_is_not_lost_when_the_import_fails(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ImportError), tf_log_filter.filtered_stderr():
        os.write(2, LOG_LINES[0].encode() + b"\nthe reason\n")
        raise ImportError
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "the reason\nafterwards\n"


BACKEND = """
from tfdist.errors import ConfigError
from tfdist.runtime.startup import _check_backend
try:
    _check_backend()
except ConfigError as error:
    print(error)
"""


def test_onednn_is_preferred_unless_the_user_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "to be put back as it was")
    for given, expected in ((None, "1"), ("0", "0"), ("1", "1")):
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
        if given is not None:
            monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", given)
        startup.prefer_onednn()
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == expected
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    startup.prefer_onednn()
    assert "TF_ENABLE_ONEDNN_OPTS" not in os.environ


ABSL = """
from absl import app
import tfdist
def main(argv):
    tfdist.virtual_devices(2)
    tfdist.mirrored_strategy()
app.run(main)
"""


def test_a_script_of_absl_is_not_told_what_tensorflow_does_inside() -> None:
    done = started(ABSL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Using MirroredStrategy" in started(ABSL, TF_CPP_MIN_LOG_LEVEL="0").stderr
    level = "import logging\nlogging.getLogger('tensorflow').setLevel('INFO')\n"
    assert "Using MirroredStrategy" in started(level + ABSL).stderr


def test_another_backend_of_keras_is_refused(tmp_path: Path) -> None:
    home = {"KERAS_HOME": str(tmp_path)}
    assert started(BACKEND, **home).stdout == ""
    tmp_path.joinpath("keras.json").write_text('{"backend": "tensorflow"}')
    assert started(BACKEND, **home).stdout == ""
    tmp_path.joinpath("keras.json").write_text('{"backend": "torch"}')
    file = f"{tmp_path}/keras.json: 'torch' is given; allowed: tensorflow, which tf.distribute is"
    assert started(BACKEND, **home).stdout.startswith(file)
    assert started(BACKEND, KERAS_BACKEND="tensorflow", **home).stdout == ""
    jax = started(BACKEND, KERAS_BACKEND="jax", **home)
    assert jax.stdout.startswith("KERAS_BACKEND: 'jax' is given; allowed: tensorflow")
