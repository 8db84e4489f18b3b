"""TensorFlow's tutorial "Distributed training with Keras", through tfdist.

    python examples/tutorials/distributed_keras.py

https://www.tensorflow.org/tutorials/distribute/keras. Lines that differ from it are marked.
The data is the bundled digits, as MNIST would have to be downloaded.
"""

import os
import tempfile

import tensorflow as tf

import tfdist  # added

tfdist.virtual_devices(2)  # added: two replicas on a machine without GPUs

EPOCHS = 12
checkpoints = tempfile.mkdtemp()

datasets = tfdist.data.load("digits", image_size=28)  # was: tfds.load("mnist")
strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")
BATCH_SIZE = 16 * strategy.num_replicas_in_sync
train_dataset = datasets.train(BATCH_SIZE)  # was: mnist_train.map(scale).shuffle().batch()
eval_dataset = datasets.test(BATCH_SIZE)  # was: mnist_test.map(scale).batch()

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )


def decay(epoch: int) -> float:
    if epoch < 3:
        return 1e-3
    return 1e-4 if epoch < 7 else 1e-5


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        rate = model.optimizer.learning_rate.numpy()
        print(f"\nLearning rate for epoch {epoch + 1} is {rate}")


callbacks = [
    tf.keras.callbacks.ModelCheckpoint(
        filepath=os.path.join(checkpoints, "ckpt_{epoch}.weights.h5"), save_weights_only=True
    ),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
trainer = tfdist.Trainer(model)  # added
trainer.fit(train_dataset, epochs=EPOCHS, callbacks=callbacks)  # was: model.fit

model.load_weights(os.path.join(checkpoints, f"ckpt_{EPOCHS}.weights.h5"))
eval_loss, eval_acc = trainer.evaluate(eval_dataset)  # was: model.evaluate
print(f"Eval loss: {eval_loss}, Eval accuracy: {eval_acc}")
