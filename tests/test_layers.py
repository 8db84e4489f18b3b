"""Dependencies point down only, and TensorFlow stays above the line."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfdist

PACKAGE = Path(tfdist.__file__).parent

# From the bottom up. Those of one row do not import each other.
LAYERS = [
    {"errors", "heartbeat"},
    {"scaling", "ending", "farewell"},
    {"cluster"},
    {"launch"},
    # ---- TensorFlow from here on ----
    {"quiet"},
    {"serving"},
    {"strategy"},
    {"models", "data"},
    {"training"},
    {"benchmark"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
LINE = RANK["quiet"]
HEAVY = {"tensorflow", "keras", "tensorflow_datasets", "tf_keras"}

# The one import that points up: a plan loads Keras when it is asked for its schedule.
EXCEPTIONS = {("tfdist.scaling", "tfdist.training.schedule")}
DRAWERS = {"utils", "util", "common", "helpers", "misc", "shared"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(source: str, name: str, is_package: bool = False) -> Iterator[tuple[str, int]]:
    """Every module that the source imports, anywhere in it, for use and not for types only."""
    tree = ast.parse(source)
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                here = parts[: len(parts) - node.level + is_package]
                base = ".".join([*here, base] if base else here)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if base == "tfdist" and alias.name in tfdist._EXPORTS:
                    yield tfdist._EXPORTS[alias.name][0], node.lineno
                else:
                    inner = full.startswith("tfdist.") and is_module(full)
                    yield (full if inner else base), node.lineno
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            target = node.args[0]
            if called.split(".")[-1] in ("import_module", "__import__") and isinstance(
                target, ast.Constant
            ):
                yield str(target.value), node.lineno


def faults(source: str, name: str, is_package: bool = False) -> list[str]:
    layer = name.split(".")[1]
    found = []
    for target, line in imports_of(source, name, is_package):
        if (name, target) in EXCEPTIONS:
            continue
        top, *rest = target.split(".")
        where = f"{name}:{line} imports {target}"
        if top in HEAVY and RANK[layer] < LINE:
            found.append(f"{where}: below the line")
        own = not rest or rest[0] == layer
        if top == "tfdist" and not own and RANK.get(rest[0], 0) >= RANK[layer]:
            found.append(f"{where}: upwards")
    return found


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path):
    name = dotted(path)
    if name == "tfdist":
        return
    assert name.split(".")[1] in RANK, f"give {name} a layer in LAYERS"
    assert faults(path.read_text(), name, path.name == "__init__.py") == []


def test_the_exception_is_still_needed():
    for name, target in EXCEPTIONS:
        path = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
        assert target in [imported for imported, _ in imports_of(path.read_text(), name)]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tfdist.cluster.spec", "import tensorflow as tf"),
        ("tfdist.launch.job", "def f():\n    from keras import ops"),
        ("tfdist.errors", "from tfdist.cluster import Cluster"),
        ("tfdist.cluster.spec", "from tfdist import build_strategy"),
        ("tfdist.cluster.spec", "from ..training import Trainer"),
        ("tfdist.scaling", "import importlib\nimportlib.import_module('tfdist.strategy')"),
        ("tfdist.models.resnet", "from tfdist import data"),
        ("tfdist.strategy", "import tfdist.training.loop"),
    ],
)
def test_a_fault_is_found(name, source):
    assert len(faults(source, name)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tfdist.cluster.spec", "from .address import x\nfrom tfdist.errors import ConfigError"),
        ("tfdist.training.loop", "import keras\nfrom tfdist import scale, ConfigError"),
        ("tfdist.cluster.spec", "if TYPE_CHECKING:\n    import tensorflow as tf"),
    ],
)
def test_what_is_allowed_is_not_a_fault(name, source):
    assert faults(source, name) == []


def test_no_module_is_a_drawer():
    names = {part for path in modules() for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & DRAWERS


@pytest.mark.parametrize(
    "module", ["tfdist", "tfdist.cli", "tfdist.cluster", "tfdist.launch", "tfdist.scaling"]
)
def test_import_does_not_load_tensorflow(module):
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
