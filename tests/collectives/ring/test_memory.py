"""Memory of other processes: what is no such memory is refused, and at once."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from tests import forked
from tfdist.collectives.ring.memory import _map


def test_the_memory_of_another_process_is_read():
    file = os.memfd_create("test")
    os.write(file, bytes(range(8)))
    program = (
        "from tfdist.collectives.ring.memory import _map; "
        f"print(_map({os.getpid()}, {file}, 8).tolist())"
    )
    done = forked.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    os.close(file)
    assert done.stdout == f"{list(range(8))}\n", done.stderr


@pytest.mark.parametrize("kind", ["fifo", "device", "size", "none"])
def test_what_is_there_on_another_host_is_not_waited_for(kind, tmp_path):
    ours: list[int] = []
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo")  # Whoever opens it to read waits for a writer.
        ours.append(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    elif kind == "device":
        ours.append(os.open(os.devnull, os.O_RDONLY))
    else:
        ours.append(os.memfd_create("test"))
    number = ours[0] + (1000 if kind == "none" else 0)
    with pytest.raises((OSError, ValueError)):
        _map(os.getpid(), number, np.dtype("float64").itemsize)
    for file in ours:
        os.close(file)
