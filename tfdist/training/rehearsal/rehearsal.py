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
from tfdist.training.rehearsal.two_slices import TwoSlices
from tfdist.training.step.metrics import MetricTotals, add_up
from tfdist.training.step.patches.row_sums import NO_SUMS, RowSums
from tfdist.training.step.patches.shared_state import SharedState
from tfdist.training.step.recording import AddedUp, Gathered, MetricRecording
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
    """

    sums: RowSums = NO_SUMS
    compares: tuple[keras.Loss, ...] = ()
    differs: str = ""
    error: str = ""
    logs: tuple[str, ...] = ()


def rehearse(
    model: keras.Model,
    sample: Any,
    doing: str,
    *,
    updates_within: bool,
    in_one_process: bool,
    compares: Callable[[keras.Loss, Any, Any], bool],
    own_losses: Sequence[keras.Loss],
) -> Finding:
    """Tries one step, without any lasting effect.

    Args:
        model: A built and compiled model.
        sample: A batch.
        doing: `TRAIN`, `TEST` or `PREDICT`.
        updates_within: Whether the model's own step updates the weights itself.
        in_one_process: Whether several replicas are in one process, and share its variables.
        compares: Returns whether a loss compares the rows of a batch.
        own_losses: The user's losses.
    """
    trial = _Trial(model, sample, doing, updates_within, in_one_process, compares, own_losses)
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
    compares: Callable[[keras.Loss, Any, Any], bool]
    own_losses: Sequence[keras.Loss]
    draws: Draws = field(default_factory=Draws)

    def run(self) -> Finding:
        rows = min(_MOST_ROWS, int(rows_of(self.sample)))
        sample = weights_varied(rows_between(self.sample, 0, rows))
        pieces = [(0, rows)] + ([(0, rows - 1)] if rows > 1 else [])
        halves = [(0, rows // 2), (rows // 2, rows)] if rows > 1 and rows % 2 == 0 else []
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
        attempts = [(NO_SUMS, False)]
        if sums != NO_SUMS:
            attempts.append((sums, False))
        if self.own_losses:
            attempts += [(NO_SUMS, True)] + ([(sums, True)] if sums != NO_SUMS else [])
        first, kept = "", NO_SUMS
        for attempt, compared in attempts:
            try:
                with self._stepping(sample, 2, attempt, compared) as step:
                    sliced = [step(*piece) for piece in pieces]
            except ConfigError:
                return Finding()
            except Exception as error:
                return Finding(error=_line(error), logs=logs)
            differs = ""
            for one, other, nudged in zip(whole, sliced, noise, strict=True):
                differs = differs or difference(one, other, nudged)
            if not differs:
                compares = tuple(self.own_losses) if compared else ()
                return Finding(attempt, compares, logs=logs)
            if not compared:
                first, kept = differs, attempt  # What adds up does so whatever else is wrong.
        return Finding(kept, differs=first, logs=logs)

    def _sums(self, whole: Results, parts: list[Results]) -> RowSums:
        """Returns which quantities are sums over the rows, by those of the two halves."""

        def is_sum(name: str) -> bool:
            if name not in parts[0] or name not in parts[1] or not np.any(whole[name]):
                return False
            total = parts[0][name] + parts[1][name]
            mean = total / 2
            return close(whole[name], total) and not close(whole[name], mean)

        logs = [n for n in whole if n.startswith(LOG) and is_sum(n)]
        for metric in flat_metrics(self.model):
            total, count = (f"the {name} of metric {metric.name!r}" for name in ("total", "count"))
            # One number for the batch, not one for each row.
            if total in whole and count in whole and whole[count] == 1.0 and is_sum(total):
                logs.append(f"{LOG}{metric.name}")
        added = [n for n in whole if n.startswith(ADDED) and is_sum(n)]
        loss = is_sum(COMPUTED) if COMPUTED in whole else False
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
        self, sample: Any, slices: int, sums: RowSums = NO_SUMS, compared: bool = False
    ) -> Iterator[Callable[[int, int], Results]]:
        """A context with a function that makes the step of some rows, in so many slices."""
        model = self.model
        layout = ReplicaLayout(local_replicas=slices, replicas=slices)
        transport: Any = SingleReplica() if slices == 1 else TwoSlices()
        strategy: Any = tf.distribute.get_strategy()
        if slices > 1:
            strategy = two_replicas_on_one_device()
        gathers = self.doing != PREDICT and not add_up(model)
        seen: dict[str, Any] = {}
        own = {id(loss) for loss in self.own_losses}
        compares = self.compares
        if compared:

            def compares(loss: keras.Loss, y_true: Any, y_pred: Any) -> bool:
                return id(loss) in own or self.compares(loss, y_true, y_pred)

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
                outputs = transport.gather(
                    tf.nest.map_structure(lambda value: value[: piece.count], outputs)
                )
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
