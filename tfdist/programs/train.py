"""Runs a training from dataset, strategy, plan and model to the summary."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Sequence

import keras
import tensorflow as tf

import tfdist
from tfdist import data, models
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.programs.events import Events
from tfdist.programs.progress import Progress
from tfdist.programs.results import History, save_whole, write_whole
from tfdist.programs.summary import Summary
from tfdist.scaling.plan import Plan
from tfdist.scaling.scale import scale
from tfdist.strategy.build import build_strategy
from tfdist.strategy.devices import virtual_devices
from tfdist.strategy.kinds import public_name
from tfdist.strategy.serve import serve
from tfdist.training.trainer import Trainer
from tfdist.validation import quote


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a training run; the flags of `tfdist train` have the same names."""

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
    transport: str = "auto"
    wire_dtype: str = "auto"
    local_steps: int = 1
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    profile: str | None = None
    profile_tasks: Sequence[str] | None = None


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
    steps = profiled_steps(options, cluster)
    output = output_directory(options.output_dir) if cluster.is_chief else None
    if options.virtual_devices:
        virtual_devices(options.virtual_devices)
    if options.strategy in ("auto", "parameter_server") and serve(cluster):
        return None
    strategy = build_strategy(options.strategy, cluster)
    keras.config.set_dtype_policy(options.mixed_precision)
    source = data.load(
        options.dataset,
        data_dir=options.data_dir,
        image_size=options.image_size,
        channels=3,
        seed=options.seed,
    )
    plan = make_plan(options, source, strategy.num_replicas_in_sync)
    if cluster.is_chief:
        print(f"{source.name}: {source.num_train:,} to train on, {source.num_test:,} to test on")
        print(plan, flush=True)
    if output is not None:
        _note_plan(plan, output / "plan.json")
    # After the data, as preparing it may draw numbers: the first run would have other weights.
    keras.utils.set_random_seed(options.seed)
    trainer = make_trainer(options, source, plan, strategy, profile=steps)
    progress = Progress(plan.global_batch, options.epochs)
    history = History(None if output is None else output / "history.json")
    followers: list[keras.callbacks.Callback] = [progress, history] if cluster.is_chief else []
    if output is not None:
        start = {
            "strategy": public_name(strategy),
            "replicas": plan.num_replicas,
            "global_batch": plan.global_batch,
            "plan": plan.to_dict(),
            "dataset": source.name,
            "tfdist": tfdist.__version__,
        }
        followers.append(Events(output, plan.global_batch, trainer.timings, start))
    test = source.test(plan.global_batch)
    trained = trainer.fit(
        source.train(plan.global_batch, augment=options.augment),
        epochs=options.epochs,
        validation_data=test,
        callbacks=followers,
        verbose=0,
    )
    metrics = history.last
    if not trained.epoch:  # A checkpoint of the finished run was there: nothing was left to train.
        results = trainer.evaluate(test, return_dict=True, verbose=0)
        metrics = {f"val_{name}": value for name, value in results.items()}
    summary = None
    if cluster.is_chief:
        summary = Summary(
            strategy=public_name(strategy),
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
            _save(trainer.model, summary, output, anew=bool(trained.epoch))
    return summary


def _note_plan(plan: Plan, path: pathlib.Path) -> None:
    """Saves the plan; prints the differences from that of the run that is resumed, if any."""
    try:
        before = Plan.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        before = plan  # There is none, or it is not one of ours.
    for change in plan.changes_since(before):
        print(f"changed: {change}", flush=True)
    write_whole(path, plan.to_json())


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
        warmup_epochs=options.warmup_epochs,
        epochs=options.epochs,
        num_examples=source.num_train,
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
        saves: Whether it saves checkpoints, where the options say so.
        profile: The first and last step to record a profile of; None for none.

    Raises:
        ConfigError: An option is wrong.
    """
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
        checkpoint_dir=options.checkpoint_dir if saves else None,
        checkpoint_steps=options.checkpoint_steps if saves else None,
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


def _save(model: keras.Model, summary: Summary, output: pathlib.Path, *, anew: bool) -> None:
    """Writes the model and the summary; those of a run that was done before stay."""
    if anew or not (output / "model.keras").exists():
        save_whole(model, output / "model.keras")
    if anew or not (output / "summary.txt").exists():
        text = f"{summary}\n{time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        write_whole(output / "summary.txt", text)


def output_directory(given: str | None) -> pathlib.Path | None:
    """Makes the directory for results, where one is given.

    Raises:
        ConfigError: It cannot be written to.
    """
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


def _model(options: TrainOptions, source: data.Source) -> keras.Model:
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
