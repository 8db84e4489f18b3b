"""One training run: dataset, strategy, plan, model, trainer, and what came of it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from typing import Any

import keras
import tensorflow as tf

from tfdist import data, models
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.scaling import Plan, scale
from tfdist.serving import serve
from tfdist.strategy import build_strategy, virtual_devices
from tfdist.training.progress import Progress
from tfdist.training.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What to train and how; the flags of `tfdist train` have the same names."""

    strategy: str = "auto"
    virtual_devices: int = 0
    dataset: str = "digits"
    data_dir: str | None = None
    model: str = "resnet50"
    image_size: int = 32
    augment: bool = True
    per_replica_batch: int = 32
    accumulate_steps: int = 1
    epochs: int = 10
    base_learning_rate: float = 0.08
    base_batch: int = 256
    rule: str = "linear"
    warmup_epochs: float = 1.0
    decay: str = "cosine"
    optimizer: str = "sgd"
    synchronized_batch_norm: bool = False
    mixed_precision: str = "float32"
    seed: int = 0
    output_dir: str | None = None
    checkpoint_dir: str | None = None
    checkpoint_steps: int | None = None


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run came to. Prints as a table.

    Attributes:
        strategy: The strategy's class.
        replicas: Replicas in sync.
        dataset: Its full name.
        parameters: How many numbers the model has.
        metrics: Losses and metrics of the last epoch, by name.
        images_per_second: Over all replicas, without the first step of the run and evaluation.
        seconds: Duration of the training, in seconds.
        plan: Batch and learning rate.
        model_path: Where the model was saved, if anywhere.
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
        rows = [
            ("strategy", f"{self.strategy}, {self.replicas} replica(s)"),
            ("dataset", self.dataset),
            ("parameters", f"{self.parameters:,}"),
            ("test accuracy", f"{self.metrics['val_accuracy']:.2%}"),
            ("test loss", f"{self.metrics['val_loss']:.4f}"),
            ("images per second", f"{self.images_per_second:.1f}"),
            ("training time", f"{self.seconds:.0f} s"),
            *(tuple(line.split("  ", 1)) for line in str(self.plan).splitlines()),
            ("model", str(self.model_path or "not saved (give --output_dir)")),
        ]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{row[0]:<{width}}  {row[1].strip()}" for row in rows)


def train(cluster: Cluster, options: Options) -> Summary | None:
    """Trains, evaluates and saves.

    Args:
        cluster: The cluster this process is a task of.
        options: What to do.

    Returns:
        What came of it, in the chief; None in every other task.

    Raises:
        ConfigError: An option is wrong, or does not go with the cluster.
        PeerError: A task was lost.
    """
    output = _output_dir(options.output_dir) if cluster.is_chief else None
    if options.virtual_devices:
        virtual_devices(options.virtual_devices)
    if options.strategy in ("auto", "parameter_server") and serve(cluster):
        return None
    strategy = build_strategy(options.strategy, cluster)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.mixed_precision)
    source = data.load(
        options.dataset,
        data_dir=options.data_dir,
        image_size=options.image_size,
        channels=3,
        seed=options.seed,
    )
    plan = _plan(options, source, strategy.num_replicas_in_sync)
    if cluster.is_chief:
        print(f"{source.name}: {source.num_train:,} to train on, {source.num_test:,} to test on")
        print(plan, flush=True)
    if output is not None:
        _note_plan(plan, output / "plan.json")
    trainer = _trainer(options, source, plan, strategy)
    progress = Progress(plan.global_batch, options.epochs)
    test = source.test(plan.global_batch)
    history = trainer.fit(
        source.train(plan.global_batch, augment=options.augment),
        epochs=options.epochs,
        validation_data=test,
        callbacks=[progress] if cluster.is_chief else [],
        verbose=0,
    )
    metrics = {name: values[-1] for name, values in history.history.items()}
    if not metrics:  # A checkpoint of the finished run was there: nothing was left to train.
        results = trainer.evaluate(test, return_dict=True, verbose=0)
        metrics = {f"val_{name}": value for name, value in results.items()}
    summary = None
    if cluster.is_chief:
        summary = Summary(
            strategy=type(strategy).__name__,
            replicas=plan.num_replicas,
            dataset=source.name,
            parameters=trainer.model.count_params(),
            metrics=metrics,
            images_per_second=progress.images_per_second,
            seconds=progress.seconds,
            plan=plan,
            model_path=None if output is None else output / "model.keras",
        )
        if output is not None:
            _save(trainer.model, history.history, summary, output)
    # All leave together: TensorFlow takes a worker that leaves first for one that was lost.
    trainer.place.exchange(0)
    return summary


def _note_plan(plan: Plan, path: pathlib.Path) -> None:
    """Saves the plan; says what an earlier one in its place, of a run gone on with, had else."""
    try:
        before = Plan.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        before = plan  # There is none, or it is not one of ours.
    for change in plan.changes_since(before):
        print(f"changed: {change}", flush=True)
    path.write_text(plan.to_json())


def _plan(options: Options, source: data.Source, replicas: int) -> Plan:
    return scale(
        per_replica_batch=options.per_replica_batch,
        num_replicas=replicas,
        base_learning_rate=options.base_learning_rate,
        base_batch=options.base_batch,
        rule=options.rule,
        warmup_epochs=options.warmup_epochs,
        epochs=options.epochs,
        num_examples=source.num_train,
        decay=options.decay,
        accumulate_steps=options.accumulate_steps,
    )


def _trainer(
    options: Options, source: data.Source, plan: Plan, strategy: tf.distribute.Strategy
) -> Trainer:
    with strategy.scope():
        model = _model(options, source)
        model.compile(
            optimizer=_optimizer(options.optimizer, plan),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    return Trainer(
        model,
        accumulate_steps=options.accumulate_steps,
        checkpoint_dir=options.checkpoint_dir,
        checkpoint_steps=options.checkpoint_steps,
    )


def _save(
    model: keras.Model, history: dict[str, Any], summary: Summary, output: pathlib.Path
) -> None:
    model.save(output / "model.keras")
    (output / "history.json").write_text(json.dumps(history, indent=2) + "\n")
    (output / "summary.txt").write_text(f"{summary}\n{time.strftime('%Y-%m-%d %H:%M:%S')}\n")


def _output_dir(given: str | None) -> pathlib.Path | None:
    if given is None:
        return None
    path = pathlib.Path(given)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"output_dir: {given!r} cannot be written ({error.strerror}); give another directory"
        ) from None
    return path


def _model(options: Options, source: data.Source) -> keras.Model:
    if options.model == "small_cnn":
        return models.small_cnn(
            source.image_shape,
            source.num_classes,
            batch_norm="synchronized" if options.synchronized_batch_norm else "plain",
        )
    return models.resnet50(
        source.image_shape,
        source.num_classes,
        synchronized_batch_norm=options.synchronized_batch_norm,
        zero_gamma=True,
    )


def _optimizer(name: str, plan: Plan) -> keras.optimizers.Optimizer:
    schedule = plan.schedule()
    if name == "adam":
        return keras.optimizers.Adam(schedule)
    if name == "adamw":
        return keras.optimizers.AdamW(schedule)
    return keras.optimizers.SGD(schedule, momentum=0.9)
