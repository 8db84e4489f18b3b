"""The model of TensorFlow's tutorial "Custom training", without the loop.

    python examples/tutorials/custom_training.py

https://www.tensorflow.org/tutorials/distribute/custom_training writes its own training loop: 60
lines of train_step, distributed_train_step, reduce and metrics. Here compile and fit replace them.
The data is the bundled digits, as Fashion MNIST would have to be downloaded.
"""

import tensorflow as tf

import tfdist

tfdist.virtual_devices(2)
strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH_SIZE = 32 * strategy.num_replicas_in_sync
EPOCHS = 10
digits = tfdist.data.load("digits", image_size=28)


def create_model() -> tf.keras.Model:
    regularizer = tf.keras.regularizers.L2(1e-5)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Dense(10, kernel_regularizer=regularizer),
        ]
    )


with strategy.scope():
    model = create_model()
    model.compile(  # was: loss_object, compute_loss, the optimizer and five metrics
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
tfdist.Trainer(model).fit(  # was: the loop
    digits.train(GLOBAL_BATCH_SIZE),
    epochs=EPOCHS,
    validation_data=digits.test(GLOBAL_BATCH_SIZE),
)
