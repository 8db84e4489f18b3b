"""Runs the evaluator task of a job: evaluates each checkpoint as the job saves it."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.programs.options import TrainOptions
from tfdist.programs.run_folder import output_directory
from tfdist.programs.train import make_plan, make_trainer, open_source
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.runtime.log import LOGGER
from tfdist.strategy.build import build_strategy
from tfdist.strategy.devices import virtual_devices
from tfdist.training.checkpoint.file import (
    DamagedError,
    Reader,
    UnknownFormatError,
    open_checkpoint,
)

RESULTS = "evaluation.jsonl"
_EVENTS = "evaluation"
_POLL = 1.0  # seconds


def evaluate(cluster: Cluster, options: TrainOptions) -> list[dict[str, Any]]:
    """Evaluates each checkpoint of a job as it appears, until that of its last epoch.

    A checkpoint that was evaluated before this process was restarted is not evaluated again.

    Args:
        cluster: The cluster whose evaluator this process is.
        options: The options of the job, except the strategy, which is always that of one task.

    Returns:
        The results, one per checkpoint, as written to `RESULTS` in the output directory.

    Raises:
        ConfigError: An option is wrong; there is no directory of checkpoints, or they are of
            another model.
    """
    options = options.settled()
    if options.checkpoint_dir is None:
        raise ConfigError(
            f"checkpoint_dir: {cluster.task} has nothing to evaluate without it; give the "
            "--checkpoint-dir that the job saves to"
        )
    output = output_directory(options.output_dir)
    if options.virtual_devices:
        virtual_devices(options.virtual_devices)
    strategy = build_strategy("auto", cluster)
    keras.config.set_dtype_policy(options.mixed_precision)
    source = open_source(options)
    plan = make_plan(options, source, strategy.num_replicas_in_sync)
    trainer = make_trainer(options, source, plan, strategy, saves=False)
    test = source.test(plan.global_batch, one_hot=bool(options.label_smoothing))
    results = _Results(output)
    for path, saved in _appearing(pathlib.Path(options.checkpoint_dir), options.epochs):
        with saved:
            if results.has(path.name, saved):
                continue
            _restore(trainer.model, path, saved)
        results.add(path.name, saved, trainer.evaluate(test, return_dict=True, verbose=0))
    return results.lines


def _appearing(folder: pathlib.Path, epochs: int) -> Iterator[tuple[pathlib.Path, Reader]]:
    """Yields the checkpoints as they appear, up to that of the last epoch."""
    heartbeat = HeartbeatWriter()
    seen: dict[str, int] = {}
    LOGGER.info("evaluating the checkpoints in %s as they appear", folder)
    while True:
        # A run that is started over may save under the same name again.
        for path in sorted(folder.glob("checkpoint-*.tfdist")):
            try:
                changed = path.stat().st_mtime_ns
                if seen.get(path.name) == changed:
                    continue
                saved = open_checkpoint(path)
            except FileNotFoundError:  # The job has removed it, as there are newer ones.
                continue
            except (OSError, DamagedError, UnknownFormatError) as error:
                LOGGER.warning("checkpoint %s is skipped: %s", path.name, error)
                seen[path.name] = changed
                continue
            seen[path.name] = changed
            yield path, saved
            position = saved.manifest["position"]
            if position["finished"] or position["epoch"] >= epochs:
                return
        heartbeat.write("serving")
        time.sleep(_POLL)


def _restore(model: keras.Model, path: pathlib.Path, saved: Reader) -> None:
    saved_shapes = [tuple(shape) for _, shape, _ in saved.manifest["model"]]
    shapes = [tuple(variable.shape) for variable in model.variables]
    if shapes != saved_shapes:
        raise ConfigError(
            f"checkpoint_dir: {path} is of another model ({len(saved_shapes)} variables, "
            f"{len(shapes)} here, or other shapes); give the evaluator the flags of the job"
        )
    for index, variable in enumerate(model.variables):
        variable.value.assign(tf.constant(saved.read(f"model/{index}")))


class _Results:
    """The results of the checkpoints: prints them, and writes JSON lines and TensorBoard events.

    Args:
        output: The directory for the files; None to write none.
    """

    def __init__(self, output: pathlib.Path | None) -> None:
        self.lines: list[dict[str, Any]] = []
        self._file = None if output is None else output / RESULTS
        self._events: Any = None
        if self._file is not None and self._file.exists():
            self.lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        if output is not None and importlib.util.find_spec("tensorboard") is not None:
            self._events = tf.summary.create_file_writer(str(output / _EVENTS))

    def has(self, name: str, saved: Reader) -> bool:
        """Returns whether the checkpoint has been evaluated."""
        key = (name, saved.manifest["saved"])
        return any((line["checkpoint"], line["saved"]) == key for line in self.lines)

    def add(self, name: str, saved: Reader, metrics: dict[str, float]) -> None:
        """Adds the results of a checkpoint."""
        position = saved.manifest["position"]
        line = {
            "checkpoint": name,
            "saved": saved.manifest["saved"],
            "epoch": position["epoch"],
            "step": position["step"],
            "total": position["total"],
            **metrics,
        }
        self.lines.append(line)
        text = "  ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
        print(f"{name}: epoch {position['epoch']}  step {position['step']}  {text}", flush=True)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self._events is not None:
            with self._events.as_default():
                for metric, value in metrics.items():
                    tf.summary.scalar(f"evaluation_{metric}", value, step=position["total"])
            self._events.flush()
