"""Runs a step as a pure function, in a scope that holds every variable's value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.training.model.inspection import ModelVariables, is_seed
from tfdist.training.step.packing import values_of

# Replicas draw different dropout masks: this odd multiple of the replica's number is added to
# the seed, so that no two of up to 2**31 replicas share one.
_SEED_STRIDE = 0x9E3779B1


class StepScope(keras.StatelessScope):
    """A stateless scope in which layers may also assign trainable variables.

    No gradient flows through such an assignment (of a spectral norm, for example), as with a
    `tf.Variable`: the gradient is taken with respect to the assigned value.

    Args:
        variables: The model's variables.
        real: The replica context of the step.
        totals: The initial values of the metrics; None for zeros.
        trainable: The values of the trainable variables, to be used as they are: a tape watches
            them.
        tape: That tape.
        read: Returns the values of variables.

    Attributes:
        replaced: Trainable variables, and the values assigned to them.
    """

    def __init__(
        self,
        variables: ModelVariables,
        real: tf.distribute.ReplicaContext,
        *,
        totals: Sequence[tf.Tensor] | None = None,
        trainable: Iterable[Any] | None = None,
        tape: tf.GradientTape | None = None,
        read: Callable[[Sequence[keras.Variable]], list[tf.Tensor]] = values_of,
    ) -> None:
        self._variables = variables
        self._real = real
        self._trainable: set[int] = set()
        self._tape = tape
        self.replaced: list[tuple[keras.Variable, tf.Tensor]] = []
        self._beside: list[keras.Variable] = []
        state = zip(variables.state, read(variables.state), strict=True)
        mapping = [
            (v, value + _seed_offset(v, real) if is_seed(v) else value) for v, value in state
        ]
        if totals is None:
            mapping += [(v, tf.zeros(v.shape, v.dtype)) for v in variables.metrics]
        else:
            pairs = zip(variables.metrics, totals, strict=True)
            mapping += [(v, tf.cast(total, v.dtype)) for v, total in pairs]
        # Without collecting, the losses that layers add would be dropped.
        super().__init__(state_mapping=mapping, collect_losses=True)
        if trainable is None:
            trainable = read(variables.trainable)
        for variable, value in zip(variables.trainable, trainable, strict=True):
            super().add_update((variable, value))
            self._trainable.add(id(variable))
        every = (*variables.state, *variables.trainable, *variables.metrics)
        self._initial = {id(v): self.get_current_value(v) for v in every}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Records a new value of a variable."""
        variable, value = update
        if isinstance(value, keras.Variable):
            value = tf.convert_to_tensor(value.value)  # Keras passes what it is assigned from.
        if id(variable) in self._trainable:
            value = tf.stop_gradient(tf.cast(value, variable.dtype))
            if self._tape is not None:
                self._tape.watch(value)
            self.replaced.append((variable, value))
        elif id(variable) not in self._initial and all(v is not variable for v in self._beside):
            # Of a closure or a module: the model does not track it, and Keras assigns it anyway.
            self._beside.append(variable)
        super().add_update((variable, value))

    def account_for(self, variable: keras.Variable, value: tf.Tensor) -> None:
        """Excludes a variable's new value from the changes made by the model itself."""
        self._initial[id(variable)] = value

    def changed_state(self, count: tf.Tensor) -> tuple[list[keras.Variable], list[tf.Tensor]]:
        """Returns the variables that the model itself changed, with their new values.

        Args:
            count: The number of examples in the slice; with none, the statistics of the
                replacement row are ignored.
        """
        variables, values = [], []
        for variable in (*self._variables.state, *self._variables.trainable, *self._beside):
            value = self.get_current_value(variable)
            old = self._initial.get(id(variable))
            if value is old:
                continue
            if old is None:
                old = tf.convert_to_tensor(variable.value)
            value = tf.cast(value, old.dtype)
            if is_seed(variable):
                value = value - _seed_offset(variable, self._real)
            elif old.dtype.is_floating:
                value = tf.where(count > 0, value, old)
            variables.append(variable)
            values.append(value)
        return variables, values

    def metric_values(self, count: tf.Tensor) -> tuple[list[tf.Tensor], set[int]]:
        """Returns the values of the metrics' variables, and the ids of the assigned ones."""
        values = []
        touched = set()
        for variable in self._variables.metrics:
            value, old = self.get_current_value(variable), self._initial[id(variable)]
            if value is not old:
                touched.add(id(variable))
                value = tf.where(count > 0, tf.cast(value, variable.dtype), old)
            values.append(value)
        return values, touched


def _seed_offset(variable: keras.Variable, real: tf.distribute.ReplicaContext) -> tf.Tensor:
    replica = tf.cast(real.replica_id_in_sync_group, variable.dtype)
    return tf.stack([replica * _SEED_STRIDE, tf.zeros_like(replica)])
