"""Whether a model's own `train_step` goes on with the weights that its optimizer has updated.

Such a step (one with a target network, a moving average of the weights, clipped weights) cannot
have its update after its end, where the gradients of all replicas are reduced together.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.training.input.batch import loosen, rows_between
from tfdist.training.model.inspection import (
    has_several_optimizers,
    inner_optimizer,
    overrides,
)
from tfdist.training.step.shared_state import SharedState


def reads_its_update(model: keras.Model, sample: Any) -> bool:
    """Whether the step reads what the optimizer assigns, after it has called it.

    The step is traced for it, and nothing is run. Where tracing fails, the answer is no: the
    loop's own tracing will fail with the same error.

    Args:
        model: A built and compiled model.
        sample: A batch, as `train_step` takes it.
    """
    if not overrides(model, "train_step") or has_several_optimizers(model):
        return False
    optimizer = model.optimizer
    watch = _Watch(model)
    restore = SharedState(model).keep()

    def step(data: Any) -> None:
        mapping = [(v, tf.convert_to_tensor(v.value)) for v in model.non_trainable_variables]
        mapping += [(v, tf.convert_to_tensor(v.value)) for v in model.metrics_variables]
        mapping += [(v, v.value) for v in model.trainable_variables]
        with _WatchingScope(watch, mapping):
            model.train_step(loosen(data))

    optimizer.apply = watch.apply
    try:
        traced = tf.function(step, autograph=False)
        traced.get_concrete_function(rows_between(sample, 0, 1))
    except Exception:
        return False
    finally:
        del optimizer.apply
        restore()
    return watch.calls == 1 and watch.late


class _Watch:
    """What is seen of a step.

    Attributes:
        calls: How often it called its optimizer.
        late: Whether it then read a variable that the optimizer assigns.
    """

    def __init__(self, model: keras.Model) -> None:
        self.calls = 0
        self.late = False
        optimizer = inner_optimizer(model.optimizer)
        assigned = [*model.trainable_variables, *model.optimizer.variables, *optimizer.variables]
        constant = getattr(optimizer, "_learning_rate", None)
        self._assigned = {id(variable) for variable in assigned if variable is not constant}

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """In the place of the optimizer's method."""
        self.calls += 1

    def read(self, variable: keras.Variable) -> None:
        """Notes that the step asks for a variable's value."""
        self.late |= self.calls > 0 and id(variable) in self._assigned


class _WatchingScope(keras.StatelessScope):
    def __init__(self, watch: _Watch, mapping: list[Any]) -> None:
        super().__init__(state_mapping=mapping, collect_losses=True)
        self._watch = watch

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Takes a new value; Keras hands over the variable that it is assigned from."""
        variable, value = update
        if isinstance(value, keras.Variable):
            value = tf.convert_to_tensor(value.value)
        super().add_update((variable, value))

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The value, of which word is given."""
        self._watch.read(variable)
        return super().get_current_value(variable)
