"""The container: rules for its Dockerfile and its lists; built and run where that is possible."""

import configparser
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")
ENGINE = shutil.which("podman") or shutil.which("buildah")
KEYWORDS = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


def instructions(text):
    """(keyword, the rest) of each instruction."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


def stages(text):
    """The instructions of each stage, by its name, and the stage or image that it is made from."""
    found, base, current = {}, {}, None
    for keyword, rest in instructions(text):
        if keyword == "FROM":
            image, _, current = rest.split()
            base[current], found[current] = image, []
        elif current:
            found[current].append((keyword, rest))
    return found, base


def of_target(text, target):
    """All instructions of a target, those of the stages that it is made from first."""
    found, base = stages(text)
    earlier = of_target(text, base[target]) if base[target] in base else []
    return earlier + found[target]


DOCKERFILE = (ROOT / "Dockerfile").read_text()


def faults(text):
    for keyword, rest in instructions(text):
        if keyword not in KEYWORDS:
            yield f"{keyword} is not used here"
        if keyword in ("ARG", "ENV") and re.search(r"(?i)secret|token|password|_key\b", rest):
            yield f"{keyword} {rest}: a secret in an image is everybody's"
        if re.search(r"\b(apt-get|apk|curl|wget|git clone)\b", rest):
            yield f"{keyword} {rest}: fetches what no list names"
    (image,) = [rest for keyword, rest in instructions(text) if keyword == "ARG"]
    if not re.search(r":\d+\.\d+\.\d+-[a-z-]+$|@sha256:[0-9a-f]{64}$", image):
        yield f"{image}: names no one image"
    found, base = stages(text)
    for name, image in base.items():
        if image != "${PYTHON_IMAGE}" and image not in found:
            yield f"{name}: is made from {image}, which no argument pins"
    for target in ("cpu", "gpu"):
        users = [rest for keyword, rest in of_target(text, target) if keyword == "USER"]
        if not users or not re.fullmatch(r"[1-9]\d*:0", users[-1]):
            yield f"{target}: does not run as a numbered user of group 0"


def test_the_dockerfile_keeps_the_rules():
    assert list(faults(DOCKERFILE)) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("USER 1000:0", "USER tfdist", "numbered user"),
        ("USER 1000:0", "USER 0:0", "numbered user"),
        ("python:3.11.9-slim-bookworm", "python:latest", "names no one image"),
        ("FROM build AS packages-cpu", "FROM ubuntu AS packages-cpu", "no argument pins"),
        ("USER=tfdist", "API_TOKEN=x", "is everybody's"),
        ("WORKDIR /src", "RUN apt-get install git", "no list names"),
    ],
)
def test_each_rule_finds_its_fault(old, new, said):
    assert old in DOCKERFILE
    assert any(said in fault for fault in faults(DOCKERFILE.replace(old, new)))


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint here")
def test_hadolint_has_nothing_to_say():
    result = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def is_sent(path):
    """Whether .dockerignore lets a path through: the last line that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").replace("**/", "")
        anywhere = [f"*/{pattern}", f"*/{pattern}/*"] if "**/" in line else []
        fits = any(fnmatch(path, one) for one in (pattern, f"{pattern}/*", *anywhere))
        if line and not line.startswith("#") and fits:
            sent = line.startswith("!")
    return sent


def test_what_is_copied_is_sent_and_nothing_else():
    words = [
        word
        for keyword, rest in instructions(DOCKERFILE)
        if keyword == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    ]
    assert "tfdist" in words
    for word in words:
        assert (ROOT / word).exists() and is_sent(word), word
    for other in (".git/config", "runs/x", "tests/conftest.py", ".venv/x", "tfdist/__pycache__/a"):
        assert not is_sent(other), other


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_list_pins_all_that_the_project_needs(name):
    lines = [
        line
        for line in (ROOT / "container" / f"{name}.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pinned = {}
    for line in lines:
        match = re.fullmatch(r"([\w.-]+)==([\w.+]+) --hash=sha256:[0-9a-f]{64}", line)
        assert match, line
        pinned[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for line in filter(None, config["options"]["install_requires"].splitlines()):
        wanted = Requirement(line)
        package = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name == "cpu" and package == "tensorflow":
            package = "tensorflow-cpu"
        assert wanted.specifier.contains(pinned[package]), line
    assert {"setuptools", "wheel"} <= set(pinned)
    assert any(package.startswith("nvidia-") for package in pinned) == (name == "gpu")


@pytest.mark.long  # Ten minutes: TensorFlow is installed.
@pytest.mark.skipif(ENGINE is None, reason="no podman or buildah here to build the image with")
def test_the_image_is_built_and_any_user_runs_it():
    tag = "localhost/tfdist-test:cpu"
    subprocess.run([ENGINE, "build", "--target", "cpu", "--tag", tag, ROOT], check=True)
    command = ["tfdist", "train", "--dataset", "digits", "--model", "small_cnn"]
    command += ["--epochs", "1", "--warmup-epochs", "0"]
    if Path(ENGINE).name == "podman":
        run = [ENGINE, "run", "--rm", "--user", "12345:0", "--cap-drop", "ALL", tag, *command]
    else:
        source = subprocess.run([ENGINE, "from", tag], check=True, capture_output=True, text=True)
        run = [ENGINE, "run", "--user", "12345:0", source.stdout.strip(), "--", *command]
    result = subprocess.run(run, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
