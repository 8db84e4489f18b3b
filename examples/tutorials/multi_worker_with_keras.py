"""TensorFlow's tutorial "Multi-worker training with Keras", through tfdist.

    tfdist launch --workers 2 -- python examples/tutorials/multi_worker_with_keras.py

https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras. Lines that differ from it
are marked; with Keras 3 the tutorial itself fails before the first step. The data is the bundled
digits, as MNIST would have to be downloaded.
"""

import json
import os

import tensorflow as tf

import tfdist  # added


def build_and_compile_cnn_model() -> tf.keras.Model:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(shape=(28, 28)),  # was: input_shape
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model


def mnist_dataset(batch_size: int) -> tf.data.Dataset:
    digits = tfdist.data.load("digits", image_size=28)  # was: tf.keras.datasets.mnist
    batches = digits.train(batch_size).dataset(1)
    return batches.map(lambda x, y: (tf.squeeze(x, -1), y)).cache().repeat()


per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tfdist.build_strategy()  # was: tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_dataset(global_batch_size)

with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()

trainer = tfdist.Trainer(multi_worker_model)  # added
trainer.fit(multi_worker_dataset, epochs=3, steps_per_epoch=70)  # was: multi_worker_model.fit
