"""Images that are made: by adversaries, and by diffusion."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting
from tests.training.programs.program import Draws, images, program

SIDE = 8
# Keras gives a model without a compiled optimizer one that it never builds.
NO_OPTIMIZER = ("history", "weight", "evaluate", "predict", "after")


def _critic() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def _artist(setting: Setting) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(2 * 2 * 8),
            layers.Reshape((2, 2, 8)),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            setting.normalization(),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
        ]
    )


class GAN(keras.Model):
    """Trains a critic and an artist in a train_step, each with its optimizer."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.discriminator = _critic()
        self.generator = _artist(setting)
        self.draws = Draws(setting, 1337)
        self.seed_generator = self.draws.generator

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any = None) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.d_tracker, self.g_tracker]

    def train_step(self, real: Any) -> dict[str, Any]:
        rows = ops.shape(real)[0]
        seen = ops.concatenate([self.generator(self.draws.normal((rows, 6))), real], axis=0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(seen))
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        latent = self.draws.normal((rows, 6))
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(latent))
            g_loss = self.loss_fn(ops.zeros((rows, 1)), judged)
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


@program(
    "generative/dcgan_overriding_train_step",
    "a train_step with two models and two optimizers, random latent vectors",
    reference="slices",
    only=NO_OPTIMIZER,
)
def dcgan_overriding_train_step(setting: Setting) -> Recipe:
    model = GAN(setting)
    model.compile(
        d_optimizer=keras.optimizers.Adam(learning_rate=0.0001),
        g_optimizer=keras.optimizers.Adam(learning_rate=0.0001),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    pixels, _ = images(48, side=SIDE)
    return Recipe(
        model, fit={"x": tf.data.Dataset.from_tensor_slices(pixels).batch(16), "epochs": 2}
    )


class WGAN(GAN):
    """Trains the critic several times a step, with a penalty on its gradient."""

    rounds = 3

    def _penalty(self, real: Any, fake: Any, rows: Any) -> Any:
        share = self.draws.uniform((rows, 1, 1, 1))
        between = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            said = self.discriminator(between, training=True)
        slope = tape.gradient(said, [between])[0]
        return tf.reduce_mean((tf.sqrt(tf.reduce_sum(slope**2, axis=[1, 2, 3])) - 1.0) ** 2)

    def train_step(self, real: Any) -> dict[str, Any]:
        real = real[0] if isinstance(real, tuple) else real
        rows = tf.shape(real)[0]
        for _ in range(self.rounds):
            latent = self.draws.normal((rows, 6))
            with tf.GradientTape() as tape:
                fake = self.generator(latent, training=True)
                unlike = [self.discriminator(side, training=True) for side in (fake, real)]
                cost = tf.reduce_mean(unlike[0]) - tf.reduce_mean(unlike[1])
                d_loss = cost + 10.0 * self._penalty(real, fake, rows)
            weights = self.discriminator.trainable_variables
            gradients = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        latent = self.draws.normal((rows, 6))
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(latent, training=True), training=True)
            g_loss = -tf.reduce_mean(judged)
        weights = self.generator.trainable_variables
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


TWICE = "updates the same weights more than once a step"


@program(
    "generative/wgan_gp",
    "a train_step that updates one model three times, and takes gradients of gradients",
    reference="slices",
    only=NO_OPTIMIZER,
    refused={"mirrored": TWICE, "multi_worker_mirrored": TWICE},
)
def wgan_gp(setting: Setting) -> Recipe:
    model = WGAN(setting)
    options = {"learning_rate": 0.0002, "beta_1": 0.5, "beta_2": 0.9}
    model.compile(
        d_optimizer=keras.optimizers.Adam(**options), g_optimizer=keras.optimizers.Adam(**options)
    )
    pixels, _ = images(48, side=SIDE)
    return Recipe(model, fit={"x": pixels, "batch_size": 16, "epochs": 2, "shuffle": False})


@keras.saving.register_keras_serializable()
def _waves(variance: Any) -> Any:
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(1000.0), 4))
    angles = ops.cast(2.0 * math.pi * frequencies, variance.dtype) * variance
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=3)


def _denoiser(setting: Setting) -> keras.Model:
    noisy, variance = keras.Input((SIDE, SIDE, 1)), keras.Input((1, 1, 1))
    waves = layers.Lambda(_waves, output_shape=(1, 1, 8))(variance)
    waves = layers.UpSampling2D(SIDE, interpolation="nearest")(waves)
    x = layers.Concatenate()([layers.Conv2D(8, 1)(noisy), waves])
    skips = []
    for width in (8, 8):
        x = _residual(setting, width, x)
        skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    x = _residual(setting, 16, x)
    for width in (8, 8):
        x = layers.UpSampling2D(2, interpolation="bilinear")(x)
        x = _residual(setting, width, layers.Concatenate()([x, skips.pop()]))
    return keras.Model([noisy, variance], layers.Conv2D(1, 1, kernel_initializer="zeros")(x))


def _residual(setting: Setting, width: int, x: Any) -> Any:
    residual = x if x.shape[3] == width else layers.Conv2D(width, 1)(x)
    x = setting.normalization(center=False, scale=False)(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(width, 3, padding="same")(x)
    return layers.Add()([x, residual])


class DiffusionModel(keras.Model):
    """Learns to tell noise from image; a second network follows the first one's weights."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = _denoiser(setting)
        self.ema_network = _denoiser(setting)
        self.ema_network.set_weights(self.network.get_weights())
        self.draws = Draws(setting, 99)
        self.seed_generator = self.draws.generator

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.n_tracker = keras.metrics.Mean(name="n_loss")
        self.i_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.n_tracker, self.i_tracker]

    def _diffused(self, pixels: Any) -> Any:
        rows = ops.shape(pixels)[0]
        noises = self.draws.normal((rows, SIDE, SIDE, 1))
        start, end = math.acos(0.95), math.acos(0.02)
        angles = start + self.draws.uniform((rows, 1, 1, 1)) * (end - start)
        signal, noise = ops.cos(angles), ops.sin(angles)
        return noises, noise, signal, signal * pixels + noise * noises

    def _apart(self, network: Any, pixels: Any, training: bool) -> tuple[Any, Any]:
        pixels = self.normalizer(pixels, training=training)
        noises, noise, signal, noisy = self._diffused(pixels)
        said = network([noisy, noise**2], training=training)
        restored = (noisy - noise * said) / signal
        return self.loss(noises, said), self.loss(pixels, restored)

    def train_step(self, pixels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            n_loss, i_loss = self._apart(self.network, pixels, training=True)
        weights = self.network.trainable_weights
        gradients = tape.gradient(n_loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.n_tracker.update_state(n_loss)
        self.i_tracker.update_state(i_loss)
        for own, slow in zip(self.network.weights, self.ema_network.weights, strict=True):
            slow.assign(0.9 * slow + 0.1 * own)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, pixels: Any) -> dict[str, Any]:
        n_loss, i_loss = self._apart(self.ema_network, pixels, training=False)
        self.n_tracker.update_state(n_loss)
        self.i_tracker.update_state(i_loss)
        return {metric.name: metric.result() for metric in self.metrics}


@program(
    "generative/ddim",
    "a train_step that moves a second network's weights after the update; random times and noise",
    reference="slices",
    dtype="float64",
    # Keras' optimizer has no variables for the second network, which it never trains.
    only=("history", "weight"),
)
def ddim(setting: Setting) -> Recipe:
    model = DiffusionModel(setting)
    pixels, _ = images(48, side=SIDE)
    model.normalizer.adapt(pixels)
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4),
        loss=keras.losses.mean_absolute_error,
    )
    dataset = tf.data.Dataset.from_tensor_slices(pixels).batch(16)
    return Recipe(model, fit={"x": dataset, "epochs": 2, "validation_data": dataset.take(1)})
