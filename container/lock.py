"""Writes the exact versions and hashes that an image is made of.

    python container/lock.py tensorflow-cpu > container/cpu.txt
    python container/lock.py 'tensorflow[and-cuda]' > container/gpu.txt

For the Python and the platform that it runs on; the images have Python 3.11 on x86-64.
"""

import configparser
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.cfg"


def main(tensorflow: str) -> None:
    """Prints the packages that the project needs, with `tensorflow` as its TensorFlow."""
    config = configparser.ConfigParser()
    config.read(SETUP)
    lines = config["options"]["install_requires"].splitlines()
    # setuptools and wheel build those of which there is no wheel.
    wanted = [line.replace("tensorflow>", f"{tensorflow}>") for line in lines if line]
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--report", report.name, *wanted, "setuptools", "wheel"]
        subprocess.run(command, check=True)
        found = json.load(report)["install"]
    print(f"# python container/lock.py {tensorflow!r}")
    for package in sorted(found, key=lambda package: package["metadata"]["name"].lower()):
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        print(f"{name}=={version} --hash=sha256:{digest}")


if __name__ == "__main__":
    main(*sys.argv[1:])
