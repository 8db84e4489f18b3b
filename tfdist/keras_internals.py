"""Everything private of Keras and TensorFlow that tfdist uses: the file to open when they change.

No other module imports `keras.src` or `tensorflow.python`, or names an attribute of theirs that
begins with an underscore (`tests/test_layers.py`). Each thing here states what it stands for, and
has a test in `tests/test_keras_internals.py` that fails where it is gone or has become another
thing.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import compute_output_spec
from keras.src.backend.tensorflow import image, random
from keras.src.backend.tensorflow.trainer import (
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
)
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter, can_convert_arrays
from keras.src.utils.python_utils import pythonify_logs
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context, executor
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

__all__ = [  # noqa: RUF022 (by what they do)
    # How Keras turns arrays, datasets, PyDatasets and generators into batches.
    "ArrayDataAdapter",
    "array_slicing",
    "can_convert_arrays",
    "data_adapters",
    # Shapes of a call without its computation, by which a model makes its variables.
    "compute_output_spec",
    # How `predict` joins outputs, and `fit` makes logs numbers.
    "convert_to_np_if_not_ragged",
    "potentially_ragged_concat",
    "pythonify_logs",
    # A variable of this process, also inside a strategy's scope.
    "ResourceVariable",
]

# The module in which `keras.Loss.__call__` looks up `reduce_weighted_values` and `apply_mask`.
LOSS_MODULE: Any = sys.modules[keras.Loss.__module__]

# The modules that call `draw_seed`, which makes a variable where no seed is given; and those whose
# functions make the random operations of Keras and TensorFlow.
KERAS_RANDOM: tuple[Any, ...] = (image, random)
RANDOM_OPS: tuple[Any, ...] = (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

# The class above `keras.Optimizer` that knows nothing of TensorFlow's variables.
_BASE_OPTIMIZER: Any = next(
    kind for kind in keras.optimizers.Optimizer.__mro__ if kind.__name__ == "BaseOptimizer"
)
# TensorFlow's optimizer overrides these to go around Keras' variables, to those of the strategy;
# those of the class above assign to the variables, and so to the scope that holds their values.
_ASSIGNING = (
    "assign",
    "assign_add",
    "assign_sub",
    "_apply_weight_decay",
    "_backend_update_step",
    "_var_key",
)


def is_of_keras(code: object) -> bool:
    """Returns whether a class, a function or a method was written by Keras, not by a user.

    Args:
        code: The class or function. To ask about an object, pass its class.
    """
    return str(getattr(code, "__module__", "")).split(".")[0] == "keras"


# Models and layers.


def flatten_layers(model: Any, **options: bool) -> list[keras.Layer]:
    """Returns a model's layers, those within layers included; `Model.layers` has the outer ones."""
    return list(model._flatten_layers(**options))


def inner_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the layers that a layer has as attributes; `layers` is only a model's."""
    return list(layer._layers)


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables that a layer itself assigns, without those of its inner layers."""
    return list(layer._non_trainable_variables)


def clear_losses(model: keras.Model) -> None:
    """Forgets what the layers added by `add_loss` in a call."""
    model._clear_losses()


def build_symbolically(model: keras.Model, spec: Any) -> None:
    """Makes all variables of a compiled model from specs of a batch, as `fit` does in a scope."""
    model._symbolic_build(data_batch=spec)


def compiled_parts(model: keras.Model) -> tuple[Any, Any]:
    """Returns what `compile` made of its losses and of its metrics; None before, and for none."""
    return getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)


def compiled_losses(model: keras.Model) -> list[keras.Loss]:
    """Returns the losses that `compile` was given, those of a structure one by one."""
    made, _ = compiled_parts(model)
    entries = getattr(made, "_flat_losses", None) or ()
    return [entry.loss for entry in entries if isinstance(entry.loss, keras.Loss)]


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of `compile`; {} where Keras did not record them."""
    arguments: dict[str, Any] = getattr(getattr(model, "_compile_config", None), "config", {})
    return arguments


def epoch_of_backup(model: keras.Model) -> int:
    """Returns the epoch that `BackupAndRestore` has `fit` begin with; 0 where it found none."""
    return int(model._initial_epoch or 0)


def results_or_logs(model: keras.Model, logs: Any) -> Any:
    """Returns the metrics' results, or a step's logs where these name other things."""
    return model._get_metrics_result_or_logs(logs)


def results_in_order(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Returns logs as the number or the list that `evaluate` returns."""
    return model._flatten_metrics_in_order(logs)


@contextlib.contextmanager
def added_losses_replaced(
    model: keras.Model, function: Callable[[Any, Any], Any]
) -> Iterator[None]:
    """Lets a function choose what a value given to `add_loss` adds to the model's loss.

    Args:
        model: The model.
        function: Takes what Keras would add, a sum of the value's elements, and the value.
    """
    plain = type(model)._aggregate_additional_loss
    model._aggregate_additional_loss = lambda loss: function(plain(model, loss), loss)
    try:
        yield
    finally:
        del model._aggregate_additional_loss


def mask_of(output: Any) -> Any:
    """Returns the mask that a layer attached to its output; None for none."""
    return getattr(output, "_keras_mask", None)


def attach_mask(output: Any, mask: Any) -> None:
    """Attaches a mask to an output, for losses and metrics to find."""
    if mask is not None:
        output._keras_mask = mask


def function_of(metric: keras.Metric) -> Any:
    """Returns the function that a metric averages; None where it is not such a mean."""
    return getattr(metric, "_fn", None)


def is_default_hook(method: Any) -> bool:
    """Returns whether a callback's method is `keras.callbacks.Callback`'s, which does nothing."""
    return bool(getattr(method, "_is_default", False))


# Optimizers and variables.


def rate_of(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate: a variable or a schedule, where the property computes.

    None for an optimizer without one.
    """
    return getattr(optimizer, "_learning_rate", None)


def trained_by(optimizer: keras.Optimizer) -> list[keras.Variable]:
    """Returns the weights that an optimizer was built for."""
    return list(optimizer._trainable_variables)


def place_of(optimizer: keras.Optimizer, variable: Any) -> int:
    """Returns the place of a weight, Keras' or a strategy's copy, among those it was built for."""
    return int(optimizer._get_variable_index(variable))


def has_own_weight_decay(optimizer: keras.Optimizer) -> bool:
    """Returns whether an optimizer applies weight decay in another way than TensorFlow's."""
    return type(optimizer)._apply_weight_decay is not keras.Optimizer._apply_weight_decay


def has_own_update(optimizer: keras.Optimizer) -> bool:
    """Returns whether an optimizer does more than update each weight, in replica context."""
    return type(optimizer)._backend_update_step is not keras.Optimizer._backend_update_step


@contextlib.contextmanager
def assigning_directly(optimizer: keras.Optimizer) -> Iterator[None]:
    """Makes an optimizer assign to Keras' variables directly, and use them as its keys."""
    for name in _ASSIGNING:
        setattr(optimizer, name, types.MethodType(getattr(_BASE_OPTIMIZER, name), optimizer))
    known = optimizer._trainable_variables_indices
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): index
        for index, variable in enumerate(optimizer._trainable_variables)
    }
    try:
        yield
    finally:
        optimizer._trainable_variables_indices = known
        for name in _ASSIGNING:
            delattr(optimizer, name)


def assign_directly(variable: keras.Variable, value: Any) -> None:
    """Assigns a variable also inside a stateless scope, which would keep the value to itself."""
    variable._direct_assign(value)


# Data.


def array_parts(adapter: ArrayDataAdapter) -> tuple[Any, int, int]:
    """Returns an adapter's arrays, the number of their rows, and the rows of a batch."""
    return adapter._inputs, adapter._num_samples, adapter._batch_size


def first_batches(adapter: Any) -> list[Any]:
    """Returns the batches that a generator's adapter has read to know their shapes; else []."""
    return list(getattr(adapter, "_first_batches", ()))


def dataset_of_one(batch: Any, adapter: Any) -> tf.data.Dataset:
    """Returns a dataset of one batch, as the adapter of a generator or PyDataset would read it.

    Args:
        batch: A tuple, or a dict of the inputs.
        adapter: The adapter, after it has made a dataset, and so knows the types of batches.
    """
    spec = adapter._output_signature
    one = data_adapters.get_data_adapter(
        each if isinstance(each, tuple) else (each,) for each in [batch]
    )
    one._output_signature = spec if isinstance(spec, tuple) else (spec,)
    return one.get_tf_dataset()


def dataset_inputs(dataset: tf.data.Dataset) -> list[Any]:
    """Returns the datasets that a dataset transforms."""
    return list(dataset._inputs())


def dataset_functions(dataset: tf.data.Dataset) -> list[Any]:
    """Returns the graphs of the functions that a transformation calls for each element."""
    return [function.function.graph for function in dataset._functions()]


def dataset_seeds(dataset: Any) -> tuple[int, int] | None:
    """Returns the two seeds of a shuffle or another random transformation; None for others."""
    if not hasattr(dataset, "_seed2"):
        return None
    return int(dataset._seed), int(dataset._seed2)


def may_reorder(dataset: tf.data.Dataset) -> bool:
    """Returns whether a transformation was made with `deterministic=False`."""
    return getattr(dataset, "_deterministic", None) == "false"


# TensorFlow's wrappers of what is set on a `tf.Module`.


def wrapped_elements(thing: Any) -> Any:
    """Returns the list inside TensorFlow's wrapper of it; None for anything else."""
    return getattr(thing, "_storage", None) if isinstance(thing, list) else None


def wrapped_dict(thing: Any) -> Any:
    """Returns the dict inside TensorFlow's wrapper of it; a dict of Python's as it is."""
    return getattr(thing, "__wrapped__", thing)


def note_changed_dict(thing: Any, content: dict[Any, Any]) -> None:
    """Makes TensorFlow's wrapper of a dict accept that its content was changed."""
    if hasattr(thing, "_self_last_wrapped_dict_snapshot"):
        thing._self_last_wrapped_dict_snapshot = dict(content)


# TensorFlow's runtime and strategies.


def is_eager(value: Any) -> bool:
    """Returns whether a tensor has a value now, and is not one of a graph."""
    return isinstance(value, tf.__internal__.EagerTensor)


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`; None before."""
    seed: int | None = context.global_seed()
    return seed


def with_own_executor() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which this thread's operations wait for none of other threads'."""
    scope: contextlib.AbstractContextManager[Any] = context.executor_scope(
        executor.new_executor(enable_async=False)
    )
    return scope


def take_local_number(view: Any, real: tf.distribute.ReplicaContext) -> None:
    """Gives a replica context another's number in this process, which selects variables' copies."""
    view._local_replica_id = real._local_replica_id


def two_replicas_on_one_device() -> tf.distribute.Strategy:
    """Returns a MirroredStrategy whose two replicas are on the first CPU.

    Both read the first copy of a variable that another strategy has mirrored.
    """
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    extended: Any = strategy.extended
    extended._devices = extended._devices * 2
    extended._get_local_replica_id = lambda _: 0
    return strategy


@contextlib.contextmanager
def assignments_seen(function: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Calls a function before a variable of TensorFlow's is assigned within the block.

    What is assigned eagerly is put back at the end of the block.

    Args:
        function: Takes the variable, "assign", "assign_add" or "assign_sub", and the argument.
    """
    kept: list[tuple[Any, Any]] = []

    def patched(name: str) -> Any:
        plain = getattr(ResourceVariable, name)

        def assign(variable: Any, value: Any, *args: Any, **named: Any) -> Any:
            if tf.executing_eagerly():
                kept.append((variable, variable.read_value()))
            function(variable, name, value)
            return plain(variable, value, *args, **named)

        return assign

    with contextlib.ExitStack() as stack:
        for name in ("assign", "assign_add", "assign_sub"):
            stack.enter_context(_set(ResourceVariable, name, patched(name)))
        try:
            yield
        finally:
            stack.close()
            for variable, value in reversed(kept):
                variable.assign(value)


@contextlib.contextmanager
def outside_scope() -> Iterator[None]:
    """Leaves the scope of a strategy, if this thread is in one, and enters it again in the end.

    A variable that is made in the scope of several workers is made by all of them together, and
    one of them alone would wait for the others for ever. A user's own variable creators stay.
    """
    graph = tf.compat.v1.get_default_graph()
    strategies, creators = graph._distribution_strategy_stack, graph._variable_creator_stack
    graph._distribution_strategy_stack = []
    graph._variable_creator_stack = [each for each in creators if not _is_of_strategy(each[1])]
    try:
        yield
    finally:
        graph._distribution_strategy_stack = strategies
        graph._variable_creator_stack = creators


def _is_of_strategy(creator: Any) -> bool:
    return str(getattr(creator, "__module__", "")).startswith("tensorflow.python.distribute.")


@contextlib.contextmanager
def summary_state_kept(replica: tf.distribute.ReplicaContext) -> Iterator[None]:
    """Keeps the state of `tf.summary` that a replica context stored when it was entered."""
    name = "_summary_recording_distribution_strategy"
    kept = getattr(replica, name, None)
    yield
    setattr(replica, name, kept)


@contextlib.contextmanager
def collective_keys_from(first: int) -> Iterator[None]:
    """Makes MultiWorkerMirroredStrategies number their collectives from `first` on."""
    with _set(tf.distribute.MultiWorkerMirroredStrategy, "_collective_key_base", first):
        yield


@contextlib.contextmanager
def already_connected() -> Iterator[None]:
    """Makes MultiWorkerMirroredStrategies take it that this process has connected to its peers.

    They find both attributes as TensorFlow leaves them after it has connected.
    """
    with (
        _set(CollectiveAllReduceExtended, "_std_server_started", True),
        _set(CollectiveAllReduceExtended, "_enable_check_health", False),
    ):
        yield


@contextlib.contextmanager
def _set(owner: type, name: str, value: object) -> Iterator[None]:
    """Gives an attribute of a class a value for a while."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
