"""TensorFlow's tutorial "Parameter server training", through tfdist.

    tfdist launch --chief 1 --ps 2 --workers 3 -- \\
        python examples/tutorials/parameter_server_training.py

https://www.tensorflow.org/tutorials/distribute/parameter_server_training, its part on Model.fit,
which fails with Keras 3. Lines that differ from it are marked.
"""

import sys

import tensorflow as tf

import tfdist  # added

cluster = tfdist.Cluster.from_environment()  # was: an in-process cluster
if tfdist.serve(cluster):  # was: tf.distribute.Server(...).join()
    sys.exit()

strategy = tfdist.build_strategy("parameter_server", cluster)

global_batch_size = 64
x = tf.random.uniform((10, 10))
y = tf.random.uniform((10,))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
dataset = dataset.batch(global_batch_size)
dataset = dataset.prefetch(2)

with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])  # was: 10 for one target
    model.compile(tf.keras.optimizers.SGD(), loss="mse", steps_per_execution=10)

callbacks = [tf.keras.callbacks.TerminateOnNaN()]
trainer = tfdist.Trainer(model)  # added
trainer.fit(dataset, epochs=5, steps_per_epoch=20, callbacks=callbacks)  # was: model.fit
