"""Detects a `train_step` that reads the weights after its optimizer has updated them.

The update of such a step (with a target network, a moving average of the weights, or clipped
weights) cannot wait for the end of the step, where the gradients of all replicas are reduced.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_internals import rate_of
from tfdist.training.input.batch import loosen, rows_between
from tfdist.training.model.inspection import (
    has_several_optimizers,
    inner_optimizer,
    overrides,
)
from tfdist.training.step.patches.capture import intercept_apply
from tfdist.training.step.patches.shared_state import SharedState


def reads_its_update(model: keras.Model, sample: Any) -> bool:
    """Returns whether the step reads a variable that its optimizer has already assigned.

    The step is traced, and nothing is run. If tracing fails, it returns False: the loop's own
    tracing will fail with the same error.

    Args:
        model: A built and compiled model.
        sample: A batch, as `train_step` takes it.
    """
    if not overrides(model, "train_step") or has_several_optimizers(model):
        return False
    recorder = _ReadRecorder(model)
    restore = SharedState(model).keep()

    def step(data: Any) -> None:
        mapping = [(v, tf.convert_to_tensor(v.value)) for v in model.non_trainable_variables]
        mapping += [(v, tf.convert_to_tensor(v.value)) for v in model.metrics_variables]
        mapping += [(v, v.value) for v in model.trainable_variables]
        with _RecordingScope(recorder, mapping):
            model.train_step(loosen(data))

    try:
        with intercept_apply([model.optimizer], recorder.apply):
            traced = tf.function(step, autograph=False)
            traced.get_concrete_function(rows_between(sample, 0, 1))
    except Exception:
        return False
    finally:
        restore()
    return recorder.calls == 1 and recorder.reads_after_update


class _ReadRecorder:
    """Records the calls and reads of a step.

    Attributes:
        calls: The number of times it called its optimizer.
        reads_after_update: Whether it then read a variable that the optimizer assigns.
    """

    def __init__(self, model: keras.Model) -> None:
        self.calls = 0
        self.reads_after_update = False
        optimizer = inner_optimizer(model.optimizer)
        assigned = [*model.trainable_variables, *model.optimizer.variables, *optimizer.variables]
        constant = rate_of(optimizer)
        self._assigned = {id(variable) for variable in assigned if variable is not constant}

    def apply(self, optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        """Replaces the optimizer's method, and counts its calls."""
        self.calls += 1

    def read(self, variable: keras.Variable) -> None:
        """Records that the step reads a variable."""
        self.reads_after_update |= self.calls > 0 and id(variable) in self._assigned


class _RecordingScope(keras.StatelessScope):
    def __init__(self, recorder: _ReadRecorder, mapping: list[Any]) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self._recorder = recorder

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Records a new value, which may itself be a variable."""
        variable, value = update
        if isinstance(value, keras.Variable):
            value = tf.convert_to_tensor(value.value)
        super().add_update((variable, value))

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value, and records the read."""
        self._recorder.read(variable)
        return super().get_current_value(variable)
