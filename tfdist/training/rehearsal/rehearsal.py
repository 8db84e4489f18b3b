"""Runs a step on a few rows of the data, as one batch and as two slices, and compares all of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.transport import SingleReplica
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.errors import ConfigError
from tfdist.keras_internals import (
    added_losses_replaced,
    assignments_seen,
    two_replicas_on_one_device,
)
from tfdist.partition import part
from tfdist.training.input.batch import rows_between, rows_of
from tfdist.training.model.inspection import flat_metrics, is_overwritten, overrides
from tfdist.training.rehearsal.compare import (
    ADDED,
    ASSIGNED,
    COMPUTED,
    GRADIENT,
    LOG,
    Results,
    close,
    difference,
    numbers,
)
from tfdist.training.rehearsal.conditions import (
    attribute,
    moved,
    rounded,
    synchronized,
    weights_varied,
)
from tfdist.training.rehearsal.draws import Draws
from tfdist.training.rehearsal.graph import Graph
from tfdist.training.rehearsal.known import own_losses
from tfdist.training.rehearsal.two_slices import TwoSlices
from tfdist.training.step.metrics import MetricTotals, add_up
from tfdist.training.step.patches.row_sums import NO_SUMS, RowSums
from tfdist.training.step.patches.shared_state import SharedState
from tfdist.training.step.probes.loss_probe import compares_examples
from tfdist.training.step.recording import AddedUp, Gathered, MetricRecording, first_rows
from tfdist.training.step.reduction import Reduced, Reduction
from tfdist.training.step.replica import PREDICT, TRAIN
from tfdist.training.step.select import make_step
from tfdist.training.step.slicing import Slicer, by_batch

_MOST_ROWS = 8


@dataclass(frozen=True)
class Finding:
    """What came of a rehearsal.

    Attributes:
        sums: What adds up over slices; with it, the numbers are those of the whole batch.
        compares: The user's losses that compare rows, to be computed on all of them.
        differs: The first quantity that is not the whole batch's, with both numbers; "" for none.
        error: Why it could not be tried; "" where it could.
        logs: The names of the step's own logs, and of the metrics.
        is_compared: Whether it could be tried; else there is an error, or the step is refused.
    """

    sums: RowSums = NO_SUMS
    compares: tuple[keras.Loss, ...] = ()
    differs: str = ""
    error: str = ""
    logs: tuple[str, ...] = ()
    is_compared: bool = False


def rehearse(
    model: keras.Model,
    sample: Any,
    doing: str,
    *,
    updates_within: bool,
    in_one_process: bool,
) -> Finding:
    """Tries one step, without any lasting effect.

    Args:
        model: A built and compiled model.
        sample: A batch.
        doing: `TRAIN`, `TEST` or `PREDICT`.
        updates_within: Whether the model's own step updates the weights itself.
        in_one_process: Whether several replicas are in one process, and share its variables.
    """
    trial = _Trial(model, sample, doing, updates_within, in_one_process)
    # In no strategy's scope, whatever the caller is in.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(trial.run).result()


@dataclass
class _Trial:
    model: keras.Model
    sample: Any
    doing: str
    updates_within: bool
    in_one_process: bool
    draws: Draws = field(default_factory=Draws)

    def run(self) -> Finding:
        rows = min(_MOST_ROWS, int(rows_of(self.sample)))
        sample = weights_varied(rows_between(self.sample, 0, rows))
        pieces = [(0, rows), (0, rows - 1)] if rows > 1 else [(0, rows)]
        halves = [(0, rows // 2), (rows // 2, rows)] if rows > 1 else []
        restore = SharedState(self.model).keep()
        try:
            with moved(self.model), synchronized(self.model), self.draws:
                try:
                    with self._stepping(sample, 1) as step:
                        whole = [step(*piece) for piece in pieces]
                        parts = [step(*half) for half in halves]
                        with rounded(self.model):
                            noise = [step(*piece) for piece in pieces]
                except ConfigError:
                    return Finding()  # The step itself will be refused.
                except Exception as error:
                    return Finding(error=_line(error))
                return self._compared(sample, pieces, whole, noise, parts)
        finally:
            restore()

    def _compared(
        self,
        sample: Any,
        pieces: list[tuple[int, int]],
        whole: list[Results],
        noise: list[Results],
        parts: list[Results],
    ) -> Finding:
        names = {name.removeprefix(LOG) for name in whole[0] if name.startswith(LOG)}
        logs = tuple(sorted(names | {metric.name for metric in flat_metrics(self.model)}))
        sums = self._sums(whole[0], parts) if parts else NO_SUMS
        losses = own_losses(self.model) if self.doing != PREDICT else []
        # What is tried: the simplest first.
        attempts = [
            (each, compared)
            for compared in ([False, True] if losses else [False])
            for each in dict.fromkeys((NO_SUMS, sums))
        ]
        first, kept = "", NO_SUMS
        for attempt, compared in attempts:
            try:
                with self._stepping(sample, 2, attempt, losses if compared else ()) as step:
                    sliced = [step(*piece) for piece in pieces]
            except ConfigError:
                return Finding()
            except Exception as error:
                return Finding(error=_line(error), logs=logs)
            differs = ""
            for one, other, nudged in zip(whole, sliced, noise, strict=True):
                differs = differs or difference(one, other, nudged)
            if not differs:
                compares = tuple(losses) if compared else ()
                return Finding(attempt, compares, logs=logs, is_compared=True)
            if not compared:
                first, kept = differs, attempt  # What adds up does so whatever else is wrong.
        return Finding(kept, differs=first, logs=logs, is_compared=True)

    def _sums(self, whole: Results, parts: list[Results]) -> RowSums:
        """Returns which quantities are sums over the rows, by those of the two halves."""

        def is_sum(name: str) -> bool:
            if not all(name in each for each in (whole, *parts)) or not np.any(whole[name]):
                return False
            return close(whole[name], parts[0][name] + parts[1][name])

        logs = [n for n in whole if n.startswith(LOG) and is_sum(n)]
        for metric in flat_metrics(self.model):
            total, count = (f"the {name} of metric {metric.name!r}" for name in ("total", "count"))
            # One number for the batch, not one for each row.
            if total in whole and count in whole and whole[count] == 1.0 and is_sum(total):
                logs.append(f"{LOG}{metric.name}")
        added = [n for n in whole if n.startswith(ADDED) and is_sum(n)]
        loss = is_sum(COMPUTED)
        if self.doing == TRAIN and overrides(self.model, "train_step"):
            gradients = [n for n in whole if n.startswith(GRADIENT) and np.any(whole[n])]
            loss = bool(gradients) and all(is_sum(name) for name in gradients)
        return RowSums(
            loss,
            tuple(int(name.removeprefix(ADDED)) for name in added),
            tuple(name.removeprefix(LOG) for name in logs),
        )

    @contextlib.contextmanager
    def _stepping(
        self,
        sample: Any,
        slices: int,
        sums: RowSums = NO_SUMS,
        compared: Sequence[keras.Loss] = (),
    ) -> Iterator[Callable[[int, int], Results]]:
        """A context with a function that makes the step of some rows, in so many slices.

        Args:
            sample: All rows.
            slices: 1 or 2.
            sums: What is taken to add up over slices.
            compared: Losses that are taken to compare rows.
        """
        model = self.model
        layout = ReplicaLayout(local_replicas=slices, replicas=slices)
        transport: Any = SingleReplica() if slices == 1 else TwoSlices()
        strategy: Any = tf.distribute.get_strategy()
        if slices > 1:
            strategy = two_replicas_on_one_device()
        gathers = self.doing != PREDICT and not add_up(model)
        seen: dict[str, Any] = {}

        def compares(loss: keras.Loss, y_true: Any, y_pred: Any) -> bool:
            is_taken = any(loss is each for each in compared)
            return is_taken or compares_examples(loss, y_true, y_pred)

        step = make_step(
            model,
            transport,
            gathers_metrics=gathers,
            updates_within=self.updates_within,
            strategy=strategy,
            compares=compares,
        )
        step.sums[self.doing] = sums
        totals = MetricTotals(model)
        recording: MetricRecording = AddedUp(totals)
        if gathers:
            recording = Gathered(totals, step, transport)
        slicer = Slicer(layout, whole=True, weighing=by_batch)
        slicer.take_sample(sample)
        reduction = Reduction(transport, recording, _NoFlags(), weights_add_up=True)

        def replica(element: Any) -> dict[str, Any]:
            piece = slicer(element)
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            begin, _ = part(element[1], slices, tf.cast(number, tf.int32))
            self.draws.begin(element[1], begin, rows_of(piece.data))
            if self.doing == PREDICT:
                outputs, state = step.predict(piece)
                state = reduction.predicted_state(state, piece.weight)
                outputs = transport.gather(first_rows(outputs, piece.count))
                found = {f"output {i}": v for i, v in enumerate(tf.nest.flatten(outputs))}
                return found | _of_variables("the state", step.changed[PREDICT], state)
            training = self.doing == TRAIN
            output = step.train(piece, loss_scale=None) if training else step.test(piece)
            reduced = reduction(output, piece, output.gradients)
            return self._named(step, reduced)

        def element_of(first: int, end: int) -> Any:
            return rows_between(sample, first, end), tf.constant(end - first)

        def run(element: Any) -> dict[str, Any]:
            seen.clear()
            with contextlib.ExitStack() as stack:
                stack.enter_context(step.intercepting())
                stack.enter_context(self._noting(seen, slices))
                results = strategy.run(replica, args=(element,))
            return {
                name: tf.convert_to_tensor(strategy.experimental_local_results(value)[0])
                for name, value in {**results, **seen}.items()
            }

        if model.run_eagerly:
            yield lambda first, end: numbers(run(element_of(first, end)))
            return
        graph = Graph(run, element_of(0, int(rows_of(sample))))
        yield lambda first, end: graph(element_of(first, end))

    @contextlib.contextmanager
    def _noting(self, seen: dict[str, Any], slices: int) -> Iterator[None]:
        """Notes what passes by within a step: losses that are added, variables assigned by hand."""
        model = self.model
        with contextlib.ExitStack() as stack:
            stack.enter_context(assignments_seen(lambda v, how, x: self._assigned(seen, v, how, x)))
            if slices == 1 and self.doing != PREDICT:

                def added(total: Any, loss: Any) -> Any:
                    number = sum(name.startswith(ADDED) for name in seen)
                    # Keras sums the values of the examples; those are taken care of.
                    is_scalar = len(getattr(loss, "shape", ())) == 0
                    seen[f"{ADDED}{number}"] = loss if is_scalar else tf.zeros([])
                    return total

                stack.enter_context(added_losses_replaced(model, added))
                if overrides(model, "compute_loss"):
                    compute = model.compute_loss

                    def noted(*args: Any, **named: Any) -> Any:
                        loss = compute(*args, **named)
                        if len(loss.shape) == 0:
                            seen[COMPUTED] = loss
                        return loss

                    stack.enter_context(attribute(model, "compute_loss", noted))
            yield

    def _assigned(self, seen: dict[str, Any], variable: tf.Variable, how: str, value: Any) -> None:
        """Notes a variable of TensorFlow's that the step assigns by itself."""
        name = f"{ASSIGNED}{variable.name.partition(':')[0]}"
        value = tf.convert_to_tensor(value)
        if self.in_one_process and how != "assign" and name in seen:
            value = value + seen[name]  # Each replica adds to it.
        seen[name] = value

    def _named(self, step: Any, reduced: Reduced) -> dict[str, Any]:
        variables = step.variables
        gradients = {
            f"{GRADIENT}{v.path}": tf.convert_to_tensor(g)
            for v, g in zip(variables.trainable, reduced.gradients, strict=False)
            if g is not None and not is_overwritten(v)
        }
        owners = {id(v): m.name for m in flat_metrics(self.model) for v in m.variables}
        metrics = {
            f"the {v.name} of metric {owners.get(id(v), v.path)!r}": value
            for v, value in zip(variables.metrics, reduced.metrics, strict=True)
        }
        return {
            **metrics,
            **{f"{LOG}{name}": value for name, value in reduced.logs.items()},
            **gradients,
            **_of_variables("the new value", step.updated, reduced.updated),
            **_of_variables("the state", step.changed[self.doing], reduced.state),
        }


class _NoFlags(WorkerFlags):
    @override
    def record(self, total: tf.Tensor) -> None:
        pass


def _of_variables(
    what: str, variables: Sequence[keras.Variable], values: Sequence[Any]
) -> dict[str, Any]:
    return {f"{what} of {v.path}": x for v, x in zip(variables, values, strict=True)}


def _line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:200]}"
