"""Runs a training from dataset, strategy, plan and model to the summary."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import sys
import tempfile
import time

import keras
import tensorflow as tf

import tfdist
from tfdist import data
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.models.named import check_name
from tfdist.programs import saved_model
from tfdist.programs.model import make_model
from tfdist.programs.options import TrainOptions
from tfdist.programs.progress import Progress, TimeLimit
from tfdist.programs.records import Events, History
from tfdist.programs.run_folder import open_run
from tfdist.scaling.plan import Plan
from tfdist.scaling.scale import scale
from tfdist.strategy.build import build_strategy
from tfdist.strategy.devices import virtual_devices
from tfdist.strategy.kinds import public_name
from tfdist.strategy.serve import serve
from tfdist.training.checkpoint.file import DamagedError, UnknownFormatError, open_checkpoint
from tfdist.training.trainer import Trainer
from tfdist.validation import quote

# Pixels of the smallest images that ResNet50 takes.
_LEAST_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Summary:
    """The results of a run. Prints as a table.

    Attributes:
        strategy: The strategy's class.
        replicas: Replicas in sync.
        dataset: Its full name.
        parameters: The number of the model's parameters.
        metrics: Losses and metrics of the last epoch, by name.
        images_per_second: Over all replicas, excluding the first step of the run and evaluation;
            0.0 where there was no other.
        seconds: Duration of the training, in seconds.
        plan: Batch and learning rate.
        model_path: The file of the saved model, if there is one.
    """

    strategy: str
    replicas: int
    dataset: str
    parameters: int
    metrics: dict[str, float]
    images_per_second: float
    seconds: float
    plan: Plan
    model_path: pathlib.Path | None

    def __str__(self) -> str:
        return self.table()

    def table(self, *, has_plan: bool = False) -> str:
        """Returns it as text, with the plan or, where that was printed before, without."""
        plan = str(self.plan).splitlines() if has_plan else []
        rows = [
            ("strategy", f"{self.strategy}, {self.replicas} replica(s)"),
            ("dataset", self.dataset),
            ("parameters", f"{self.parameters:,}"),
            *self._results(),
            *self._speed(),
            *(tuple(line.split("  ", 1)) for line in plan),
            ("model", str(self.model_path or "not saved (give --output-dir)")),
        ]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{row[0]:<{width}}  {row[1].strip()}" for row in rows)

    def _results(self) -> list[tuple[str, str]]:
        found = {name.removeprefix("val_"): v for name, v in self.metrics.items() if "val_" in name}
        kind = "test" if found else "training"
        found = found or self.metrics
        formats = {"accuracy": ".2%", "loss": ".4f"}
        return [(f"{kind} {n}", format(found[n], f)) for n, f in formats.items() if n in found]

    def _speed(self) -> list[tuple[str, str]]:
        if not self.seconds:
            return [("training time", "none: the run was already finished")]
        speed = (
            f"{self.images_per_second:.1f}"
            if self.images_per_second
            else "not measured in one step"
        )
        return [("images per second", speed), ("training time", f"{self.seconds:.0f} s")]


def train(cluster: Cluster, options: TrainOptions) -> Summary | None:
    """Trains, evaluates and saves.

    Args:
        cluster: The cluster of this task.
        options: The options.

    Returns:
        The summary, in the chief; None in every other task.

    Raises:
        ConfigError: An option is wrong, or cannot be used on the cluster.
        PeerError: A task was lost.
    """
    if options.smoke and options.output_dir is None:
        with tempfile.TemporaryDirectory(prefix="tfdist-smoke-") as folder:
            summary = train(cluster, dataclasses.replace(options, output_dir=folder))
            return summary and dataclasses.replace(summary, model_path=None)
    options = options.settled()
    check_name(options.model, "train(--model)")
    steps = profiled_steps(options, cluster)
    output = open_run(options) if cluster.is_chief else None
    if options.virtual_devices:
        virtual_devices(options.virtual_devices)
    if options.strategy in ("auto", "parameter_server") and serve(cluster):
        return None
    strategy = build_strategy(options.strategy, cluster)
    keras.config.set_dtype_policy(options.mixed_precision)
    source = open_source(options)
    plan = make_plan(options, source, strategy.num_replicas_in_sync)
    if cluster.is_chief:
        tested = f"{source.num_test:,} to test on" if source.num_test else "none to test on"
        print(f"{source.name}: {source.num_train:,} to train on, {tested}")
        print(plan, flush=True)
    if output is not None:
        _note_plan(plan, output / "plan.json")
    # After the data, as preparing it may draw random numbers: the first run would differ.
    keras.utils.set_random_seed(options.seed)
    trainer = make_trainer(options, source, plan, strategy, profile=steps)
    progress = Progress(plan.global_batch, options.epochs)
    history = History(None if output is None else output / "history.json")
    followers: list[keras.callbacks.Callback] = [progress, history] if cluster.is_chief else []
    if output is not None:
        followers.append(_events(output, source, plan, trainer))
    if options.max_time is not None:
        followers.append(TimeLimit(options.max_time))
    one_hot = bool(options.label_smoothing)
    test = source.test(plan.global_batch, one_hot=one_hot) if source.num_test else None
    try:
        trainer.fit(
            source.train(plan.global_batch, augment=options.augment, one_hot=one_hot),
            epochs=options.epochs,
            steps_per_epoch=options.limit_steps,
            validation_data=test,
            validation_steps=1 if options.smoke and test is not None else None,
            callbacks=followers,
            verbose=0,
        )
    except KeyboardInterrupt:
        if cluster.is_chief:
            progress.close()
            print(f"tfdist: interrupted; {_what_is_saved(options)}", file=sys.stderr, flush=True)
        raise
    finally:
        progress.close()
    has_trained = bool(trainer.timings)
    metrics = history.last
    # Where the run was finished before, nothing was left to train. And `fit` ends with the average
    # of the weights, while the last epoch's results are of those before that.
    if test is not None and (not has_trained or options.ema is not None):
        results = trainer.evaluate(test, return_dict=True, verbose=0)
        metrics = {f"val_{name}": value for name, value in results.items()}
    if not cluster.is_chief:
        return None
    summary = Summary(
        strategy=public_name(strategy),
        replicas=plan.num_replicas,
        dataset=source.name,
        parameters=trainer.model.count_params(),
        metrics=metrics,
        images_per_second=progress.images_per_second,
        seconds=progress.seconds,
        plan=plan,
        model_path=None if output is None else output / saved_model.MODEL,
    )
    if output is not None:
        _save(trainer.model, source, options, summary, output, has_trained=has_trained)
    return summary


def open_source(options: TrainOptions) -> data.Source:
    """Opens the dataset, whose images get the size that is asked for, else their own.

    Raises:
        ConfigError: There is none of that name, or it is not one of labelled images.
    """
    size = options.image_size
    if size is None and options.dataset == "synthetic":
        size = _LEAST_SIZE
    source = data.load(
        options.dataset,
        data_dir=options.data_dir,
        stage_dir=options.stage_dir,
        image_size=size,
        channels=3,
        seed=options.seed,
        validation_split=options.validation_split,
    )
    if size is not None:
        return source
    height, width, channels = source.image_shape
    # ResNet50 halves them five times.
    sides = (max(height, _LEAST_SIZE), max(width, _LEAST_SIZE))
    return dataclasses.replace(source, image_shape=(*sides, channels))


def _events(
    output: pathlib.Path, source: data.Source, plan: Plan, trainer: Trainer
) -> keras.callbacks.Callback:
    start = {
        "strategy": public_name(trainer.strategy),
        "replicas": plan.num_replicas,
        "global_batch": plan.global_batch,
        "plan": plan.to_dict(),
        "dataset": source.name,
        "tfdist": tfdist.__version__,
    }
    return Events(output, plan.global_batch, trainer.timings, start)


def _what_is_saved(options: TrainOptions) -> str:
    """Returns what a run that is interrupted has saved, and how to continue it."""
    if options.checkpoint_dir is None:
        return "nothing is saved; with --output-dir a run is saved and can continue"
    for path in sorted(pathlib.Path(options.checkpoint_dir).glob("checkpoint-*.tfdist"))[::-1]:
        with contextlib.suppress(OSError, DamagedError, UnknownFormatError):
            with open_checkpoint(path) as saved:
                position = saved.manifest["position"]
            done = f"epoch {position['epoch'] + 1}, step {position['step']}"
            return f"saved in {path} up to {done}; the same command continues from there"
    return f"nothing is saved in {options.checkpoint_dir} yet; the same command begins again"


def _note_plan(plan: Plan, path: pathlib.Path) -> None:
    """Saves the plan; prints the differences from that of the run that is resumed, if any."""
    try:
        before = Plan.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        before = plan  # There is none, or another program has written it.
    for change in plan.changes_since(before):
        print(f"changed: {change}", flush=True)
    with write_whole(path) as new:
        new.write_text(plan.to_json())


def make_plan(options: TrainOptions, source: data.Source, replicas: int) -> Plan:
    """Works out batch and learning rate.

    Raises:
        ConfigError: An option is wrong.
    """
    return scale(
        per_replica_batch=options.per_replica_batch,
        num_replicas=replicas,
        base_learning_rate=options.base_learning_rate,
        base_batch=options.base_batch,
        rule=options.rule,
        warmup_epochs=options.warmup_epochs or 0.0,
        epochs=options.epochs,
        num_examples=source.num_train if options.limit_steps is None else None,
        steps_per_epoch=options.limit_steps,
        decay=options.decay,
        accumulate_steps=options.accumulate_steps,
    )


def make_trainer(
    options: TrainOptions,
    source: data.Source,
    plan: Plan,
    strategy: tf.distribute.Strategy,
    *,
    saves: bool = True,
    profile: tuple[int, int] | None = None,
) -> Trainer:
    """Makes the model and its trainer.

    Args:
        options: The options of the training.
        source: The dataset.
        plan: Batch and learning rate.
        strategy: The strategy to train under.
        saves: Whether it saves checkpoints, where the options ask for them.
        profile: The first and last step to record a profile of; None for none.

    Raises:
        ConfigError: An option is wrong.
    """
    with strategy.scope():
        model = make_model(options, source, plan)
    return Trainer(
        model,
        accumulate_steps=options.accumulate_steps,
        checkpoint_dir=options.checkpoint_dir if saves else None,
        checkpoint_steps=options.checkpoint_steps if saves else None,
        checkpoint_seconds=options.checkpoint_seconds if saves else None,
        steps_per_call="auto" if options.steps_per_call is None else options.steps_per_call,
        transport=options.transport,
        wire_dtype=options.wire_dtype,
        local_steps=options.local_steps,
        outer_learning_rate=options.outer_learning_rate,
        outer_momentum=options.outer_momentum,
        profile=profile,
        profile_dir=pathlib.Path(options.output_dir or ".") / "profile",
    )


def profiled_steps(options: TrainOptions, cluster: Cluster) -> tuple[int, int] | None:
    """Returns the first and last step of which this task records a profile; None for none.

    Raises:
        ConfigError: `profile` is not A:B, or a task is not one of the cluster.
    """
    names = [str(task) for task in cluster.tasks]
    for name in options.profile_tasks or ():
        if name not in names:
            raise ConfigError(
                f"profile_tasks: {quote(name)} is given; allowed: {', '.join(names[:8])}"
            )
    if options.profile is None:
        return None
    first, _, last = options.profile.partition(":")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ConfigError(
            f"profile: {quote(options.profile)} is given; allowed: two steps, as in 11:20"
        )
    is_asked = not options.profile_tasks or str(cluster.task) in options.profile_tasks
    return (int(first), int(last)) if is_asked else None


def _save(
    model: keras.Model,
    source: data.Source,
    options: TrainOptions,
    summary: Summary,
    output: pathlib.Path,
    *,
    has_trained: bool,
) -> None:
    """Writes the model and the summary; those of a run that was done before stay."""
    if has_trained or not (output / saved_model.MODEL).exists():
        saved_model.save(model, source, options, output)
    if has_trained or not (output / "summary.txt").exists():
        text = f"{summary.table(has_plan=True)}\n{time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        with write_whole(output / "summary.txt") as new:
            new.write_text(text)
