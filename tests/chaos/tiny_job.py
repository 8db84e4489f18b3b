"""A job small enough to be broken often: a linear model, under whichever strategy fits.

What is to go wrong, and when, is in the environment:

    FAULTS    kinds, one an attempt of the launcher's: stop, sleep, deadlock, callback, loop (a step
              that computes for ever, under parameter servers),
              apart (a call that the others do not make)
    VICTIMS   the workers that they hit, one an attempt
    PAUSE     seconds that each step takes besides, in attempts without a fault
    STEPS     batches an epoch
    EPOCHS    epochs
    DIR       where checkpoints go
    EVERY     every how many batches
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import tfdist

ENV = os.environ
STEPS, EPOCHS = int(ENV.get("STEPS", "40")), int(ENV.get("EPOCHS", "2"))
BATCH = 8
FAULT_AT = min(15, STEPS // 2)  # the step


def plan() -> tuple[str, int]:
    """The fault of this attempt and whom it hits."""
    faults = [kind for kind in ENV.get("FAULTS", "").split(",") if kind]
    attempt = int(ENV.get("TFDIST_ATTEMPT", "1")) - 1
    if attempt >= len(faults):
        return "", -1
    return faults[attempt], int(ENV["VICTIMS"].split(",")[attempt])


def tell(text: str) -> None:
    print(f"{text} at={time.time():.3f}", flush=True)


def main() -> None:
    cluster = tfdist.Cluster.from_environment()
    if tfdist.serve(cluster):
        return
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tfdist.build_strategy("auto", cluster)
    keras.utils.set_random_seed(1)
    kind, victim = plan()

    class EndlessOfNaN(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            def is_nan(x: Any) -> Any:
                return tf.reduce_any(tf.math.is_nan(x))

            return tf.while_loop(is_nan, lambda x: (x + 1.0,), (inputs,))[0]

    with strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.Dense(1)]
        if kind == "loop":
            layers.insert(0, EndlessOfNaN())
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    hit = cluster.task.index == victim

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch % 10 == 0 and cluster.is_chief:
                tell(f"STEP {self.epoch * STEPS + batch + 1}")
            time.sleep(0.0 if kind else float(ENV.get("PAUSE", "0")))
            if hit and self.epoch == 0 and batch == FAULT_AT:
                if kind == "stop":
                    tell("FAULT stop")
                    os.kill(os.getpid(), signal.SIGSTOP)
                if kind == "callback":
                    tell("FAULT callback")
                    time.sleep(10_000)

    rows = np.random.default_rng(0).normal(size=(STEPS * BATCH, 8)).astype("float32")
    targets = rows.sum(axis=1, keepdims=True)
    if kind == "loop":
        tell("FAULT loop")
        rows[FAULT_AT * BATCH] = np.nan

    def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
        del context

        def examples() -> Iterator[Any]:
            for number, row in enumerate(rows):
                if hit and number == FAULT_AT * BATCH and kind in ("sleep", "deadlock"):
                    tell(f"FAULT {kind}")
                    if kind == "sleep":
                        time.sleep(10_000)
                    if kind == "deadlock":
                        lock = threading.Lock()
                        with lock, lock:
                            pass
                yield row, targets[number]

        signature = (tf.TensorSpec((8,)), tf.TensorSpec((1,)))
        return tf.data.Dataset.from_generator(examples, output_signature=signature).batch(BATCH)

    folder = ENV.get("DIR")
    every = int(ENV["EVERY"]) if folder else None
    trainer = tfdist.Trainer(model, checkpoint_dir=folder, checkpoint_steps=every)
    data: dict[str, Any] = {"x": read}
    if cluster.has_ps:
        # The row that is not a number comes in its turn.
        data = {"x": rows, "y": targets, "batch_size": BATCH, "shuffle": kind != "loop"}
    elif not kind:
        pipeline = tf.data.Dataset.from_tensor_slices((rows, targets)).batch(BATCH)
        data = {"x": pipeline}
    trainer.fit(**data, epochs=EPOCHS, verbose=0, callbacks=[Steps()])
    if kind == "apart":
        if hit:
            tell("FAULT apart")
            trainer.evaluate(rows, targets, batch_size=BATCH, verbose=0)
        trainer.fit(**data, epochs=EPOCHS, verbose=0)
    digest = hashlib.sha256()
    for variable in [*model.weights, *model.optimizer.variables]:
        digest.update(np.asarray(variable).tobytes())
    steps = int(model.optimizer.iterations.numpy())
    tell(f"END {steps} {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
