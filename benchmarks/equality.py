"""`python -m benchmarks equality`: ResNet50 on one device, on two replicas and on two workers.

Each way runs in separate processes, for a number of steps on the same global batches, and
records the loss of every step. A reference run shows how far rounding alone drives two runs apart:
one device again, with each initial weight off by one unit in the last place. A fresh ResNet50
amplifies rounding errors at every step: at usual rates the reference itself differs in all of
float32's digits within a few steps. So there are two settings: float32 at a small rate, and
float64 at a usual one, where any remaining difference cannot be rounding.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from tfdist.benchmark.benchmark import Benchmark, Figures
from tfdist.cli.arguments import Parser, count
from tfdist.drawing import new_figure
from tfdist.errors import ConfigError, TfdistError
from tfdist.runtime.startup import start_tensorflow

_TIMEOUT = 1800.0
_STYLES = ("-", "--", ":", "-.", "-", "--")


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes:
        name: For the table and the plot.
        strategy: The strategy's name.
        workers: The number of processes.
        synchronized: Whether BatchNormalization is over the global batch.
        nudged: Whether the initial weights are off by one unit in the last place.
    """

    name: str
    strategy: str
    workers: int = 1
    synchronized: bool = True
    nudged: bool = False


ONE = Way("one device", "one_device")
WAYS = (
    ONE,
    Way("one device, nudged", "one_device", nudged=True),
    Way("mirrored, 2 replicas", "mirrored"),
    Way("2 workers", "multi_worker_mirrored", workers=2),
    Way("mirrored, plain", "mirrored", synchronized=False),
    Way("2 workers, plain", "multi_worker_mirrored", workers=2, synchronized=False),
)
# What is compared with what.
PAIRS = (
    ("one device, nudged", "one device"),
    ("mirrored, 2 replicas", "one device"),
    ("2 workers", "one device"),
    ("2 workers, plain", "mirrored, plain"),
)


def measure(
    steps: int, global_batch: int, learning_rate: float, dtype: str = "float32"
) -> dict[str, list[float]]:
    """Trains in every way.

    Args:
        steps: Updates of the weights.
        global_batch: Examples per step, an even number.
        learning_rate: The rate of SGD with momentum, whose gradient is clipped to norm 1.
        dtype: The type of all computations, "float32" or "float64".

    Returns:
        The loss of each step, by the way's name.

    Raises:
        ConfigError: An argument is out of range.
        TfdistError: A run failed; its output is on standard error.
    """
    if steps < 1 or global_batch < 2 or global_batch % 2:
        raise ConfigError(
            f"equality: {steps} steps of {global_batch} are given; allowed: one step or more of "
            "an even number of examples"
        )
    return {way.name: _run(way, steps, global_batch, learning_rate, dtype) for way in WAYS}


def differences(losses: dict[str, list[float]]) -> dict[str, np.ndarray]:
    """Returns the relative difference of each step's loss, by pair, as float64 arrays."""
    return {
        f"{name} / {reference}": np.abs(np.array(losses[name]) / np.array(losses[reference]) - 1.0)
        for name, reference in PAIRS
    }


def plot(losses: dict[str, list[float]], title: str, path: pathlib.Path) -> None:
    """Draws the losses, and below them their differences, as a PNG.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    figure = new_figure(10, 7)
    above, below = figure.subplots(2, 1, sharex=True)
    steps = np.arange(1, 1 + len(losses[ONE.name]))
    for index, (name, values) in enumerate(losses.items()):
        above.plot(steps, values, _STYLES[index], label=name, linewidth=1.8)
    above.set_ylabel("loss of the step")
    above.set_title(title)
    above.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    apart = differences(losses)
    floor = min((d[d > 0].min() for d in apart.values() if d.any()), default=1e-17) / 10
    for index, (name, difference) in enumerate(apart.items()):
        drawn = np.maximum(difference, floor)
        below.semilogy(steps, drawn, _STYLES[index], marker=".", label=name)
    below.axhline(2.0**-23, color="grey", linewidth=0.8, label="float32 epsilon")
    below.axhline(floor, color="black", linewidth=0.8, label="no difference at all")
    below.set_ylabel("relative difference")
    below.set_xlabel("step")
    below.set_xticks(steps[::2])
    below.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def train(
    way: Way, steps: int, global_batch: int, learning_rate: float, dtype: str, seed: int = 0
) -> list[float]:
    """Trains in one way, in this process; every worker calls it."""
    start_tensorflow()
    import keras
    import tensorflow as tf

    import tfdist

    cluster = tfdist.Cluster.from_environment()
    if way.strategy == "mirrored":
        tfdist.virtual_devices(2)
    strategy = tfdist.build_strategy(way.strategy, cluster)
    keras.config.set_floatx(dtype)
    keras.utils.set_random_seed(seed)
    source = tfdist.data.load("digits", image_size=32, channels=3, seed=seed)
    with strategy.scope():
        model = tfdist.models.resnet50(
            source.image_shape,
            source.num_classes,
            synchronized_batch_norm=way.synchronized,
            zero_gamma=True,
        )
        model.compile(
            optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9, global_clipnorm=1.0),
            loss="sparse_categorical_crossentropy",
        )
    if way.nudged:
        model.set_weights([np.nextafter(w, w.dtype.type(np.inf)) for w in model.get_weights()])
    batches = source.train(global_batch).dataset(1).take(steps)
    history = tfdist.Trainer(model).fit(
        # An epoch of one step each: the loss of an epoch is then that of the step.
        batches.apply(tf.data.experimental.assert_cardinality(steps)),
        epochs=steps,
        steps_per_epoch=1,
        verbose=0,
    )
    return history.history["loss"]


def _run(way: Way, steps: int, global_batch: int, learning_rate: float, dtype: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "losses.json"
        command = [sys.executable, "-m", "benchmarks.equality"]
        if way.workers > 1:
            launch = [sys.executable, "-m", "tfdist", "launch", "--workers", str(way.workers)]
            command = [*launch, "--", *command]
        command += [way.name, str(steps), str(global_batch), str(learning_rate), dtype, str(output)]
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        done = subprocess.run(command, stdout=2, timeout=_TIMEOUT, env=environment)
        if done.returncode:
            raise TfdistError(f"equality: {way.name!r} ended with {done.returncode}; see above")
        return json.loads(output.read_text())


def table(losses: dict[str, list[float]]) -> str:
    """Lists the differences of the first step, and their median and largest."""
    lines = [f"{'':<42}{'first':>10}{'median':>10}{'largest':>10}"]
    for name, values in differences(losses).items():
        middle = sorted(values)[len(values) // 2]
        lines.append(f"{name:<42}{values[0]:>10.1e}{middle:>10.1e}{values.max():>10.1e}")
    return "\n".join(lines)


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--steps", type=count, default=20, help="updates of the weights (20)")
    parser.add_argument("--global-batch", type=count, default=32, help="examples per step (32)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="the type of all computations (float32)",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        help="rate of SGD with momentum and clipped gradients (float32: 1e-5, float64: 0.01)",
    )


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    rate = options.learning_rate
    if rate is None:
        rate = {"float32": 1e-5, "float64": 0.01}[options.dtype]
    losses = measure(options.steps, options.global_batch, rate, options.dtype)
    yield Figures(
        f"relative difference of the loss, {options.steps} steps of {options.global_batch}, "
        f"{options.dtype}, rate {rate:g}\n{table(losses)}",
        losses,
        functools.partial(plot, losses, f"ResNet50, {options.dtype}, rate {rate:g}"),
    )


BENCHMARK = Benchmark(
    name="equality",
    summary="losses on one device, two replicas and two workers",
    description="Train ResNet50 from the same weights on the same batches on one device, two "
    "replicas and two workers; list how far their losses are apart.",
    examples=("python -m benchmarks equality --dtype float64 --steps 5",),
    add_flags=_add_flags,
    measure=_measure,
    writes=("json", "plot"),
)


def _main(
    name: str, steps: str, global_batch: str, learning_rate: str, dtype: str, output: str
) -> None:
    way = next(way for way in WAYS if way.name == name)
    losses = train(way, int(steps), int(global_batch), float(learning_rate), dtype)
    from tfdist.cluster import Cluster

    if Cluster.from_environment().is_chief:
        pathlib.Path(output).write_text(json.dumps(losses))


if __name__ == "__main__":
    _main(*sys.argv[1:])
