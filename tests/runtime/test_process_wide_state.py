"""Each module that changes process-wide state is listed in `tfdist.runtime`, and only those are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfdist.runtime

PACKAGE = Path(tfdist.__file__).parent
# Functions that change state of the whole process.
CHANGING = {
    "atexit.register",
    "faulthandler.register",
    "gc.disable",
    "keras.utils.set_random_seed",
    "os.chdir",
    "os.dup2",
    "os.environ.pop",
    "os.environ.setdefault",
    "os.environ.update",
    "os.putenv",
    "os.register_at_fork",
    "os.sched_setaffinity",
    "os.umask",
    "signal.pthread_sigmask",
    "signal.set_wakeup_fd",
    "signal.signal",
    "socket.setdefaulttimeout",
    "sys.meta_path.insert",
    "sys.setrecursionlimit",
    "tf.config.set_logical_device_configuration",
    "tf.config.experimental.set_memory_growth",
    "tf.random.set_seed",
}


def foreign_names(tree: ast.Module) -> set[str]:
    """The names that a module imports from elsewhere than tfdist."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name for a in node.names}
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "tfdist" in ast.unparse(node):
            names -= {a.asname or a.name.split(".")[0] for a in node.names}
    return names


def changes(source: str) -> Iterator[str]:
    """Each assignment to an attribute of something foreign, and each call of `CHANGING`."""
    tree = ast.parse(source)
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CHANGING:
                yield called
            elif called in ("setattr", "delattr"):
                yield f"{called}({ast.unparse(node.args[0])})"
        for target in targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                name = ast.unparse(target)
                if re.split(r"[.\[]", name)[0] in foreign:
                    yield name


def found() -> dict[str, set[str]]:
    """What each module of the package changes, by its name."""
    result = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = set(changes(path.read_text()))
        if names:
            result[".".join(path.relative_to(PACKAGE).with_suffix("").parts)] = names
    return result


LISTED = set(re.findall(r"^- `([\w.]+)`", tfdist.runtime.__doc__ or "", re.MULTILINE))
# Not in a user's program, or not the state of a process.
EXEMPT = {
    "benchmark": "commands, which have their own process",
    "cli": "commands, which have their own process",
    "programs": "what commands run",
    "launcher.guard": "a separate program",
    "launcher.hosts": "commands, which have their own process",
    "collectives.replica_context": "an attribute of the user's strategy",
    "training.checkpoint.callback_state": "attributes of the user's callbacks",
    "training.stop_training": "an attribute of the user's model",
    "training.update": "attributes of the user's optimizer",
}


def is_within(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("module", found())
def test_a_module_that_changes_process_wide_state_is_listed(module: str) -> None:
    assert is_within(module, LISTED | set(EXEMPT)), found()[module]


@pytest.mark.parametrize("name", sorted(LISTED | set(EXEMPT)))
def test_each_name_in_the_list_is_a_module(name: str) -> None:
    path = PACKAGE.joinpath(*name.split("."))
    assert path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import sys\nsys.excepthook = print", ["sys.excepthook"]),
        ("import tensorflow as tf\ntf.GradientTape.gradient = 1", ["tf.GradientTape.gradient"]),
        ("from keras import Loss\nLoss.call = 1", ["Loss.call"]),
        ("import os\nos.environ['A'] = '1'", ["os.environ['A']"]),
        ("import os\nos.environ.setdefault('A', '1')", ["os.environ.setdefault"]),
        ("import signal\nsignal.signal(15, print)", ["signal.signal"]),
        ("def f(kind):\n setattr(kind, 'call', 1)", ["setattr(kind)"]),
        ("import sys\nself = 1\nself.out = sys.stdout", []),
        ("from tfdist import x\nx.y = 1", []),
    ],
)
def test_a_change_is_found(source: str, expected: list[str]) -> None:
    assert list(changes(source)) == expected
