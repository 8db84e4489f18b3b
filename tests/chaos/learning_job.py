"""A job whose checkpoints must hold everything: statistics, dropout's seeds, order, optimizer.

In the environment: DIR, where checkpoints go; EPOCHS; EVERY, the batches between checkpoints;
PAUSE, seconds that each step takes besides; NOISE, bytes that each step prints besides; RESULT, a
file for the last line too; MISTAKE, the step of the first epoch at which worker 1 raises, or the
chief beside parameter servers.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import time
from typing import Any

import tfdist

STEPS, BATCH = 40, 8  # an epoch


def main() -> None:
    cluster = tfdist.Cluster.from_environment()
    if tfdist.serve(cluster):
        return
    import keras
    import numpy as np

    strategy = tfdist.build_strategy("auto", cluster)
    raises = cluster.has_ps or cluster.task.index == 1
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if cluster.is_chief:
                print(f"STEP {self.epoch * STEPS + batch + 1}", flush=True)
                if noise := int(os.environ.get("NOISE", "0")):
                    print("." * noise, flush=True)
            if os.environ.get("MISTAKE") == str(batch + 1) and raises:
                raise ValueError("a mistake of the user's")
            time.sleep(float(os.environ["PAUSE"]))

    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * BATCH - 3, 6)).astype("float32")
    y = generator.integers(0, 3, len(x))
    trainer = tfdist.Trainer(
        model, checkpoint_dir=os.environ["DIR"], checkpoint_steps=int(os.environ["EVERY"])
    )
    history = trainer.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=int(os.environ["EPOCHS"]),
        verbose=0,
        validation_data=(x[:50], y[:50]),
        callbacks=[Steps()],
    )
    digest = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        digest.update(variable.numpy().tobytes())
    last = {name: values[-1] for name, values in history.history.items()}
    end = f"END {digest.hexdigest()} {sorted(last.items())}"
    if cluster.is_chief and "RESULT" in os.environ:
        pathlib.Path(os.environ["RESULT"]).write_text(end)
    print(end, flush=True)


if __name__ == "__main__":
    main()
