"""Makes the Python environments of peers that do not go with tfdist's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tfdist.errors import TfdistError

# What `pip install` is given; "own" is the environment that tfdist runs in.
PACKAGES = {
    "tf_keras": ("tensorflow=={tensorflow}", "tf-keras>=2.20,<2.22", "absl-py", "PyYAML"),
    "torch": ("torch==2.13.0", "numpy"),
}


def python_of(name: str, folder: Path) -> str:
    """Returns the interpreter of an environment, which is made where it is not there.

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
        wanted = [package.format(**versions) for package in PACKAGES[name]]
        print(f"peers: makes {place} with {' '.join(wanted)}", flush=True)
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(python), "-m", "pip", "install", "-q", *wanted],
        ):
            if subprocess.run(command, stdout=2).returncode:
                raise TfdistError(f"peers: {' '.join(command)} failed; see above")
        (place / "complete").touch()
    return str(python)
