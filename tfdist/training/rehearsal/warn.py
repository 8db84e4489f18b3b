"""Rehearses each step before its first use, and warns where slices give other numbers."""

from __future__ import annotations

import dataclasses
import time
import weakref
from typing import Any

import keras

from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.training.model.inspection import overrides
from tfdist.training.rehearsal.compare import ASSIGNED
from tfdist.training.rehearsal.known import is_known, own_losses
from tfdist.training.rehearsal.rehearsal import Finding, rehearse
from tfdist.training.step.own_step import MultiOptimizerStep
from tfdist.training.step.patches.row_sums import NO_SUMS, RowSums
from tfdist.training.step.probes.loss_probe import mark_as_comparing
from tfdist.training.step.replica import PREDICT, TEST, TRAIN, ReplicaStep

WARN = "warn"
# What is done where a step of slices gives other numbers than one of the whole batch.
CHECKS = (WARN, "error", "off")

# The purposes for which the user of a model has been warned.
_warned: weakref.WeakKeyDictionary[keras.Model, set[str]] = weakref.WeakKeyDictionary()
_BITS = 32  # of a number that workers exchange
_METHODS = {
    TRAIN: ("train_step", "compute_loss", "compute_metrics", "call"),
    TEST: ("test_step", "compute_loss", "compute_metrics", "call"),
    PREDICT: ("predict_step", "call"),
}


class Rehearsals:
    """The rehearsals of one model.

    Args:
        model: The model.
        group: The processes that train it.
        check: One of `CHECKS`.
        batches: How many batches make an update.
    """

    def __init__(self, model: keras.Model, group: ProcessGroup, check: str, batches: int) -> None:
        self._model = model
        self._group = group
        self._check = check
        self._batches = batches
        self._done: dict[tuple[int, str], ReplicaStep] = {}

    def before(self, step: ReplicaStep, doing: str, sample: Any) -> None:
        """Rehearses a step, once for each purpose, and tells the step what it sums over rows.

        All workers must call it at the same point.

        Args:
            step: The step.
            doing: Its purpose.
            sample: A batch, of this worker's rows.

        Raises:
            ConfigError: The check is to be an error, and a worker found a difference.
        """
        layout = self._group.layout
        several = layout.replicas > 1 or (self._batches > 1 and doing == TRAIN)
        key = (id(step), doing)
        if self._check == "off" or not several or key in self._done:
            return
        self._done[key] = step
        if is_known(self._model):
            return
        began = time.monotonic()
        finding = rehearse(
            self._model,
            sample,
            doing,
            updates_within=isinstance(step, MultiOptimizerStep),
            in_one_process=layout.local_replicas > 1,
        )
        finding = self._agreed(finding)
        step.sums[doing] = finding.sums
        for loss in finding.compares:
            mark_as_comparing(loss)
        LOGGER.debug("%s: compared in %.1f s", doing, time.monotonic() - began)
        self._tell(finding, doing)

    def _agreed(self, finding: Finding) -> Finding:
        """Returns what all workers act on: the first one's sums, where all have compared."""
        group = self._group
        if group.layout.workers == 1:
            return finding
        found = group.exchange(finding.is_compared + bool(finding.differs))
        if all(found):
            code = self._of_first(finding.sums.code(finding.logs) * 2 + bool(finding.compares))
            finding = dataclasses.replace(
                finding,
                sums=RowSums.of_code(code // 2, finding.logs),
                compares=tuple(own_losses(self._model)) if code % 2 else (),
            )
        else:
            finding = dataclasses.replace(finding, sums=NO_SUMS, compares=())
        if max(found) > 1 and not finding.differs and self._check == "error":
            raise ConfigError(self._text("another worker found so", "its step"))
        return finding

    def _of_first(self, code: int) -> int:
        """Returns the first worker's number, of any size."""
        exchange = self._group.exchange
        parts = max(exchange(code.bit_length() // _BITS + 1))
        each = [exchange(code >> _BITS * n & (1 << _BITS) - 1)[0] for n in range(parts)]
        return sum(part << _BITS * n for n, part in enumerate(each))

    def _tell(self, finding: Finding, doing: str) -> None:
        text = ""
        if finding.differs:
            text = self._text(finding.differs, self._method(doing))
            if self._check == "error":
                raise ConfigError(text)
        elif finding.error:
            text = (
                f"{type(self._model).__name__}: its step could not be tried on a few rows "
                f"({finding.error}), so it is not known whether {self._parts()} give the "
                'numbers of one device; Trainer(check="off") leaves this out'
            )
        warned = _warned.setdefault(self._model, set())
        if text and doing not in warned:
            warned.add(doing)
            LOGGER.warning("%s", text)

    def _text(self, differs: str, method: str) -> str:
        advice = (
            "it mixes rows, so the numbers differ from one device's; write a loss that compares "
            "rows as a keras.losses.Loss, which is computed on all rows, or train on one device"
        )
        if differs.startswith(ASSIGNED):
            advice = (
                "each replica assigns it; make it a keras.Variable, which is assigned once, of a "
                "number that is the same for all rows"
            )
        return (
            f"{type(self._model).__name__}.{method}: {differs}, as {self._parts()} compute on some "
            f"rows of a batch each: {advice}"
        )

    def _method(self, doing: str) -> str:
        return next((m for m in _METHODS[doing] if overrides(self._model, m)), "call")

    def _parts(self) -> str:
        replicas = self._group.layout.replicas
        if replicas > 1:
            return f"the {replicas} replicas"
        return f"the {self._batches} batches of an update"
