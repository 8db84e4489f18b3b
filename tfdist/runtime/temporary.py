"""Finds a folder for temporary files where every usual one is read-only, as in hardened pods.

Without one TensorFlow cannot be imported: a module of its tests asks for it.
"""

from __future__ import annotations

import os
import tempfile

# In memory; containers have it whatever their file systems allow.
_IN_MEMORY = "/dev/shm"


def find_temporary_folder() -> None:
    """Sets TMPDIR to /dev/shm where nothing else can be written, and that can."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(_IN_MEMORY, os.W_OK | os.X_OK):
            os.environ["TMPDIR"] = _IN_MEMORY
