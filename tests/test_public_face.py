"""What type checkers, editors and `help()` see of `import tfdist`, which imports no TensorFlow."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfdist
from tests.test_docstrings import public

INIT = Path(tfdist.__file__)

# As in setup.cfg: TensorFlow and Keras carry no usable types.
CONFIG = """
[mypy]
check_untyped_defs = True

[mypy-absl.*,cloudpickle.*,keras.*,tensorflow.*,tensorflow_datasets.*,yaml.*]
ignore_missing_imports = True
follow_imports = skip
"""

RIGHT = """
import keras
import numpy as np

import tfdist
from tfdist import Cluster, Plan, Task, Trainer
from tfdist.data import Pipeline, Recipe, Source

version: str = tfdist.__version__
addresses = {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222", "d:2222"]}
cluster: Cluster = tfdist.Cluster.from_cluster_spec(addresses, task_type="worker", task_index=1)
clusters: list[Cluster] = [
    tfdist.Cluster.from_environment(environ={}),
    tfdist.Cluster.from_tf_config(config=cluster.to_tf_config()),
    tfdist.Cluster.local(),
]
task: Task = tfdist.Task(type="worker", index=0, address="a:2222")
host: str | None = cluster.chief.host
workers: int = cluster.num_workers
chief: bool = cluster.is_chief and cluster.has_ps and cluster.task == task
served: bool = tfdist.serve(cluster, start_timeout=60.0)

names: list[str] = tfdist.virtual_devices(count=4)
strategies = [
    tfdist.build_strategy(name="auto", cluster=cluster),
    tfdist.build_strategy("mirrored", devices=names[:2]),
    tfdist.one_device_strategy(device="CPU:0"),
    tfdist.mirrored_strategy(devices=names),
    tfdist.central_storage_strategy(devices=names[1:], parameter_device="CPU:0"),
    tfdist.multi_worker_mirrored_strategy(cluster, bytes_per_pack=1 << 20),
    tfdist.parameter_server_strategy(cluster),
]

plan: Plan = tfdist.scale(
    per_replica_batch=32,
    num_replicas=len(names),
    base_learning_rate=0.1,
    base_batch=256,
    rule="linear",
    warmup_epochs=5,
    warmup_start=None,
    decay="step",
    boundaries=[30, 60, 80],
    decay_factor=0.1,
    final_fraction=0.0,
    epochs=90,
    num_examples=50_000,
    steps_per_epoch=None,
    drop_remainder=False,
    accumulate_steps=1,
)
batch: int = plan.global_batch
rate: float = plan.learning_rate(step=0)
again: tfdist.Plan = tfdist.Plan.from_dict(plan.to_dict())
changes: list[str] = again.changes_since(plan)

recipe = tfdist.data.Recipe(crop="pad", pad=0.125, flip=False, mean=(0.5,), std=(0.5,))
source: Source = tfdist.data.load(
    "digits",
    data_dir=None,
    image_size=(32, 32),
    channels=3,
    recipe=recipe,
    seed=0,
    num_classes=None,
    num_examples=None,
    prepare_timeout=60.0,
)
train: Pipeline = source.train(batch, augment=True, shuffle=True, drop_remainder=True, cache="auto")
test: Pipeline = source.test(global_batch=batch)
steps: int = train.steps
train(None, epoch=1, first_batch=2)
train.dataset(epochs=3, first_epoch=1)

with strategies[0].scope():
    tfdist.models.small_cnn(source.image_shape, classes=10, batch_norm="plain", activation=None)
    model = tfdist.models.resnet50(
        input_shape=(32, 32, 3),
        classes=source.num_classes,
        weights=None,
        activation="softmax",
        batch_norm_momentum=0.9,
        synchronized_batch_norm=True,
        zero_gamma=True,
    )
    model.compile(optimizer=keras.optimizers.SGD(plan.schedule()), loss="mse")
trainer: Trainer = tfdist.Trainer(
    model,
    checkpoint_dir="runs/mine",
    checkpoint_steps=100,
    checkpoint_seconds=60.0,
    keep_checkpoints=3,
    accumulate_steps=2,
    steps_per_call="auto",
    wire_dtype="bfloat16",
    bytes_per_pack=1 << 20,
)


def work(epochs: int, rate: float = 0.1) -> dict[str, list[float]]:
    return {"loss": [rate] * epochs}


try:
    trainer.fit(train, epochs=3, validation_data=test, callbacks=[], verbose=0)
    trainer.fit(np.ones((8, 2)), np.ones(8), batch_size=4, class_weight={0: 1.0}, shuffle=False)
    trainer.evaluate(test, steps=3, return_dict=True)
    trainer.predict(np.ones((8, 2)), batch_size=4)
    trainer.fit(train, callbacks=[tfdist.on_chief(keras.callbacks.TerminateOnNaN())])
    trainer.save("mine.keras")
    losses: dict[str, list[float]] = tfdist.launch(
        work,
        args=(3,),
        kwargs={"rate": 0.2},
        workers=2,
        ps=1,
        max_restarts=1,
        stall_timeout=60,
        grace=10,
        log_dir="runs/logs",
        env={"A": "b"},
    )
except tfdist.TaskError as error:
    trace: str = error.traceback
except (tfdist.CheckpointError, tfdist.OutOfStepError, tfdist.PeerError) as error:
    raise SystemExit(error.exit_code)
except (tfdist.ConfigError, tfdist.Preempted, tfdist.TfdistError) as error:
    code: int = error.exit_code
"""

# A mistake a line: each is to be reported, and by name where a name is misspelt.
WRONG = """
tfdist.scale(per_replica_batch=1, num_replicas=1, base_learning_rate=0.1, epoch=3)
tfdist.scale(per_replica_batch=1, num_replicas=1)
tfdist.scale(per_replica_batch="1", num_replicas=1, base_learning_rate=0.1)
tfdist.scal(per_replica_batch=1, num_replicas=1, base_learning_rate=0.1)
tfdist.Trainer(model, checkpoint_directory="runs")
tfdist.Trainer(model, accumulate_steps="2")
trainer.fit(train, epoch=3)
trainer.fit(train, epochs="3")
trainer.evaluate(test, return_dictionary=True)
trainer.predict(test, batchsize=3)
trainer.train(train)
tfdist.Cluster.from_cluster_spec(addresses, task_typ="worker")
tfdist.Cluster.from_cluster_spec(addresses, task_index="1")
tfdist.Cluster.from_tf_config(3)
tfdist.Cluster.from_environment(environment={})
tfdist.Cluster.from_enviroment()
cluster.is_cheif
tfdist.Task("worker", "0")
tfdist.Task("worker", 0).hostname
tfdist.build_strategy(strategy="auto")
tfdist.build_strategy("auto", [])
tfdist.build_strategies("auto")
tfdist.one_device_strategy(devices="CPU:0")
tfdist.mirrored_strategy(device=["CPU:0"])
tfdist.central_storage_strategy(parameter_devices="CPU:0")
tfdist.multi_worker_mirrored_strategy(cluster, pack_bytes=1)
tfdist.parameter_server_strategy(clusters)
tfdist.virtual_devices(number=4)
tfdist.virtual_devices("4")
tfdist.serve(cluster, timeout=3)
text: str = tfdist.serve(cluster)
tfdist.launch(work, (3,), worker=2)
tfdist.launch("work")
wrong: int = tfdist.launch(work, (3,))
plan.global_batches
plan.learning_rate("0")
number: int = plan.to_json()
tfdist.Plan(per_replica_batch=1)
tfdist.models.resnet50(class_count=10)
tfdist.models.resnet50(input_shape=(32, 32))
tfdist.models.resnet(classes=10)
tfdist.models.small_cnn(batch_norm=True)
tfdist.models.small_cnn(shape=(8, 8, 1))
tfdist.data.load("digits", imagesize=32)
tfdist.data.loads("digits")
tfdist.data.Recipe(crop="none", flips=True)
tfdist.data.Recipe(crop="padded")
source.train(batch_size=32)
source.validation(global_batch=32)
train.dataset(epoch=3)
tfdist.ConfigError("no").exitcode
tfdist.PeersError("no")
tfdist.data.pipelines
from tfdist import Trianer
"""

SCRIPTS = ("right.py", "wrong.py", "misspelt.py")
# All that a user may call, in the order of the lines of misspelt.py.
CALLED = [name for name in public() if tfdist._EXPORTS.get(name, ("", name))[1] is not None]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Runs mypy once over all scripts: what it says of a script, by line."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mypy.ini").write_text(CONFIG)
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text("from right import *\nimport tfdist\n" + WRONG)
    calls = [f"tfdist.{name}(misspelt=0)\n" for name in CALLED]
    (folder / "misspelt.py").write_text("import tfdist\n" + "".join(calls))
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--cache-dir", "cache", *SCRIPTS],
        cwd=folder,
        env=dict(os.environ, MYPYPATH=str(INIT.parents[1])),
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    found: dict[str, dict[int, str]] = {script: {} for script in SCRIPTS}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(.*?):(\d+): (?:error|note): (.*)", line)
        assert match is not None and match[1] in found, line  # Nothing in tfdist itself.
        lines = found[match[1]]
        lines[int(match[2])] = lines.get(int(match[2]), "") + match[3] + "\n"
    return found


def test_right_use_passes_mypy(reported):
    assert reported["right.py"] == {}


def test_the_right_script_uses_every_public_name():
    assert [name for name in tfdist.__all__ if f"tfdist.{name}" not in RIGHT] == []


def test_mypy_reports_each_mistake_and_nothing_else(reported):
    lines = ("\n\n" + WRONG).splitlines()
    mistakes = {number for number, line in enumerate(lines, start=1) if line}
    missed = [lines[number - 1] for number in sorted(mistakes - set(reported["wrong.py"]))]
    assert missed == []
    assert set(reported["wrong.py"]) == mistakes


@pytest.mark.parametrize("name", CALLED)
def test_mypy_reports_a_misspelt_argument_of(reported, name):
    line = CALLED.index(name) + 2
    assert 'Unexpected keyword argument "misspelt"' in reported["misspelt.py"].get(line, "")


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("tfdist.scal(", 'Module has no attribute "scal"; maybe "scale"?'),
        ("from tfdist import Trianer", 'Module "tfdist" has no attribute "Trianer"'),
        ("tfdist.virtual_devices(number=4)", 'Unexpected keyword argument "number"'),
        ("text: str = ", 'has type "bool", variable has type "str"'),
    ],
)
def test_a_report_names_the_mistake(reported, line, report):
    lines = ("\n\n" + WRONG).splitlines()
    number = next(number for number, text in enumerate(lines, start=1) if text.startswith(line))
    assert report in reported["wrong.py"][number]


def test_the_table_and_the_imports_for_type_checkers_name_the_same():
    (block,) = (
        node
        for node in ast.parse(INIT.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    named = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            # Under its own name again: only such an import is public to type checkers.
            assert alias.asname == alias.name
            whole = statement.module == "tfdist"
            module = f"tfdist.{alias.name}" if whole else statement.module
            named[alias.name] = (module, None if whole else alias.name)
    assert named == tfdist._EXPORTS


def in_a_new_process(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_names_and_signatures_without_tensorflow():
    program = """
import inspect, sys, tfdist
print(*dir(tfdist))
for function in (tfdist.scale, tfdist.Cluster.from_cluster_spec, tfdist.Task):
    print(*inspect.signature(function).parameters)
print(*sorted({"tensorflow", "keras"} & set(sys.modules)))
"""
    names, scale, from_cluster_spec, task, loaded = in_a_new_process(program)
    assert set(tfdist.__all__) <= set(names.split())
    assert scale.split()[:3] == ["per_replica_batch", "num_replicas", "base_learning_rate"]
    assert from_cluster_spec == "spec task_type task_index"
    assert task == "type index address"
    assert loaded == ""


def test_help_and_signatures_with_tensorflow():
    """Functions, classes and their methods; errors take a text, as all exceptions do."""
    program = f"""
import inspect, json, pydoc, types, tfdist
told = {{}}
for name in {[name for name in CALLED if tfdist._EXPORTS.get(name, " ")[0] != "tfdist.errors"]}:
    value = tfdist
    for part in name.split("."):
        value = getattr(value, part)
    methods = vars(value).items() if isinstance(value, type) else ()
    functions = [f for n, f in methods if isinstance(f, types.FunctionType) and n[0] != "_"]
    for called in (value, *functions):
        parameters = inspect.signature(called).parameters.values()
        kinds = [(p.name, p.kind.name, p.annotation is p.empty) for p in parameters]
        told[called.__qualname__] = kinds, pydoc.plain(pydoc.render_doc(called))
print(json.dumps([told, pydoc.plain(pydoc.render_doc(tfdist))]))
"""
    told, page = json.loads(in_a_new_process(program)[-1])
    for name, (parameters, text) in told.items():
        # With a decorator that hides them there would be *args and **kwargs.
        assert not {kind for _, kind, _ in parameters} & {"VAR_POSITIONAL", "VAR_KEYWORD"}, name
        assert [p for p, _, bare in parameters if bare and p != "self"] == [], name
        assert all(f"{p}: " in text for p, _, _ in parameters if p != "self"), name
    assert {"Trainer", "Trainer.fit", "build_strategy", "load", "Cluster"} <= set(told)
    assert "checkpoint_dir: The directory" in told["Trainer"][1]
    for name in tfdist.__all__:
        assert re.search(rf"\b{name}\b", page), name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tfdist' has no attribute 'scal'"):
        tfdist.scal  # noqa: B018
