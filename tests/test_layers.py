"""Dependencies point down only, and TensorFlow stays above the line."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfdist

PACKAGE = Path(tfdist.__file__).parent

# From the bottom up. A module is in the room of the longest name that begins its own; those of
# one row do not import each other.
LAYERS = [
    {"errors", "partition"},
    {"validation", "drawing", "notebook", "files"},
    {"function_name", "option_fields", "collectives.transport_names"},
    {"cli.arguments", "cli.output"},  # What the flags of commands are made of.
    {"runtime"},
    {"cluster", "scaling"},
    {"rendezvous"},
    {"launcher", "render", "report", "profiling"},
    # ---- TensorFlow from here on ----
    {"runtime.startup", "scaling.schedule"},
    {"keras_internals"},
    {"collectives", "models", "data", "profiling.recorder"},
    {"strategy"},
    {"training.input", "training.model"},
    {"training.step.patches"},
    {"training.step.probes"},
    {"training.step"},
    {"training.rehearsal"},
    {"training.update"},
    {"training.loops"},
    {"training.checkpoint"},
    {"training"},
    {"programs"},
    {"benchmark", "doctor"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
LINE = RANK["runtime.startup"]
HEAVY = {"tensorflow", "keras", "tensorflow_datasets", "tf_keras"}
# A plan loads Keras when it is asked for its schedule.
LATE = {("tfdist.scaling.plan", "tfdist.scaling.schedule")}
# Folders of the repository that may import tfdist, and not the reverse.
OUTSIDE = {"benchmarks", "examples", "tests"}
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


def room(name: str) -> str:
    """The room that a module is in: the longest name of LAYERS that begins the module's."""
    parts = name.split(".")[1:]
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in RANK), "")


def faults(source: str, name: str, is_package: bool = False) -> list[str]:
    own = room(name)
    found = []
    for target, line in imports_of(source, name, is_package):
        if (name, target) in LATE:
            continue
        where = f"{name}:{line} imports {target}"
        if target.split(".")[0] in OUTSIDE:
            found.append(f"{where}: which is not installed with tfdist")
        if target.split(".")[0] in HEAVY and RANK[own] < LINE:
            found.append(f"{where}: below the line")
        its = room(target)
        if its and its != own and RANK[its] >= RANK[own]:
            found.append(f"{where}: upwards")
    return found


def circles(imports: dict[str, set[str]]) -> list[str]:
    """The modules that import themselves by way of others."""

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            for target in imports.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    return [name for name in imports if name in reached(name)]


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path):
    name = dotted(path)
    if name == "tfdist":
        return
    assert room(name), f"give {name} a layer in LAYERS"
    assert faults(path.read_text(), name, path.name == "__init__.py") == []


def test_no_modules_import_each_other_in_a_circle():
    imports = {}
    for path in modules():
        name, is_package = dotted(path), path.name == "__init__.py"
        imports[name] = {t for t, _ in imports_of(path.read_text(), name, is_package)}
    del imports["tfdist"]  # It imports what it is asked for, when it is asked.
    assert circles(imports) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


def test_no_module_is_longer_than_can_be_described():
    long = {dotted(path): len(path.read_text().splitlines()) for path in modules()}
    del long["tfdist.keras_internals"]  # A list: what it has in common is where it comes from.
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_late_imports_are_still_needed():
    for name, target in LATE:
        path = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
        assert target in [imported for imported, _ in imports_of(path.read_text(), name)]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tfdist.cluster.spec", "import tensorflow as tf"),
        ("tfdist.launcher.job", "def f():\n    from keras import ops"),
        ("tfdist.errors", "from tfdist.cluster import Cluster"),
        ("tfdist.cluster.spec", "from tfdist import build_strategy"),
        ("tfdist.cluster.spec", "from ..training import Trainer"),
        (
            "tfdist.scaling.plan",
            "import importlib\nimportlib.import_module('tfdist.strategy.build')",
        ),
        ("tfdist.models.resnet", "from tfdist import data"),
        ("tfdist.strategy.build", "import tfdist.training.loop"),
        ("tfdist.cli.bench", "from benchmarks.peers import measure"),
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


# Private modules of Keras and TensorFlow, which only `keras_internals` may import.
PRIVATE = ("keras.src", "tensorflow.python")
INTERNALS = PACKAGE / "keras_internals.py"


def attributes(source: str) -> Iterator[ast.Attribute]:
    """The attributes of anything but `self` that a source uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
            yield node


PRIVATE_NAMES = {
    node.attr
    for node in attributes(INTERNALS.read_text())
    if node.attr.startswith("_") and not node.attr.startswith("__")
}


def privates(source: str, name: str) -> list[str]:
    """What a source takes of Keras' and TensorFlow's privates, as `keras_internals` does."""
    found = [module for module, _ in imports_of(source, name) if module.startswith(PRIVATE)]
    within = {module.split(".")[-1] for module in PRIVATE} | {"__internal__"}
    for node in attributes(source):
        if node.attr in PRIVATE_NAMES | within:
            found.append(ast.unparse(node))
    return found


def test_what_is_private_of_keras_and_tensorflow_is_in_one_module():
    found = {
        dotted(path): privates(path.read_text(), dotted(path))
        for path in modules()
        if path != INTERNALS
    }
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from keras.src.backend import config",
        "import tensorflow.python.eager.context",
        "keras.src.backend.config",
        "model._flatten_layers()",
        "tf.__internal__.EagerTensor",
    ],
)
def test_what_is_private_is_found(source):
    assert privates(source, "tfdist.training.trainer") != []


def test_no_module_is_a_drawer():
    names = {part for path in modules() for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & DRAWERS


@pytest.mark.parametrize(
    "module",
    [
        *("tfdist", "tfdist.cli", "tfdist.cluster", "tfdist.launcher", "tfdist.scaling.plan"),
        *("tfdist.cli.plan", "tfdist.cli.bench", "tfdist.cli.doctor"),
    ],
)
def test_import_does_not_load_tensorflow(module):
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
