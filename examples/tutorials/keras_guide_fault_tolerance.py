"""The second part of Keras' guide "Multi-GPU distributed training", through tfdist on two workers.

    tfdist launch --workers 2 -- python examples/tutorials/keras_guide_fault_tolerance.py

https://keras.io/guides/distributed_training_with_tensorflow, "Using callbacks to ensure fault
tolerance". Lines that differ from it are marked; with Keras 3 it fails on several workers before
the first step. The data is the bundled digits, as MNIST would have to be downloaded.
`Trainer(model, checkpoint_dir=...)` resumes in the middle of an epoch too, optimizer and all.
"""

import os
import tempfile

import keras
import tensorflow as tf

import tfdist  # added

# Prepare a directory to store all the checkpoints; all workers must see it. Was: "./ckpt"
checkpoint_dir = os.path.join(tempfile.gettempdir(), "keras_guide")
os.makedirs(checkpoint_dir, exist_ok=True)  # was: if not os.path.exists(checkpoint_dir)


def get_compiled_model() -> keras.Model:
    inputs = keras.Input(shape=(784,))
    x = keras.layers.Dense(256, activation="relu")(inputs)
    x = keras.layers.Dense(256, activation="relu")(x)
    outputs = keras.layers.Dense(10)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def get_dataset(part: str) -> tf.data.Dataset:
    digits = tfdist.data.load("digits", image_size=28)  # was: keras.datasets.mnist
    batches = getattr(digits, part)(32).dataset(1)
    return batches.map(lambda x, y: (tf.reshape(x, [-1, 784]), y))


def make_or_restore_model() -> keras.Model:
    # Either restore the latest model, or create a fresh one if there is no checkpoint available.
    checkpoints = [checkpoint_dir + "/" + name for name in os.listdir(checkpoint_dir)]
    if checkpoints:
        latest_checkpoint = max(checkpoints, key=os.path.getctime)
        print("Restoring from", latest_checkpoint)
        return keras.models.load_model(latest_checkpoint)
    print("Creating a new model")
    return get_compiled_model()


strategy = tfdist.build_strategy()  # was: tf.distribute.MirroredStrategy(), in run_training


def run_training(epochs: int = 1) -> None:
    # Open a strategy scope and create/restore the model
    with strategy.scope():
        model = make_or_restore_model()
        callbacks = [
            # This callback saves the model every epoch; the file's name has the current epoch.
            keras.callbacks.ModelCheckpoint(
                filepath=checkpoint_dir + "/ckpt-{epoch}.keras", save_freq="epoch"
            )
        ]
        tfdist.Trainer(model).fit(  # was: model.fit
            get_dataset("train"),
            epochs=epochs,
            callbacks=callbacks,
            validation_data=get_dataset("test"),
            verbose=2,
        )


# Running the first time creates the model
run_training(epochs=1)

# Calling the same function again will resume from where we left off
run_training(epochs=1)
