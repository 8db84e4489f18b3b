"""Images through a latent space: a variational and a vector-quantised autoencoder."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting
from tests.training.programs.program import Draws, images, program

SIDE = 8


class Sampling(layers.Layer):
    """Draws from a normal distribution whose mean and log variance it is given."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.draws = Draws(setting, 1337)
        self.seed_generator = self.draws.generator

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        shape = (ops.shape(mean)[0], mean.shape[1])
        return mean + ops.exp(0.5 * log_variance) * self.draws.normal(shape)


class VAE(keras.Model):
    """A train_step with the loss of a variational autoencoder and three trackers."""

    def __init__(self, encoder: keras.Model, decoder: keras.Model) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.total = keras.metrics.Mean(name="total_loss")
        self.restored = keras.metrics.Mean(name="reconstruction_loss")
        self.kl = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.total, self.restored, self.kl]

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            off = keras.losses.binary_crossentropy(data, self.decoder(z))
            restored = ops.mean(ops.sum(off, axis=(1, 2)))
            kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl = ops.mean(ops.sum(kl, axis=1))
            total = restored + kl
        weights = self.trainable_weights
        gradients = tape.gradient(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.total.update_state(total)
        self.restored.update_state(restored)
        self.kl.update_state(kl)
        return {
            "loss": self.total.result(),
            "reconstruction_loss": self.restored.result(),
            "kl_loss": self.kl.result(),
        }


@program(
    "generative/vae",
    "a train_step with losses written by hand, a layer that draws, logs named unlike their metrics",
    reference="slices",
)
def vae(setting: Setting) -> Recipe:
    inputs = keras.Input((SIDE, SIDE, 1))
    x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(inputs)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
    z = Sampling(setting)([mean, log_variance])
    encoder = keras.Model(inputs, [mean, log_variance, z])
    latent = keras.Input((2,))
    x = layers.Reshape((4, 4, 4))(layers.Dense(64, activation="relu")(latent))
    x = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
    outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    model = VAE(encoder, keras.Model(latent, outputs))
    model.compile(optimizer=keras.optimizers.Adam())
    pixels, _ = images(40, side=SIDE)
    return Recipe(
        model, fit={"x": pixels, "epochs": 2, "batch_size": 16, "shuffle": False}, predict=None
    )


class VectorQuantizer(layers.Layer):
    """Replaces each vector by the nearest of a codebook; adds its losses with add_loss."""

    def __init__(self, count: int, width: int, beta: float = 0.25) -> None:
        super().__init__()
        self.width = width
        self.count = count
        self.beta = beta
        self.codes = self.add_weight(shape=(width, count), initializer="random_uniform")

    def call(self, x: Any) -> Any:
        flat = tf.reshape(x, [-1, self.width])
        distances = (
            tf.reduce_sum(flat**2, axis=1, keepdims=True)
            + tf.reduce_sum(self.codes**2, axis=0)
            - 2 * tf.matmul(flat, self.codes)
        )
        chosen = tf.one_hot(tf.argmin(distances, axis=1), self.count, dtype=x.dtype)
        nearest = tf.reshape(tf.matmul(chosen, self.codes, transpose_b=True), tf.shape(x))
        commitment = tf.reduce_mean((tf.stop_gradient(nearest) - x) ** 2)
        codebook = tf.reduce_mean((nearest - tf.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment + codebook)
        return x + tf.stop_gradient(nearest - x)


class VQTrainer(keras.Model):
    """A train_step that adds the losses of the layers to its own."""

    def __init__(self, network: keras.Model, variance: float) -> None:
        super().__init__()
        self.network = network
        self.variance = variance
        self.trackers = [
            keras.metrics.Mean(name=name) for name in ("loss", "reconstruction_loss", "vqvae_loss")
        ]

    @property
    def metrics(self) -> list[keras.Metric]:
        return self.trackers

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            restored = tf.reduce_mean((x - self.network(x)) ** 2) / self.variance
            total = restored + sum(self.network.losses)
        weights = self.network.trainable_variables
        gradients = tape.gradient(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for tracker, value in zip(
            self.trackers, (total, restored, sum(self.network.losses)), strict=True
        ):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


@program("generative/vq_vae", "add_loss in a layer, its losses in a train_step, a codebook")
def vq_vae(setting: Setting) -> Recipe:
    inputs = keras.Input((SIDE, SIDE, 1))
    x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(inputs)
    x = VectorQuantizer(16, 4)(layers.Conv2D(4, 1, padding="same")(x))
    x = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
    network = keras.Model(inputs, layers.Conv2DTranspose(1, 3, padding="same")(x))
    pixels, _ = images(40, side=SIDE)
    pixels -= 0.5
    model = VQTrainer(network, float(pixels.var()))
    model.compile(optimizer=keras.optimizers.Adam())
    return Recipe(model, fit={"x": pixels, "epochs": 2, "batch_size": 16, "shuffle": False})
