"""`Trainer`: Keras' fit, evaluate and predict, under any `tf.distribute` strategy."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import ending, farewell
from tfdist.errors import ConfigError, Preempted
from tfdist.heartbeat import Heart
from tfdist.training import build, callback_state
from tfdist.training.callbacks import callback_list
from tfdist.training.checkpoint import Checkpoints, Position, Saved, announce
from tfdist.training.course import Course
from tfdist.training.feed import Epoch, Feed
from tfdist.training.metrics import in_order
from tfdist.training.parameter_server import ParameterServerLoop
from tfdist.training.peers import naming_peers
from tfdist.training.place import Place
from tfdist.training.preemption import Sigterm
from tfdist.training.sources import make_feed, split_arrays
from tfdist.training.stopping import Stopping
from tfdist.training.synchronous import SynchronousLoop
from tfdist.training.updates_within import updates_within
from tfdist.training.wishes import Wishes

_WIRE_DTYPES = {"auto": None, "float32": None, "bfloat16": tf.bfloat16, "float16": tf.float16}


class Trainer:
    """Trains a compiled Keras 3 model under the strategy it was made in.

    Takes Keras' own arguments and gives Keras' own results. Every worker of a
    MultiWorkerMirroredStrategy makes the same calls; under ParameterServerStrategy
    the chief makes them, while the other tasks are in `tfdist.serve`.

    Args:
        model: A compiled model, made and compiled inside `strategy.scope()`.
        checkpoint_dir: Where the chief saves training, for `fit` to go on from there when the
            job is started again. SIGTERM then makes all workers save and stop.
        checkpoint_steps: Every how many batches to save; the end of each epoch where neither
            this nor `checkpoint_seconds` is given. The end of training is always saved.
        checkpoint_seconds: Every how many seconds to save, at the end of a call.
        keep_checkpoints: How many checkpoints to keep.
        accumulate_steps: Batches whose gradients are added up before the weights are updated;
            the update is that of one batch as large as all of them.
        steps_per_call: Steps that run in one call of TensorFlow, between which callbacks are
            not called; "auto" takes the `steps_per_execution` given to `compile`.
        wire_dtype: The type gradients travel in: "float32", "bfloat16" or "float16" (half the
            bytes, rounded sums); "auto" is float32, which is exact.
        bytes_per_pack: How much is sent at once, in bytes; "auto" leaves it as the strategy
            was made with.

    Raises:
        ConfigError: An argument is out of range, or the model is not compiled or was made
            under another strategy.
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
    ) -> None:
        if checkpoint_steps is not None:
            _positive("checkpoint_steps", checkpoint_steps)
        if checkpoint_seconds is not None and not checkpoint_seconds > 0:
            raise ConfigError(
                f"Trainer(checkpoint_seconds): {checkpoint_seconds!r} is given; allowed: above 0"
            )
        how_often = (checkpoint_steps, checkpoint_seconds)
        if checkpoint_dir is None and how_often != (None, None):
            raise ConfigError(
                "Trainer(checkpoint_dir): none is given, but how often to save is; give both"
            )
        _positive("keep_checkpoints", keep_checkpoints)
        _positive("accumulate_steps", accumulate_steps)
        if steps_per_call != "auto":
            _positive("steps_per_call", steps_per_call)
        if bytes_per_pack != "auto":
            _positive("bytes_per_pack", bytes_per_pack)
        if wire_dtype not in _WIRE_DTYPES:
            raise ConfigError(
                f"Trainer(wire_dtype): {wire_dtype!r} is unknown; allowed: "
                f"{', '.join(_WIRE_DTYPES)}"
            )
        ending.install()
        self.model = model
        self.strategy = model.distribute_strategy
        self.place = Place(self.strategy)
        if self.place.is_parameter_server and accumulate_steps > 1:
            raise ConfigError(
                "Trainer(accumulate_steps): under ParameterServerStrategy each worker updates "
                "the weights on its own; use a larger batch"
            )
        self._accumulate_steps = accumulate_steps
        self._steps_per_call = steps_per_call
        self._wire_dtype = _WIRE_DTYPES[wire_dtype]
        self._bytes_per_pack = 0 if bytes_per_pack == "auto" else int(bytes_per_pack)
        self._loops: dict[Any, Any] = {}
        self._coordinator: Any = None
        self._heart = Heart()
        self._wishes = Wishes()
        self._fits = 0
        self._total = 0
        self._checkpoints: Checkpoints | None = None
        if checkpoint_dir is not None:
            self._checkpoints = Checkpoints(
                model,
                self.place,
                os.fspath(checkpoint_dir),
                steps=checkpoint_steps,
                seconds=checkpoint_seconds,
                keep=keep_checkpoints,
            )
        if model.compiled:
            build.check(model, self.strategy)
        if accumulate_steps > 1 and updates_within(model):
            raise ConfigError(
                f"Trainer(accumulate_steps): {type(model).__name__}.train_step uses several "
                "optimizers and updates the weights itself; use a larger batch"
            )

    @naming_peers
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
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

        With a `checkpoint_dir` that holds a checkpoint it goes on from there, with the batches
        that would have come next. That is exact for arrays; for a function that takes `epoch`
        and gives the same for the same epoch; for a `tf.data.Dataset` whose order follows from
        its seeds, reshuffled in each epoch or not, if it is read for this training only; and
        for a `PyDataset`. A generator is read anew up to that place. With another global batch
        it goes on at the batch of the same examples. The history holds the epochs since then.

        Args:
            x: A `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator of global batches,
                the same on every worker; a function of `tf.distribute.InputContext` that gives
                this worker's batches; or arrays.
            y: Targets, with arrays.
            batch_size: The global batch (all replicas together), with arrays; 32 if absent.
            epochs: The epoch to end before, counted from 0.
            verbose: 0, 1 or 2; "auto" is a bar on a terminal and a line an epoch elsewhere.
                Only the chief prints.
            callbacks: Keras callbacks. Those that write files do so on the chief only. Where one
                worker's stop training, all stop after the same batch.
            validation_split: The last part of the arrays, to validate on.
            validation_data: What to validate on after an epoch: (x, y), (x, y, sample_weight)
                or anything that `x` may be.
            shuffle: Whether arrays are shuffled anew in each epoch.
            class_weight: A weight for each class.
            sample_weight: A weight for each example, with arrays.
            initial_epoch: The epoch to start at.
            steps_per_epoch: Batches an epoch; the data then goes on from epoch to epoch.
            validation_steps: Batches to validate on.
            validation_batch_size: The global batch of validation arrays.
            validation_freq: Every how many epochs, or in which, to validate.

        Returns:
            The history: metrics by name, a value an epoch.

        Raises:
            ConfigError: What is asked for cannot work under this strategy, or the data is
                malformed, or `checkpoint_dir` is of another job, cannot be written to, or holds
                damaged checkpoints only. Nothing has been trained.
            CheckpointError: A checkpoint could not be written; those before it are intact.
            PeerError: Another task was lost.
            OutOfStepError: Another worker made another call.
            Preempted: SIGTERM came to one of the tasks, and training is saved.
        """
        self._heart.write("building")
        build.check(self.model, self.strategy)
        if validation_split:
            (x, y, sample_weight), held_out = split_arrays(x, y, sample_weight, validation_split)
            validation_data = validation_data if validation_data is not None else held_out
        saved = self._checkpoints.find(self._fits) if self._checkpoints is not None else None
        seed = self._draw_seed(x) if shuffle else 0
        if saved is not None:
            seed = saved.position.seed
        feed = self._feed(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            class_weight=class_weight,
            steps=steps_per_epoch,
        )
        loop = self._loop(feed)
        validation = None
        if validation_data is not None:
            validation = self._validation_feed(
                validation_data, validation_batch_size or batch_size, validation_steps
            )
        history = keras.callbacks.History()
        start = self._start(saved, feed, loop, initial_epoch, seed)
        stop_at = start.epoch if start.finished else epochs
        epoch_data = None
        if start.epoch < stop_at:
            epoch_data = feed.epoch(start.epoch, self.place.exchange, start.step)
        every = callback_list(
            self.model,
            [*(callbacks or ()), history],
            is_chief=self.place.is_chief,
            verbose=self._verbosity(verbose),
            epochs=epochs,
            steps=epoch_data.steps if epoch_data is not None else None,
        )
        stopping = Stopping(self.model, self.place, self._wishes, every.callbacks)
        self.model.stop_training = False
        every.on_train_begin()
        if saved is not None and start.fit == saved.position.fit:
            content = saved.content
            callback_state.give_back(every.callbacks, content.manifest["callbacks"], content.arrays)
        logs: dict[str, Any] = {}
        with self._course(start, loop, every) as course:
            for number in range(start.epoch, stop_at):
                first = course.position.step
                if epoch_data is None:
                    epoch_data = feed.epoch(number, self.place.exchange)
                if not first:
                    loop.reset_metrics()
                every.on_epoch_begin(number)
                self._run_steps(epoch_data, loop.train, every, "train", first, course, stopping)
                loop.finish_epoch()
                feed.end_epoch()
                epoch_data = None
                course.trained()
                loop.totals.publish()
                logs = _plain(loop.logs())
                if validation is not None and _is_due(number, validation_freq):
                    results = self._evaluate(validation, every, validation_steps, course)
                    logs |= {f"val_{name}": value for name, value in results.items()}
                every.on_epoch_end(number, logs)
                stops = stopping.agreed()
                course.next_epoch(finished=stops, last=stops or number + 1 == epochs)
                if stops:
                    break
            self._total = course.position.total
            optimizer = self.model.optimizer
            if isinstance(optimizer, keras.optimizers.Optimizer) and epochs > initial_epoch:
                optimizer.finalize_variable_values(self.model.trainable_weights)
            every.on_train_end(logs)
            course.end()
        return history

    @naming_peers
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Computes the loss and metrics, exactly, for data of any size; see `Model.evaluate`.

        Returns:
            A dict of values by name if `return_dict`, else a list of them, or the loss alone.

        Raises:
            ConfigError: As for `fit`.
            PeerError: Another task was lost.
            OutOfStepError: Another worker made another call.
        """
        build.check(self.model, self.strategy)
        feed = self._feed(x, y, sample_weight, batch_size=batch_size, steps=steps)
        self._loop(feed)
        every = callback_list(
            self.model,
            callbacks,
            is_chief=self.place.is_chief,
            verbose=self._verbosity(verbose),
            epochs=1,
            steps=steps,
        )
        logs = self._evaluate(feed, every, steps)
        if return_dict:
            return logs
        values = in_order(self.model, logs)
        return values[0] if len(values) == 1 else values

    @naming_peers
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
    ) -> Any:
        """Computes the outputs for all of the data, in its order, on every worker.

        Returns:
            An array, or a structure of arrays as the model's outputs are.

        Raises:
            ConfigError: As for `fit`.
            PeerError: Another task was lost.
            OutOfStepError: Another worker made another call.
        """
        feed = self._feed(x, None, None, batch_size=batch_size, steps=steps)
        loop = self._loop(feed, training=False)
        epoch = feed.epoch(0, self.place.exchange)
        every = callback_list(
            self.model,
            callbacks,
            is_chief=self.place.is_chief,
            verbose=self._verbosity(verbose),
            epochs=1,
            steps=epoch.steps,
        )
        every.on_predict_begin()
        outputs = []
        for step in itertools.count():
            if not _any_left(epoch, step):
                break
            every.on_predict_batch_begin(step)
            outputs.append(loop.predict(epoch))
            every.on_predict_batch_end(step, {"outputs": outputs[-1]})
        every.on_predict_end()
        if self._coordinator is not None:
            outputs = [value.fetch() for value in outputs]
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts, axis=0), *outputs)

    def _draw_seed(self, x: Any) -> int:
        """What the order of shuffled arrays is to depend on; drawn by the chief."""
        if isinstance(x, tf.data.Dataset) or callable(x):
            return 0
        # NumPy's generator is what keras.utils.set_random_seed seeds.
        return self.place.exchange(int(np.random.randint(2**31 - 1)))[0]

    def _start(
        self, saved: Saved | None, feed: Feed, loop: Any, initial_epoch: int, seed: int
    ) -> Position:
        """Where training begins: where a checkpoint left it, else at the initial epoch."""
        batch = feed.rows if feed.whole else sum(self.place.exchange(feed.rows))
        start = Position(
            fit=self._fits,
            first_epoch=initial_epoch,
            epoch=initial_epoch,
            total=self._total,
            seed=seed,
            global_batch=batch,
        )
        self._fits += 1
        if saved is None or self._checkpoints is None:
            return start
        was = saved.position
        same_call = was.fit == start.fit
        self._checkpoints.restore(saved, loop, batch if same_call else was.global_batch)
        if was.fit > start.fit:  # This call was done when a later one was saved.
            return dataclasses.replace(start, finished=True)
        if self.place.is_chief:
            announce(self._checkpoints.describe(saved, batch))
        # With other batches, the last one that was complete: a few examples may come twice.
        step = was.after(was.step, batch)
        feed.resume(was.first_epoch, was.epoch, step)
        self._total = was.total
        return dataclasses.replace(was, step=step, global_batch=batch)

    @contextlib.contextmanager
    def _course(
        self, start: Position, loop: Any, every: keras.callbacks.CallbackList
    ) -> Iterator[Course]:
        """Follows one `fit`; with somewhere to save to, SIGTERM means to save and stop.

        Raises:
            Preempted: SIGTERM came, and all is saved.
        """
        self._wishes.clear()
        with contextlib.ExitStack() as stack:
            sigterm = Sigterm()
            if self._checkpoints is not None:
                stack.enter_context(sigterm)
            course = Course(
                self.place,
                loop,
                self._heart,
                start,
                checkpoints=self._checkpoints,
                callbacks=every.callbacks,
                sigterm=sigterm,
                wishes=self._wishes,
                accumulate_steps=self._accumulate_steps,
            )
            stack.callback(course.abandon)
            yield course
            if sigterm.came:
                raise Preempted("stopped by SIGTERM; fit had come to its end, which is saved")

    def _evaluate(
        self,
        feed: Feed,
        every: keras.callbacks.CallbackList,
        steps: int | None,
        course: Course | None = None,
    ) -> Any:
        if course is not None:
            course.evaluating(0)
        loop = self._loop(feed)
        loop.reset_metrics()
        every.on_test_begin()
        feed.restart()
        epoch = feed.epoch(0, self.place.exchange)
        self._run_steps(epoch, loop.test, every, "test", course=course)
        loop.finish_epoch()
        feed.end_epoch()
        loop.totals.publish()
        logs = _plain(loop.logs())
        every.on_test_end(logs)
        return logs

    def _run_steps(
        self,
        epoch: Epoch,
        run: Any,
        every: keras.callbacks.CallbackList,
        kind: str,
        first: int = 0,
        course: Course | None = None,
        stopping: Stopping | None = None,
    ) -> None:
        """Runs an epoch's steps from `first` on, with the callbacks of each call."""
        begin_of = getattr(every, f"on_{kind}_batch_begin")
        end_of = getattr(every, f"on_{kind}_batch_end")
        most = self.model.steps_per_execution
        if self._steps_per_call != "auto":
            most = int(self._steps_per_call)
        step = first
        while _any_left(epoch, step):
            count = 1 if epoch.steps is None else min(most, epoch.steps - step)
            if course is not None and kind == "train":
                count = course.before(count)
            elif course is not None:
                course.evaluating(step)
            else:
                self._heart.write("evaluating" if step else "tracing", 0, step)
            begin_of(step)
            if stopping is not None:
                stopping.before_call()
            logs = run(epoch, count)
            end_of(step + count - 1, _plain(logs))
            step += count
            if course is not None and kind == "train":
                course.after(count)
            if stopping is not None and stopping.after_call():
                return
        if step == 0:
            raise ConfigError("data: it has no batch; give at least one example")

    def _feed(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        *,
        batch_size: int | None,
        shuffle: bool = False,
        seed: int = 0,
        class_weight: dict[int, float] | None = None,
        steps: int | None = None,
    ) -> Feed:
        return make_feed(
            x,
            y,
            sample_weight,
            share=self.place.share,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            class_weight=class_weight,
            steps=steps,
        )

    def _validation_feed(self, data: Any, batch_size: int | None, steps: int | None) -> Feed:
        if isinstance(data, (tuple, list)):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(data))
            return self._feed(x, y, sample_weight, batch_size=batch_size, steps=steps)
        return self._feed(data, None, None, batch_size=None, steps=steps)

    def _loop(self, feed: Feed, training: bool = True) -> Any:
        """The loop for this kind of data, its model built; made once."""
        sample = feed.sample()
        if training or not self.model.built:
            build.build(self.model, self.strategy, sample)
        nominal = 0
        if not feed.whole:
            nominal = sum(self.place.exchange(feed.rows))
        elif self._accumulate_steps > 1:
            nominal = feed.rows
        model = self.model
        key = (
            feed.whole,
            nominal,
            id(model.optimizer) if training else None,
            tuple(id(v) for v in model.trainable_variables),
            tuple(id(v) for v in model.metrics_variables),
        )
        if key not in self._loops:
            self._loops[key] = self._make_loop(feed, nominal)
        loop = self._loops[key]
        loop.take_sample(sample)
        return loop

    def _make_loop(self, feed: Feed, nominal: int) -> Any:
        if self.place.is_parameter_server:
            if self._coordinator is None:
                self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
                # Python would stop it too, but when its threads cannot let go of it any more.
                farewell.at_exit("TensorFlow's coordinator", self._coordinator.__del__)
            return ParameterServerLoop(self.model, self.strategy, self._coordinator)
        return SynchronousLoop(
            self.model,
            self.strategy,
            self.place.share,
            whole=feed.whole,
            nominal_batch=nominal,
            accumulate_steps=self._accumulate_steps,
            wire_dtype=self._wire_dtype,
            bytes_per_pack=self._bytes_per_pack,
            wishes=self._wishes,
            fed_path=self._heart.fed_path,
        )

    def _verbosity(self, verbose: int | str) -> int:
        if not self.place.is_chief:
            return 0
        if verbose == "auto":
            return 1 if sys.stdout.isatty() else 2
        return int(verbose)


def _any_left(epoch: Epoch, step: int) -> bool:
    return epoch.peek() if epoch.steps is None else step < epoch.steps


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"Trainer({name}): {value!r} is given; allowed: an integer of 1 or more")


def _is_due(epoch: int, frequency: int | Sequence[int]) -> bool:
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency


def _plain(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs as Python numbers; a metric of several values stays an array."""

    def plain(value: Any) -> Any:
        array = np.asarray(value)
        return float(array) if array.ndim == 0 else array

    return {name: plain(value) for name, value in logs.items()}
