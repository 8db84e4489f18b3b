"""Makes the Python environments of peers that cannot share tfdist's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tfdist.errors import TfdistError

# What `pip install` is given, call by call; "own" is the environment that tfdist runs in.
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "tf_keras": (("tensorflow=={tensorflow}", "tf-keras>=2.20,<2.22", "absl-py", "PyYAML"),),
    "torch": (("torch==2.13.0", "numpy"),),
    # Its last release compiles against no later TensorFlow; without isolation it finds that one.
    "horovod": (
        ("tensorflow==2.18.*", "tf-keras==2.18.*", "setuptools<70", "wheel", "packaging", "psutil"),
        ("cloudpickle", "PyYAML", "cffi"),
        ("--no-build-isolation", "horovod==0.28.1"),
    ),
}
_BUILD_SETTINGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
}


def python_of(name: str, folder: Path) -> str:
    """Returns the interpreter of an environment, which is made if it does not exist.

    Args:
        name: "own", or a key of `PACKAGES`.
        folder: Where environments are kept.

    Raises:
        TfdistError: It could not be made; what pip said is on standard error.
    """
    if name == "own":
        return sys.executable
    place = folder / name
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        import importlib.metadata

        versions = {"tensorflow": importlib.metadata.version("tensorflow")}
        calls = [[package.format(**versions) for package in call] for call in PACKAGES[name]]
        print(f"peers: making {place} with {' '.join(sum(calls, []))}", flush=True)
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            *([str(python), "-m", "pip", "install", "-q", *call] for call in calls),
        ):
            if subprocess.run(command, stdout=2, env=os.environ | _BUILD_SETTINGS).returncode:
                raise TfdistError(f"benchmarks peers: {' '.join(command)} failed; see above")
        (place / "complete").touch()
    return str(python)
