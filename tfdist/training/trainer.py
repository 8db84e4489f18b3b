"""Implements Keras' fit, evaluate and predict under any `tf.distribute` strategy."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import keras
from typing_extensions import override

from tfdist.collectives.exit_barrier import add_exit_barrier
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.keras_internals import epoch_of_backup, results_in_order
from tfdist.notebook import Rows
from tfdist.runtime import excepthook
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.strategy.kinds import kind_of
from tfdist.training.agreement.consistency import WorkerConsistency, checked_on_all_workers
from tfdist.training.callbacks import callback_list, continue_csv_logs, history_of
from tfdist.training.checkpoint.model_file import save_model
from tfdist.training.checkpoint.saved import Position
from tfdist.training.epoch_runner import evaluate, predict, train
from tfdist.training.feeds import Feeds, validation_is_due
from tfdist.training.input.epoch import Epoch
from tfdist.training.input.feed import Feed
from tfdist.training.loops.select import Loops
from tfdist.training.model.alone import check_made_for_cluster
from tfdist.training.model.support import check_supported, strategy_of
from tfdist.training.options import TrainerOptions
from tfdist.training.plain_errors import plain_errors
from tfdist.training.session import (
    EpochTiming,
    HeartbeatOnly,
    Session,
    StepListener,
    restore_callback_state,
    resume,
)
from tfdist.training.step.replica import PREDICT, TEST
from tfdist.training.stop_training import StopTraining


class Trainer(Rows):
    """Trains a compiled Keras 3 model under the strategy it was made in.

    Takes Keras' own arguments and returns Keras' own results. Every worker of a strategy of several
    makes the same calls; under ParameterServerStrategy the chief does, while the other tasks are in
    `tfdist.serve`. Made inside a scope, they leave it. `timings` has those of the latest `fit`.

    Args:
        model: A compiled model, made and compiled inside `strategy.scope()`.
        checkpoint_dir: The directory to which the chief saves training, and from which `fit`
            resumes when the job is started again. SIGTERM then makes all workers save and stop.
        checkpoint_steps: Batches between checkpoints; if neither this nor `checkpoint_seconds`
            is given, each epoch is saved. The end of training is always saved.
        checkpoint_seconds: Seconds between checkpoints, which are written at the end of a call.
        keep_checkpoints: The number of checkpoints to keep.
        accumulate_steps: Batches whose gradients are accumulated for one update of the weights;
            the update is that of one batch as large as all of them.
        local_steps: Steps that each worker makes on its own between averages of weights and
            optimizer (local SGD): less is sent, and the numbers are not those of one device.
        outer_learning_rate: The fraction of the way to such an average that is taken.
        outer_momentum: Nesterov momentum of that way; 0.9 with a rate of 0.7 is DiLoCo.
        steps_per_call: Steps in one call of TensorFlow, between which callbacks are called; "auto"
            is the `steps_per_execution` of `compile`; if that is 1, of several replicas, and no
            callback looks at batches, as many short steps as take 50 ms.
        wire_dtype: The type to send gradients in: "float32" (and "auto"; exact), "bfloat16" or
            "float16" (half the bytes, rounded; CPUs convert bfloat16 faster).
        bytes_per_pack: Bytes that TensorFlow sends at once; "auto" leaves it to the strategy.
        transport: Between workers: "ring" (TCP between CPU replicas, memory within one host), or
            "tensorflow"; "auto" is the value of TFDIST_TRANSPORT, else "ring" where possible.
        compile_update: Whether XLA compiles the optimizer's update, which may then differ from
            Keras' in the last bit; "auto" does so with several workers and a million weights.
        check: "warn", "error" or "off": if slices of a few rows give other numbers than the rows.
        profile: The first and last step of each `fit` of which every worker records a profile.
        profile_dir: Where; see `tfdist profile`.

    Raises:
        ConfigError: An argument is out of range, or the model was made under another strategy.

    Example:
        >>> with tfdist.mirrored_strategy(["CPU:0", "CPU:1"]).scope():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
        >>> trainer = tfdist.Trainer(model)
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_steps: int | None = None,
        checkpoint_seconds: float | None = None,
        keep_checkpoints: int = 3,
        accumulate_steps: int = 1,
        steps_per_call: int | str = "auto",
        wire_dtype: str = "auto",
        bytes_per_pack: int | str = "auto",
        transport: str = "auto",
        compile_update: bool | str = "auto",
        local_steps: int = 1,
        outer_learning_rate: float = 1.0,
        outer_momentum: float = 0.0,
        check: str = "warn",
        profile: tuple[int, int] | None = None,
        profile_dir: str | os.PathLike[str] = "profile",
    ) -> None:
        arguments = {k: v for k, v in locals().items() if k not in ("self", "model")}
        self.model = model
        self.strategy = strategy_of(model)
        self._options = TrainerOptions(**arguments)
        self._options.check_for(model)
        excepthook.install()
        kind = kind_of(self.strategy)
        self._group = ProcessGroup(self.strategy, is_synchronous=kind.is_synchronous)
        add_exit_barrier(self._group)
        self._consistency = WorkerConsistency(model, self._group, self._options)
        self._heartbeat = HeartbeatWriter()
        self._flags = WorkerFlags()
        loops = self._options.for_loops(self._heartbeat.fed_path)
        self._loops = Loops(model, self._group, self._flags, loops)
        self._keras_steps = self._loops.runs_keras_steps
        self._feeds = Feeds(
            model,
            self._group,
            of_keras=self._keras_steps,
            look_at=self._consistency.check_order,
            steps_a_call=lambda: self._options.fixed_steps_per_call(model.steps_per_execution),
        )
        if model.compiled:
            check_supported(model, self.strategy, runs_keras_steps=self._keras_steps)
        self._position = Position(fit=-1)  # Of the latest call of `fit`.
        self.timings: list[EpochTiming] = []  # Of its epochs.
        self._checkpoints = self._options.checkpoints(model, self._group)

    @plain_errors
    @checked_on_all_workers
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> keras.callbacks.History:
        """Trains for a number of epochs; see `keras.Model.fit`.

        If `checkpoint_dir` holds a checkpoint, training resumes there, with the batches that
        would have come next. That is exact for arrays; for a function that takes `epoch` and
        returns the same data for the same epoch; for a `tf.data.Dataset` whose order depends on
        its seeds only, reshuffled in each epoch or not, if nothing else reads it; and for a
        `PyDataset`. A generator is read again up to that place. With another global batch it
        resumes at the batch of the same examples. The history holds all epochs of the call.

        Args:
            x: A `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator of global batches,
                the same on every worker; a function of `tf.distribute.InputContext` that returns
                this worker's batches; or arrays.
            y: Targets, with arrays.
            batch_size: The global batch (all replicas together), with arrays; 32 if None.
            epochs: The epoch to end before, counted from 0.
            verbose: 0, 1 or 2; "auto" is a bar on a terminal, else lines. Only the chief prints.
            callbacks: Keras callbacks. Those that write files do so on the chief only. If one
                worker's stop training, all stop after the same batch.
            validation_split: The fraction of the arrays, at their end, to validate on.
            validation_data: Data to validate on: (x, y), (x, y, sample_weight) or as for `x`.
            shuffle: Whether arrays, and the batches of a `PyDataset`, are shuffled in each epoch.
            class_weight: A weight for each class.
            sample_weight: A weight for each example, with arrays.
            initial_epoch: The epoch to start at.
            steps_per_epoch: Batches per epoch; the next epoch then continues in the data.
            validation_steps: Batches to validate on.
            validation_batch_size: The global batch of validation arrays.
            validation_freq: Epochs between validations, or a list of the epochs to validate in.

        Returns:
            The history: metrics by name, one value per epoch.

        Raises:
            ConfigError: An argument cannot work under this strategy, or differs between workers,
                or the data is malformed, or `checkpoint_dir` is of another job, cannot be
                written to, or holds damaged checkpoints only. Nothing has been trained.
            CheckpointError: A checkpoint could not be written; those before it are intact.
            PeerError: Another task was lost.
            OutOfStepError: Another worker made another call, or its callbacks set other weights.
            Preempted: SIGTERM came to one of the tasks, and training is saved.

        Example:
            >>> x = np.random.rand(64, 2)
            >>> history = trainer.fit(x, x.sum(axis=1), batch_size=16, epochs=3, verbose=0)
            >>> len(history.history["loss"])
            3
        """
        self._heartbeat.write("building")
        self.timings.clear()
        check_made_for_cluster(self.strategy)
        check_supported(self.model, self.strategy, runs_keras_steps=self._keras_steps)
        epochs = self._feeds.most_epochs(epochs)
        data = (x, y, sample_weight)
        data, validation_data = self._feeds.hold_out(data, validation_split, validation_data)
        saved = self._checkpoints.find(self._position.fit + 1) if self._checkpoints else None
        seed = self._feeds.draw_seed(data[0]) if shuffle else 0
        seed = saved.position.seed if saved is not None else seed
        feed = self._feeds.make(
            *data,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            class_weight=class_weight,
            steps=steps_per_epoch,
        )
        loop = self._loops.loop(feed)
        validation = self._feeds.validation(
            validation_data, validation_batch_size or batch_size, validation_steps
        )
        feed.restart()
        batch = self._feeds.global_batch(feed, needed=self._checkpoints is not None)
        start = self._position.next_fit(initial_epoch, seed, batch)
        start = resume(start, saved, self._checkpoints, feed, loop, epochs)
        self._position = start
        self._consistency.check_first_batch(feed)
        stop_at = start.epoch if start.finished else epochs
        place = (start.epoch, self._group.exchange, start.step)
        epoch_data = feed.epoch(*place) if start.epoch < stop_at else None
        every = self._callback_list(
            callbacks,
            verbose,
            added=[*self._consistency.callbacks(), *self._options.recorders(self._group.task)],
            add_history=True,
            epochs=epochs,
            steps=steps_per_epoch or (epoch_data.steps if epoch_data is not None else None),
        )
        stop_training = StopTraining(self.model, self._group, self._flags, every.callbacks)
        if saved is not None:
            continue_csv_logs(every.callbacks, start.epoch)
        every.on_train_begin()
        if saved is not None:
            restore_callback_state(saved, start, every.callbacks)
        elif self._keras_steps and epoch_of_backup(self.model):
            # BackupAndRestore has found where an earlier run was.
            start = dataclasses.replace(start, epoch=epoch_of_backup(self.model))
            epoch_data = None
            feed.restart()
        session = Session(
            *(self._group, loop, self._heartbeat, self._flags, start),
            checkpoints=self._checkpoints,
            callbacks=every.callbacks,
            before_save=self._consistency.check_before_save,
            timings=self.timings,
            if_slow=getattr(x, "if_slow", None),
        )
        limit = self._options.step_limit(
            self.model, every.callbacks, self._group.exchange, alone=self._keras_steps
        )
        logs: dict[str, Any] = {}
        with session.running():
            for number in range(start.epoch, stop_at):
                epoch_data = epoch_data or feed.epoch(number, self._group.exchange)
                logs = train(feed, epoch_data, loop, every, session, stop_training, limit)
                epoch_data = None
                if validation is not None and validation_is_due(number, validation_freq):
                    logs |= self._validate(validation, every, session)
                every.on_epoch_end(number, logs)
                stops = stop_training.exchange()
                session.next_epoch(finished=stops, last=stops or number + 1 == epochs)
                if stops:
                    break
            self._position = session.position
            optimizer = self.model.optimizer
            if isinstance(optimizer, keras.optimizers.Optimizer) and epochs > initial_epoch:
                optimizer.finalize_variable_values(self.model.trainable_weights)
            every.on_train_end(logs)
        return history_of(every)

    @plain_errors
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Computes the loss and metrics, exactly, for data of any size; see `Model.evaluate`.

        Returns:
            A dict of values by name if `return_dict`, else a list of them, or the loss alone.

        Raises:
            TfdistError: As for `fit`.

        Example:
            >>> sorted(trainer.evaluate(x, x.sum(axis=1), verbose=0, return_dict=True))
            ['loss', 'mae']
        """
        check_supported(self.model, self.strategy, runs_keras_steps=self._keras_steps)
        feed = self._feeds.make(x, y, sample_weight, batch_size=batch_size, steps=steps)
        self._loops.loop(feed, TEST)
        feed.restart()
        epoch = feed.epoch(0, self._group.exchange)
        every = self._callback_list(callbacks, verbose, epochs=1, steps=steps or epoch.steps)
        logs = self._evaluate(feed, epoch, every, HeartbeatOnly(self._heartbeat))
        return logs if return_dict else results_in_order(self.model, logs)

    @plain_errors
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Computes the outputs for all of the data, in its order, on every worker.

        Returns:
            An array, or a structure of arrays like the model's outputs.

        Raises:
            TfdistError: As for `fit`.

        Example:
            >>> trainer.predict(x, verbose=0).shape
            (64, 1)
        """
        feed = self._feeds.make(x, None, None, batch_size=batch_size, steps=steps)
        loop, exchange = self._loops.loop(feed, PREDICT), self._group.exchange
        epoch = feed.epoch(0, exchange)
        every = self._callback_list(callbacks, verbose, epochs=1, steps=steps or epoch.steps)
        most = self.model.steps_per_execution if self._keras_steps else 1
        return predict(self.model, feed, epoch, loop, every, exchange=exchange, most=most)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `name.keras` as `model.save` does: whole or not at all, and only on the chief.

        Raises:
            ConfigError: Its name ends otherwise, or it cannot be written.

        Example:
            >>> trainer.save(os.path.join(folder, "model.keras"))
        """
        if self._group.is_chief:
            save_model(self.model, path)

    def _validate(self, feed: Feed, every: Any, session: Session) -> dict[str, Any]:
        feed.restart()
        epoch = feed.epoch(0, self._group.exchange)
        logs = self._evaluate(feed, epoch, every, session)
        return {f"val_{name}": value for name, value in logs.items()}

    def _evaluate(
        self, feed: Feed, epoch: Epoch, every: Any, listener: StepListener
    ) -> dict[str, Any]:
        return evaluate(
            *(self.model, feed, epoch, self._loops.loop(feed, TEST), every, listener),
            exchange=self._group.exchange,
            most=self._options.max_steps_per_call(self.model.steps_per_execution),
        )

    def _callback_list(
        self, callbacks: Any, verbose: int | str, **params: Any
    ) -> keras.callbacks.CallbackList:
        params |= {"is_chief": self._group.is_chief, "alone": self._keras_steps}
        return callback_list(self.model, callbacks, verbose, **params)

    def __repr__(self) -> str:
        return f"<Trainer of {', '.join(f'{name} {text}' for name, text in self._rows())}>"

    @override
    def _rows(self) -> list[tuple[str, str]]:
        size = f", {self.model.count_params():,} parameters" if self.model.built else ""
        replicas = self.strategy.num_replicas_in_sync
        rows = [
            ("model", f"{self.model.name}{size}"),
            ("strategy", f"{kind_of(self.strategy).public}, replicas: {replicas}"),
        ]
        if self.timings:
            seconds = sum(timing.seconds for timing in self.timings)
            steps = sum(timing.steps for timing in self.timings)
            text = f"{len(self.timings)} epochs, {steps:,} steps in {seconds:.1f} s"
            rows.append(("latest fit", text))
        return rows
