"""Every public class and function has an example, and those that can run in one process run."""

import doctest
import inspect
import os
import types

import pytest

import tfdist

METHODS = ("Cluster", "Plan", "Trainer", "data.Pipeline", "data.Source")
# What they do takes a cluster of processes, or a failure.
NOT_RUN = {
    "CheckpointError",
    "OutOfStepError",
    "PeerError",
    "Preempted",
    "TaskError",
    "launch",
    "multi_worker_mirrored_strategy",
    "parameter_server_strategy",
    "data",
}


def public() -> list[str]:
    """Names below `tfdist`, without importing TensorFlow when tests are collected."""
    models = ["models.resnet50", "models.small_cnn"]
    data = ["data.Pipeline", "data.Recipe", "data.Source", "data.from_examples", "data.load"]
    return [*tfdist._EXPORTS, *models, *data]


def find(name: str) -> object:
    found: object = tfdist
    for part in name.split("."):
        found = getattr(found, part)
    return found


def methods(cls: type) -> dict[str, object]:
    """Its own public methods, in their order; not properties."""
    return {
        name: getattr(cls, name)
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and isinstance(value, (types.FunctionType, classmethod, staticmethod))
    }


def parts(name: str) -> dict[str, object]:
    """What has a docstring of its own: the object, then the methods that need an example."""
    found = find(name)
    more = methods(found) if isinstance(found, type) and name in METHODS else {}
    return {name: found} | {f"{name}.{method}": value for method, value in more.items()}


def examples(name: str) -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=False)
    return [
        test
        for part, value in parts(name).items()
        for test in finder.find(value, part, module=False, globs={})
    ]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDIST_DATA_DIR", str(tmp_path_factory.mktemp("tfds")))
        yield


def test_no_public_name_is_forgotten():
    for module in (tfdist.models, tfdist.data):
        prefix = module.__name__.removeprefix("tfdist.")
        names = {name for name in public() if name.startswith(f"{prefix}.")}
        assert names == {f"{prefix}.{name}" for name in module.__all__}


@pytest.mark.parametrize("name", public())
def test_it_has_an_example(name):
    bare = [
        part
        for part, value in parts(name).items()
        if "Example:" not in (inspect.getdoc(value) or "")
    ]
    assert bare == []


@pytest.mark.parametrize("name", public())
def test_its_examples_are_right(name, data_dir, tmp_path):
    import keras
    import numpy as np

    found = examples(name)
    assert bool(sum(len(test.examples) for test in found)) is (name not in NOT_RUN)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    # Examples of methods go on from that of their class.
    names = {"tfdist": tfdist, "keras": keras, "np": np, "os": os, "folder": str(tmp_path)}
    lines: list[str] = []
    for test in found:
        test.globs = names
        runner.run(test, out=lines.append, clear_globs=False)
    assert runner.failures == 0, "".join(lines)
