"""Reads the secret that the tasks of a job share, if it has one."""

from __future__ import annotations

import os

VARIABLE = "TFDIST_SECRET"


def job_secret() -> bytes:
    """Returns what `TFDIST_SECRET` holds; nothing where it is not set."""
    return os.environ.get(VARIABLE, "").encode(errors="surrogateescape")
