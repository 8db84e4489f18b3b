"""Files are written whole or not at all, and a lock has one holder, whatever became of the last."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from tfdist import files
from tfdist.files import FileLock, NoLocksError, write_whole

HOLDER = """
import sys, time
from tfdist.files import FileLock

lock = FileLock(sys.argv[1])
assert lock.acquire(0, lambda: None)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
lock.release()
time.sleep(1000)
"""
TRY = """
import sys
from tfdist.files import FileLock

lock = FileLock(sys.argv[1])
print(lock.acquire(0, lambda: None), lock.holder)
"""


@pytest.fixture
def hold(tmp_path):
    """Starts a process that holds a lock for some seconds, and then lives on."""
    processes = []

    def start(seconds=1000):
        command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock"), str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def try_elsewhere(path):
    command = [sys.executable, "-c", TRY, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def take(lock, timeout=0.0):
    return lock.acquire(timeout, lambda: None)


def test_a_file_is_whole(tmp_path):
    path = tmp_path / "text"
    path.write_text("old")
    with write_whole(path) as new:
        new.write_text("a")
        assert path.read_text() == "old"
    assert path.read_text() == "a"
    assert os.listdir(tmp_path) == ["text"]


def test_a_folder_is_whole(tmp_path):
    with write_whole(tmp_path / "folder") as new:
        new.mkdir()
        (new / "text").write_text("a")
    assert os.listdir(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "text").read_text() == "a"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("folder", [False, True])
def test_of_one_that_fails_nothing_is_left(tmp_path, error, folder):
    (tmp_path / "text").write_text("old")
    with pytest.raises(error), write_whole(tmp_path / "text") as new:
        if folder:
            new.mkdir()
            (new / "inner").write_text("half")
        else:
            new.write_text("half")
        raise error
    assert os.listdir(tmp_path) == ["text"]
    assert (tmp_path / "text").read_text() == "old"


def test_the_name_ends_as_its_writer_needs_it(tmp_path):
    with write_whole(tmp_path / "model.keras", suffix=".keras") as new:
        assert new.suffix == ".keras"
        new.write_text("")
    assert os.listdir(tmp_path) == ["model.keras"]


def test_another_process_is_named(tmp_path, hold):
    process = hold()
    lock = FileLock(tmp_path / "lock")
    assert not take(lock, 0.3)
    assert lock.holder is not None and lock.holder.process == process.pid
    assert str(lock.holder).startswith(f"process {process.pid} on ")


def test_a_holder_that_is_about_to_end_is_waited_for(tmp_path, hold, monkeypatch):
    monkeypatch.setattr(files, "_FIRST_REPORT_SECONDS", 0.1)
    hold(seconds=1.0)
    reports = []
    assert FileLock(tmp_path / "lock").acquire(60, lambda: reports.append(1))
    assert reports == [1]


def test_a_killed_process_holds_nothing(tmp_path, hold):
    process = hold()
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock = FileLock(tmp_path / "lock")
    assert take(lock)
    lock.release()


def test_a_process_may_hold_a_shared_lock_more_than_once(tmp_path):
    path = tmp_path / "lock"
    first, second = FileLock(path, shared=True), FileLock(path, shared=True)
    assert take(first) and take(second) and take(first)
    first.release()
    assert try_elsewhere(path).startswith(f"False process {os.getpid()} on ")
    second.release()
    second.release()
    assert try_elsewhere(path) == "True None"


def test_threads_of_one_process_exclude_each_other(tmp_path):
    path = tmp_path / "lock"
    inside = []

    def work():
        lock = FileLock(path)
        assert take(lock, 60)
        inside.append(1)
        assert len(inside) == 1
        inside.pop()
        lock.release()

    threads = [threading.Thread(target=work) for _ in range(3)]
    first = FileLock(path)
    assert take(first)
    second = FileLock(path)
    assert not take(second)
    assert second.holder is not None and second.holder.process == os.getpid()
    for thread in threads:
        thread.start()
    # None of them has closed a file in a way that lets another process in.
    assert try_elsewhere(path).startswith("False")
    first.release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_forked_child_does_not_have_its_parents_lock(tmp_path):
    lock = FileLock(tmp_path / "lock", shared=True)
    assert take(lock)
    child = os.fork()
    if not child:
        os._exit(take(FileLock(tmp_path / "lock", shared=True)))
    assert os.waitpid(child, 0)[1] == 0
    assert try_elsewhere(tmp_path / "lock").startswith("False")
    lock.release()


@pytest.mark.parametrize("content", [b"", b"pid 4711 on node1", b"[]", b"\xff"])
def test_a_lock_that_names_nobody_is_taken(tmp_path, content):
    (tmp_path / "lock").write_bytes(content)
    lock = FileLock(tmp_path / "lock")
    assert take(lock)
    assert f'"process": {os.getpid()}' in (tmp_path / "lock").read_text()
    lock.release()


def test_a_link_is_not_followed(tmp_path):
    other, folder = tmp_path / "other", tmp_path / "folder"
    other.write_text("of somebody else")
    folder.mkdir()
    (folder / "lock").symlink_to(other)
    with pytest.raises(OSError, match="lock is a symbolic link; remove it"):
        take(FileLock(folder / "lock"))
    (folder / "dangling").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="dangling is a symbolic link; remove it"):
        take(FileLock(folder / "dangling"))
    assert other.read_text() == "of somebody else" and not (tmp_path / "new").exists()
    # Folders may be links: it is one lock, by whatever way.
    (tmp_path / "link").symlink_to(folder)
    lock = FileLock(tmp_path / "link" / "fine")
    assert take(lock) and not take(FileLock(folder / "fine"))
    lock.release()


def test_a_file_system_without_locks_is_an_error_of_its_own(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "lockf", none)
    with pytest.raises(NoLocksError) as error:
        take(FileLock(tmp_path / "lock"))
    assert error.value.strerror == "Operation not supported"
