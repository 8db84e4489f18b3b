"""A worker that trains each case by both transports: `job.py FOLDER`; it writes all that came out.

With a `FAULT` in the environment it breaks in the midst instead; see `main`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import tfdist

CASES: dict[str, dict[str, Any]] = {
    # Everything that travels: gradients, statistics, outputs for metrics.
    "plain": {"synchronized": True, "gathers": True},
}
LONG_CASES: dict[str, dict[str, Any]] = {
    "float16": {"wire_dtype": "float16"},
    # Large enough for memory that is used again, of which optimizers keep parts.
    "wide": {"width": 700, "steps_per_call": 3, "optimizer": "adam"},
}
if os.environ.get("TFDIST_CONFORMANCE") == "full":
    CASES |= LONG_CASES


def train(strategy: Any, transport: str, options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Trains a model with sparse gradients; returns its values."""
    import keras
    import tensorflow as tf

    given = {"width": 16, "synchronized": False, "run_eagerly": False, "optimizer": "sgd"}
    given |= {"gathers": False} | options
    trainer_options = {k: v for k, v in options.items() if k.endswith(("steps", "dtype", "call"))}
    keras.utils.set_random_seed(1)
    with strategy.scope():
        words = keras.Input((5,), dtype="int32")
        x = keras.layers.Flatten()(keras.layers.Embedding(50, 8)(words))
        x = keras.layers.Dense(given["width"], activation="relu")(x)
        x = keras.layers.BatchNormalization(synchronized=given["synchronized"])(x)
        x = keras.layers.Dense(given["width"], activation="relu")(x)
        model = keras.Model(words, keras.layers.Dense(3)(x))
        metrics = ["accuracy"]
        if given["gathers"]:
            metrics.append(keras.metrics.F1Score(average="macro"))
        model.compile(
            {"sgd": keras.optimizers.SGD(0.05, momentum=0.9), "adam": keras.optimizers.Adam(0.01)}[
                given["optimizer"]
            ],
            keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=metrics,
            run_eagerly=given["run_eagerly"],
        )
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 50, (45, 5)).astype("int32")
    labels = np.eye(3, dtype="float32")[generator.integers(0, 3, 45)]
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(8)
    trainer = tfdist.Trainer(model, transport=transport, **trainer_options)
    history = trainer.fit(data, epochs=3, verbose=0, validation_data=data)
    values = {f"weight {i}": v.numpy() for i, v in enumerate(model.weights)}
    values |= {f"optimizer {i}": v.numpy() for i, v in enumerate(model.optimizer.variables)}
    values |= {f"history {k}": np.array(v) for k, v in history.history.items()}
    values["predicted"] = trainer.predict(rows, batch_size=8, verbose=0)
    return values


def flip_bits() -> None:
    """Changes what this worker receives from now on."""
    from tfdist.collectives.ring.stream import Stream

    receive = Stream._receive

    def flipped(stream: Any, rooms: Any) -> bool:
        first = rooms[0]
        came: bool = receive(stream, rooms)
        if came:
            first[0] ^= 1
        return came

    Stream._receive = flipped  # type: ignore[method-assign]


def break_off(strategy: Any, fault: str) -> None:
    """Trains for ever, until worker 1 has a fault in the midst and all others run into it.

    With "input" in the fault it is in the input, while all are in one call of many steps.
    """
    import keras
    import tensorflow as tf

    victim = strategy.cluster_resolver.task_id == 1
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def ready() -> None:
        print("READY", flush=True)
        if victim and "silent" in fault:
            time.sleep(1000)
        if victim and "raises" in fault:
            raise ValueError("of its own")
        if victim and "flips" in fault:
            flip_bits()

    class Act(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                ready()
                if victim and fault == "left":
                    sys.exit(0)
            time.sleep(0.05)

    def rows() -> Any:
        for number in range(1_000_000):
            if "input" in fault and number == 200:
                ready()
            time.sleep(0.001)
            yield tf.ones([4, 4]), tf.ones([4, 1])

    spec = (tf.TensorSpec([4, 4]), tf.TensorSpec([4, 1]))
    data = tf.data.Dataset.from_generator(rows, output_signature=spec)
    many = {"callbacks": []} if "input" in fault else {"callbacks": [Act()]}
    steps = 100 if "input" in fault else 1
    trainer = tfdist.Trainer(model, steps_per_call=steps, transport="ring")
    # Each worker reads for itself.
    trainer.fit(lambda context: data, steps_per_epoch=100_000, verbose=0, **many)


def main(folder: str) -> None:
    strategy = tfdist.build_strategy("multi_worker_mirrored")
    if "FAULT" in os.environ:
        break_off(strategy, os.environ["FAULT"])
        return
    task = strategy.cluster_resolver.task_id
    for name, options in CASES.items():
        for transport in ("ring", "tensorflow"):
            values = train(strategy, transport, options)
            np.savez(Path(folder, f"{name}-{transport}-{task}.npz"), **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
