"""Sifts what TensorFlow's C++ code says about this machine while it is imported."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# Remarks come before TensorFlow reads its own log level: "I0000 00:00:17...  file.cc:1] text".
_REMARK = re.compile(
    rb"^([IWE]0000 .*|WARNING: All log messages before absl.*|To enable the .*)\n?"
)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Drops TensorFlow's remarks in a block that imports it, unless they are asked for."""
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
    else:
        with without_remarks():
            yield


@contextlib.contextmanager
def without_remarks() -> Iterator[None]:
    """Holds back what is written to standard error in a block, and then passes on the rest."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    except OSError:  # Nothing can be written here, as in a container with a read-only disk.
        yield
        return
    sys.stderr.flush()
    with file as said:
        terminal = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            said.seek(0)
            for line in said:
                if not _REMARK.match(line):
                    os.write(terminal, line)
            os.close(terminal)
