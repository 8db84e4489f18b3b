"""Finds the program that tasks run, and builds their common environment."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from tfdist.errors import ConfigError
from tfdist.validation import quote

# They say which task a process is: each gets its own, or none.
_OWN = ("TF_CONFIG", "TFDIST_REJOIN", "TFDIST_HEARTBEAT")


def common_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of this process's environment that a task may inherit.

    Args:
        extra: variables to be set for every task; only its PATH counts here.
    """
    env = {"PYTHONUNBUFFERED": "1", **os.environ}
    # `python` and `tfdist` must be those of the environment that this runs in.
    env["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), extra.get("PATH", env.get("PATH", os.defpath))]
    )
    for name in _OWN:
        env.pop(name, None)
    return env


def resolve(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Checks that the program exists; `tfdist` is always that of this environment.

    Raises:
        ConfigError: there is no such program.
    """
    if (
        command[0] == "tfdist"
        and shutil.which("tfdist", path=os.path.dirname(sys.executable)) is None
    ):
        return [sys.executable, "-m", "tfdist", *command[1:]]  # Run from a source tree.
    if shutil.which(command[0], path=env["PATH"]) is None:
        raise ConfigError(f"launch: no such command: {quote(command[0])}; give a program to run")
    return list(command)
