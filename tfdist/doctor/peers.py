"""Asks all tasks of a cluster the same questions, once TensorFlow has connected them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.collectives.process_group import ProcessGroup

# Seconds for a file of another machine to be seen: network file systems cache what is missing.
_SEEN = 5.0


class Peers(Protocol):
    """The tasks of a cluster, with the questions that one of them may ask.

    Attributes:
        tasks: Their names, the chief's first.
    """

    tasks: list[str]

    def clocks(self) -> list[float]:
        """Returns by how many seconds each task's clock is ahead of the first task's."""

    def check_folder(self, folder: str) -> list[str]:
        """Returns what is wrong with the folder in each task, "" where it is the chief's folder."""


class Workers:
    """Workers that step together; each of them asks, at the same point.

    Args:
        group: The workers.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.tasks = group.tasks or [group.task]

    def exchange(self, value: Any) -> list[Any]:
        """Sends a value to all workers; returns the values of all, in their order."""
        data = json.dumps(value).encode()
        size = max(self._group.exchange(len(data)))
        return [json.loads(part) for part in self._group.gather(data, size)]

    def clocks(self) -> list[float]:
        """Returns by how many seconds each worker's clock is ahead of the first one's."""
        self._group.exchange(0)  # All ask at about the same time.
        times = self.exchange(time.time())
        return [seconds - times[0] for seconds in times]

    def check_folder(self, folder: str) -> list[str]:
        """Returns what is wrong with the folder in each worker.

        Each writes a file to its folder and looks for those of the others.
        """
        mark = self.exchange(secrets.token_hex(8))[0]
        files = [f".tfdist-doctor-{mark}-{task.replace('/', '-')}" for task in self.tasks]
        own = Path(folder) / files[self._group.layout.worker]
        problem = _write(own) if folder else "was given no directory"
        self._group.exchange(0)  # All have written.
        missing = [] if problem else _missing(Path(folder), files)
        results = self.exchange([problem, [files.index(name) for name in missing]])
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)
        return folder_problems(self.tasks[0], results)


class Servers:
    """The workers and ps tasks of a chief, which alone asks, by operations that it runs on them.

    Args:
        cluster: The cluster of the chief.
    """

    def __init__(self, cluster: Cluster) -> None:
        others = [task for task in cluster.tasks if task.type in ("worker", "ps")]
        self._devices = [f"/job:{t.type}/replica:0/task:{t.index}/device:CPU:0" for t in others]
        self.tasks = [str(cluster.task), *map(str, others)]

    def clocks(self) -> list[float]:
        """Returns by how many seconds each task's clock is ahead of the chief's."""
        ahead = [0.0]
        for device in self._devices:
            before = time.time()
            with tf.device(device):
                remote = float(tf.timestamp().numpy())
            ahead.append(remote - (before + time.time()) / 2)
        return ahead

    def check_folder(self, folder: str) -> list[str]:
        """Returns what is wrong with the folder in each task; only the chief writes to it."""
        file = Path(folder) / f".tfdist-doctor-{secrets.token_hex(8)}"
        problem = _write(file)
        found = [problem]
        for device in self._devices:
            with tf.device(device):
                seen = tf.io.matching_files(os.fspath(file)).shape[0]
            found.append("" if seen or problem else f"does not see the file of {self.tasks[0]}")
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        return found


def folder_problems(chief: str, results: Sequence[tuple[str, list[int]]]) -> list[str]:
    """Returns what is wrong with each task's directory, "" where it is the chief's directory.

    Args:
        chief: The first task, which alone saves.
        results: Of each task, why it cannot write to its directory, and the numbers of the tasks
            whose files it does not see.
    """
    (chiefs_problem, chief_misses), *others = results
    found = [chiefs_problem]
    for index, (problem, missing) in enumerate(others, start=1):
        if not problem and 0 in missing and not chiefs_problem:
            problem = f"has another directory, without the file of {chief}"
        elif not problem and index in chief_misses:
            problem = f"has written a file there that {chief} does not see"
        found.append(problem)
    return found


def _write(file: Path) -> str:
    """Writes a file; returns why it cannot be written, "" where it can."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"tfdist doctor\n")
    except OSError as error:
        return f"cannot write to it ({error.strerror})"
    return ""


def _missing(folder: Path, files: list[str]) -> list[str]:
    """Returns the files that do not appear in a folder in time."""
    end = time.monotonic() + _SEEN
    while True:
        present = set(os.listdir(folder))
        missing = [name for name in files if name not in present]
        if not missing or time.monotonic() > end:
            return missing
        time.sleep(0.1)
