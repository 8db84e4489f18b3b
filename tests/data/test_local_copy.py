"""Copies on a node's own disk: one for all processes, whole or not there, and read alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import Start
from tfdist.data import Source, load
from tfdist.data.local_copy import local_copy
from tfdist.errors import ConfigError

COPY = """
import os, resource, sys, time
import tensorflow as tf
from tfdist.data.local_copy import local_copy
from tfdist.errors import ConfigError
source, stage, log = sys.argv[1:]
real = tf.io.gfile.copy
def copy(path, into):
    with open(log, "a") as file:
        print(os.getpid(), path, file=file)
    {hook}
    real(path, into)
tf.io.gfile.copy = copy
try:
    print(local_copy(source, stage, timeout=60))
except ConfigError as error:
    print("refused:", error)
"""
SOON = 120


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of images of two classes."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for label in ("cat", "dog"):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (12, 10, 3)).astype("uint8")
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def start_copy(start: Start, photos: Path, tmp_path: Path) -> Start:
    """Starts processes that copy the folder."""

    def run(hook: str = "pass") -> subprocess.Popen[str]:
        return start(COPY.format(hook=hook), photos, tmp_path / "local", tmp_path / "log")

    return run


def batches(source: Source) -> list[Any]:
    return [*source.train(4)().as_numpy_iterator(), *source.test(4)().as_numpy_iterator()]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


def test_a_folder_is_read_from_its_copy(photos: Path, tmp_path: Path) -> None:
    expected = batches(load(f"folder:{photos}", image_size=8))
    staged = load(f"folder:{photos}", image_size=8, stage_dir=tmp_path / "local")
    shutil.rmtree(photos)
    assert staged.name == f"folder:{photos}"
    assert_same(batches(staged), expected)


@pytest.mark.long
def test_a_data_set_of_tfds_is_read_from_its_copy(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    own = load("digits", data_dir=shared)
    staged = load("digits", data_dir=shared, stage_dir=tmp_path / "local")
    assert repr(staged) == repr(own)
    assert_same(batches(staged), batches(own))
    for path in shared.rglob("*.tfrecord*"):
        path.write_bytes(b"")  # Nothing is read here any more.
    streamed = staged.train(500, cache=False).dataset()
    assert sum(len(labels) for _, labels in streamed) == 1500


def test_of_processes_at_once_one_copies(start_copy: Start, tmp_path: Path) -> None:
    processes = [start_copy("time.sleep(0.1)") for _ in range(3)]
    printed = {process.communicate(timeout=SOON)[0].strip() for process in processes}
    (place,) = printed
    assert len(list(Path(place).rglob("*.png"))) == 16
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 16 and len({line.split()[0] for line in lines}) == 1


def test_what_a_killed_process_left_is_written_over(start_copy: Start, tmp_path: Path) -> None:
    killed = start_copy("time.sleep(0.5)")
    log, deadline = tmp_path / "log", time.monotonic() + SOON
    while not log.exists() or len(log.read_text().splitlines()) < 4:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    (unfinished,) = (tmp_path / "local").glob("*/.unfinished")
    assert 0 < len(list(unfinished.rglob("*.png"))) < 16
    place = Path(start_copy().communicate(timeout=SOON)[0].strip())
    assert len(list(place.rglob("*.png"))) == 16 and not unfinished.exists()


def test_files_that_changed_are_copied_anew(photos: Path, tmp_path: Path) -> None:
    stage = str(tmp_path / "local")
    first = local_copy(str(photos), stage, timeout=5)
    assert local_copy(f"{photos}/", stage, timeout=5) == first
    Image.new("RGB", (12, 10)).save(photos / "train" / "cat" / "0.png")
    second = Path(local_copy(str(photos), stage, timeout=5))
    assert str(second) != first
    changed = second / "train" / "cat" / "0.png"
    assert changed.read_bytes() == (photos / "train" / "cat" / "0.png").read_bytes()


def test_a_disk_that_is_full(start_copy: Start, tmp_path: Path) -> None:
    out, _ = start_copy("resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))").communicate(
        timeout=SOON
    )
    assert out.startswith("refused: stage_dir: ") and "cannot be written (" in out
    assert out.count("\n") == 1
    assert not list((tmp_path / "local").glob("*/*"))


def test_a_disk_that_is_too_small(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match="has 0 MB free, and .*photos' has 0; give another disk"):
        local_copy(str(photos), str(tmp_path / "local"), timeout=5)
    assert not list((tmp_path / "local").glob("*/photos"))


def test_a_folder_that_cannot_be_written(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="stage_dir: cannot write .*; choose another stage_dir"):
        load(f"folder:{photos}", stage_dir=tmp_path / "file")


@pytest.mark.parametrize("name", ["synthetic", "os.path:join"])
def test_what_has_no_files_is_not_copied(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"given with {name}, which has no files"):
        load(name, stage_dir=tmp_path)


def test_no_folder_is_made_for_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        load("folder:/no/such", stage_dir=tmp_path / "local")
    assert os.listdir(tmp_path) == []
