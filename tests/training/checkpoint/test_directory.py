"""A directory of checkpoints: whole ones only, damaged ones refused, the last few kept."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tfdist.errors import CheckpointError, ConfigError
from tfdist.files import FileLock
from tfdist.training.checkpoint import directory as module
from tfdist.training.checkpoint import file as checkpoint_file
from tfdist.training.checkpoint.directory import LOCK, CheckpointDirectory
from tfdist.training.checkpoint.file import DamagedError, decode


def arrays_of(number):
    generator = np.random.default_rng(number)
    return {
        "model/0": generator.normal(size=(7, 3)).astype("float32"),
        "model/1": np.asarray(number, "int64"),
        "empty": np.zeros((0, 4), "float16"),
    }


def fill(folder, numbers, keep=3):
    directory = CheckpointDirectory(folder, keep)
    directory.prepare()
    for number in numbers:
        directory.add(number, {"number": number}, arrays_of(number))
        directory.wait()
    return directory


def names(folder):
    return sorted(name for name in os.listdir(folder) if name != LOCK)


def newest_number(folder):
    """The number of the newest intact checkpoint, all of whose content has been checked."""
    found = CheckpointDirectory(folder, 3).newest()
    assert found is not None
    path, content = found
    number = content.manifest["number"]
    with content:
        for name, array in arrays_of(number).items():
            np.testing.assert_array_equal(content.read(name), array, strict=True)
    assert path.name == f"checkpoint-{number:010d}.tfdist"
    return number


def test_the_first_line_says_what_the_file_is(tmp_path):
    fill(tmp_path, [1])
    first, second, _ = (tmp_path / "checkpoint-0000000001.tfdist").read_bytes().split(b"\n", 2)
    assert first.startswith(b"tfdist-checkpoint 1 ")
    assert [entry["name"] for entry in json.loads(second)["arrays"]] == list(arrays_of(1))


def test_the_last_few_are_kept(tmp_path):
    fill(tmp_path, [1, 5, 12, 100], keep=2)
    assert names(tmp_path) == ["checkpoint-0000000012.tfdist", "checkpoint-0000000100.tfdist"]
    assert newest_number(tmp_path) == 100


def test_an_empty_or_absent_directory_holds_none(tmp_path):
    assert CheckpointDirectory(tmp_path, 3).newest() is None
    assert CheckpointDirectory(tmp_path / "absent", 3).newest() is None


def damage(path, kind, generator):
    data = bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
        return
    if kind == "truncate":
        data = data[: generator.randrange(len(data))]
    elif kind == "flip":
        at = generator.randrange(len(data))
        data[at] ^= 1 << generator.randrange(8)
    elif kind == "append":
        data += b"\0"
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["truncate", "flip", "delete", "append"])
def test_damage_is_never_loaded(tmp_path, capsys, kind):
    """100 times each: the one before is used, and the damaged one named."""
    generator = random.Random(kind)
    fill(tmp_path / "intact", [1, 2, 3])
    for trial in range(100):
        folder = tmp_path / str(trial)
        shutil.copytree(tmp_path / "intact", folder)
        hit = generator.sample([1, 2, 3], generator.randrange(1, 4))
        for number in hit:
            damage(folder / f"checkpoint-{number:010d}.tfdist", kind, generator)
        intact = [number for number in (1, 2, 3) if number not in hit]
        capsys.readouterr()
        if intact:
            assert newest_number(folder) == max(intact)
            newer = [number for number in hit if number > max(intact)]
        elif kind == "delete":
            assert CheckpointDirectory(folder, 3).newest() is None
            newer = []
        else:
            with pytest.raises(ConfigError, match="holds no intact checkpoint"):
                CheckpointDirectory(folder, 3).newest()
            newer = hit
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (0 if kind == "delete" else len(newer))
        for number, line in zip(sorted(newer, reverse=True), lines, strict=False):
            assert f"checkpoint-{number:010d}.tfdist cannot be used: " in line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"PK\3\4 some archive", "does not begin as a checkpoint"),
        (b"tfdist-checkpoint 1 abc 5\nhell", "it has 4 bytes of 5"),
        (b"tfdist-checkpoint 1 abc 5\nhello", "checksum"),
        (b"tfdist-checkpoint 1 abc x\nhello", "does not begin"),
        (b"tfdist-checkpoint 2 abc 5\nhello", "checksum"),
    ],
)
def test_what_is_damaged_is_named(data, message):
    with pytest.raises(DamagedError, match=message):
        decode(data)


def test_a_newer_versions_checkpoint_is_not_trained_past(tmp_path):
    fill(tmp_path, [1, 2])
    path = tmp_path / "checkpoint-0000000002.tfdist"
    path.write_bytes(path.read_bytes().replace(b"tfdist-checkpoint 1", b"tfdist-checkpoint 2"))
    with pytest.raises(ConfigError, match=r"0002.tfdist is of another version.*format 2") as caught:
        CheckpointDirectory(tmp_path, 3).newest()
    assert "\n" not in str(caught.value)


def test_a_fifo_is_passed_over(tmp_path):
    fill(tmp_path, [1])
    os.mkfifo(tmp_path / "checkpoint-0000000002.tfdist")
    assert newest_number(tmp_path) == 1


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path):
    fill(tmp_path, [1, 2, 3], keep=3)
    (tmp_path / "checkpoint-0000000003.tfdist").write_bytes(b"")
    directory = CheckpointDirectory(tmp_path, 2)
    path, found = directory.newest()
    found.close()
    assert path.name == "checkpoint-0000000002.tfdist"
    directory.add(4, {"number": 4}, arrays_of(4))
    directory.wait()
    # The two that are intact, and the damaged one between them.
    assert [name[-8] for name in names(tmp_path)] == ["2", "3", "4"]
    assert newest_number(tmp_path) == 4


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    left = tmp_path / ".checkpoint-0000000001.tfdist.4711.tmp"
    left.write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("the user's own")
    assert CheckpointDirectory(tmp_path, 3).newest() is None
    fill(tmp_path, [1])
    assert names(tmp_path) == ["checkpoint-0000000001.tfdist", "notes.txt"]


def test_a_new_checkpoint_is_told_to_whoever_starts_the_job_again(tmp_path, monkeypatch):
    saved, folder = tmp_path / "saved", tmp_path / "checkpoints"
    monkeypatch.setenv("TFDIST_SAVED", str(saved))
    fill(folder, [1])
    assert saved.exists()
    saved.unlink()
    fill(folder, [1])  # Stopped again at the same step.
    assert not saved.exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"checkpoint_dir: '.*/file/x' cannot be written to"):
        CheckpointDirectory(tmp_path / "file" / "x", 3).prepare()


def test_a_read_only_directory_is_named():
    # The kernel's own: not even root can make files there.
    with pytest.raises(ConfigError, match="checkpoint_dir: '/proc/self' cannot be written to"):
        CheckpointDirectory("/proc/self", 3).prepare()


HOLDER = """
import sys
from tfdist.files import FileLock

assert FileLock(sys.argv[1]).acquire(0, lambda: None)
print("held", flush=True)
sys.stdin.read()
"""


def test_another_job_is_named_and_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.3)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / LOCK)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        message = rf"in use by another job \(process {process.pid} on .*, since .*\); give"
        with pytest.raises(ConfigError, match=message):
            CheckpointDirectory(tmp_path, 3).prepare()
    CheckpointDirectory(tmp_path, 3).prepare()


def test_two_trainers_of_a_process_may_use_it(tmp_path):
    first, second = CheckpointDirectory(tmp_path, 3), CheckpointDirectory(tmp_path, 3)
    first.prepare()
    second.prepare()
    first.release()
    second.release()
    lock = FileLock(tmp_path / LOCK)
    assert lock.acquire(0, lambda: None)
    lock.release()


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.lockf", none)
    said = []
    monkeypatch.setattr(module.LOGGER, "warning", lambda text, *args: said.append(text % args))
    directory = CheckpointDirectory(tmp_path, 3)
    directory.prepare()
    directory.release()
    assert len(said) == 1 and "has no locks (Operation not supported)" in said[0]


def test_a_full_disk_surfaces_at_the_next_save_and_harms_nothing(tmp_path, monkeypatch):
    directory = fill(tmp_path, [1, 2])

    def full(*content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "begin", full)
        directory.add(3, {}, {})
        with pytest.raises(CheckpointError, match=r"could not be written \(No space left"):
            directory.add(4, {}, {})
    assert newest_number(tmp_path) == 2
    assert len(names(tmp_path)) == 2


def test_a_limit_on_file_size_leaves_nothing_half_written(tmp_path):
    directory = fill(tmp_path, [1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        directory.add(2, {"number": 2}, {"big": np.zeros(1_000_000)})
        with pytest.raises(CheckpointError, match="File too large"):
            directory.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert names(tmp_path) == ["checkpoint-0000000001.tfdist"]
    assert newest_number(tmp_path) == 1


def test_a_vanished_directory_is_not_made_again(tmp_path):
    folder = tmp_path / "volume"
    directory = fill(folder, [1])
    shutil.rmtree(folder)
    directory.add(2, {}, {})
    with pytest.raises(CheckpointError, match="No such file or directory"):
        directory.wait()
    assert not folder.exists()


def test_the_background_error_is_seen_without_waiting(tmp_path):
    directory = CheckpointDirectory(tmp_path / "absent", 3)
    directory.add(1, {}, {})
    with pytest.raises(CheckpointError):
        directory.check()
    directory.check()


SAVER = """
import os, random, signal, sys, time
import numpy as np
from tfdist.training.checkpoint.directory import CheckpointDirectory

folder, kills = sys.argv[1], int(sys.argv[2])
def number_of(name):
    return int(name[11:21]) if name.endswith(".tfdist") else 0
generator = random.Random("kills")
array = np.arange(2_000_000, dtype="int64")
caught = 0
for kill in range(kills):
    first = 1 + 1000 * kill
    child = os.fork()
    if not child:
        directory = CheckpointDirectory(folder, 3)
        directory.prepare()
        for number in range(first, first + 1000):
            directory.add(number, {"number": number}, {"x": array + number})
            directory.wait()
    end = time.monotonic() + 60
    while not any(first <= number_of(name) for name in os.listdir(folder)):
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(generator.uniform(0.0, 0.15))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    caught += any(name.endswith(".tmp") for name in os.listdir(folder))
    found = CheckpointDirectory(folder, 3).newest()
    assert found is not None
    number = found[1].manifest["number"]
    assert number >= first, (number, first)
    assert (found[1].read("x") == array + number).all()
    found[1].close()
print(f"{kills} kills, {caught} in the midst of writing")
"""


def killed_savers(folder, kills):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SAVER, str(folder), str(kills)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    assert "refused" not in result.stderr
    return result.stdout


def test_kill_during_a_save_leaves_the_one_before(tmp_path):
    out = killed_savers(tmp_path, 20)
    assert int(out.split()[2]) > 0, out  # Some were in the midst of it.
