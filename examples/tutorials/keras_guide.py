"""Keras' guide "Multi-GPU distributed training with TensorFlow", through tfdist.

    python examples/tutorials/keras_guide.py

https://keras.io/guides/distributed_training_with_tensorflow. Lines that differ from it are marked.
The data is the bundled digits, as MNIST would have to be downloaded.
"""

import keras
import tensorflow as tf

import tfdist  # added

tfdist.virtual_devices(2)  # added: two replicas on a machine without GPUs


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


strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")
with strategy.scope():
    model = get_compiled_model()
    trainer = tfdist.Trainer(model)  # added
    train_dataset, test_dataset = get_dataset("train"), get_dataset("test")
    trainer.fit(train_dataset, epochs=2, validation_data=test_dataset)  # was: model.fit
    trainer.evaluate(test_dataset)  # was: model.evaluate
