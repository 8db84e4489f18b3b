"""Text: classification, translation, generation, and words left out."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.conformance.setting import Recipe, Setting, batches, generator
from tests.training.programs.program import program, sentences

LENGTH, WORDS, WIDTH = 12, 30, 16


class Block(layers.Layer):
    """A transformer block: attention, then a network for each place."""

    def __init__(self, setting: Setting, causal: bool = False, rate: float = 0.1) -> None:
        super().__init__()
        self.causal = causal
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH)
        self.network = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(WIDTH)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.drops = [setting.dropout(rate, seed=seed) for seed in (3, 4)]

    def call(self, x: Any, training: bool = False) -> Any:
        attended = self.attention(x, x, use_causal_mask=self.causal)
        x = self.norms[0](x + self.drops[0](attended, training=training))
        return self.norms[1](x + self.drops[1](self.network(x), training=training))


class Places(layers.Layer):
    """Embeds words and adds an embedding of their places."""

    def __init__(self, masks: bool = False) -> None:
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH)
        self.places = layers.Embedding(LENGTH, WIDTH)
        self.masks = masks

    def call(self, text: Any) -> Any:
        return self.words(text) + self.places(ops.arange(0, text.shape[-1]))

    def compute_mask(self, text: Any, previous: Any = None) -> Any:
        return ops.not_equal(text, 0) if self.masks else None


def _mood(text: np.ndarray) -> np.ndarray:
    """Whether the words are in mean high numbers."""
    return (text.sum(axis=1) / (text > 0).sum(axis=1) > WORDS / 2).astype("int32")


@program(
    "nlp/text_classification_with_transformer",
    "own layers with attention, embeddings of words and places, dropout",
    reference="slices",
    dtype="float64",
)
def text_classification_with_transformer(setting: Setting) -> Recipe:
    inputs = keras.Input((LENGTH,))
    x = Block(setting)(Places()(inputs))
    x = setting.dropout(0.1, seed=5)(layers.GlobalAveragePooling1D()(x))
    x = setting.dropout(0.1, seed=6)(layers.Dense(20, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    text = sentences(48)
    y = _mood(text)
    held_out = (text[:16], y[:16])
    return Recipe(
        model,
        fit={
            "x": text,
            "y": y,
            "batch_size": 16,
            "epochs": 2,
            "validation_data": held_out,
            "shuffle": False,
        },
        evaluate={"x": text, "y": y},
        predict={"x": text},
    )


@program("nlp/bidirectional_lstm_imdb", "an embedding, two bidirectional LSTMs")
def bidirectional_lstm_imdb(setting: Setting) -> Recipe:
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, 16)(inputs)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(8))(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    text = sentences(40)
    y = _mood(text)
    return Recipe(
        model,
        fit={
            "x": text,
            "y": y,
            "batch_size": 16,
            "epochs": 2,
            "validation_data": (text[:16], y[:16]),
            "shuffle": False,
        },
        predict={"x": text},
    )


@program("nlp/lstm_seq2seq", "an LSTM that begins in another's state, one-hot letters, RMSprop")
def lstm_seq2seq(setting: Setting) -> Recipe:
    source = keras.Input((None, WORDS))
    _, *states = layers.LSTM(16, return_state=True)(source)
    target = keras.Input((None, WORDS))
    x, *_ = layers.LSTM(16, return_sequences=True, return_state=True)(target, initial_state=states)
    outputs = layers.Dense(WORDS, activation="softmax")(x)
    model = keras.Model([source, target], outputs)
    model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
    letters = np.eye(WORDS, dtype="float32")
    text = sentences(40)
    before = letters[text[:, ::-1]]
    after = np.roll(before, -1, axis=1)
    return Recipe(
        model,
        fit={
            "x": [letters[text], before],
            "y": after,
            "batch_size": 16,
            "epochs": 2,
            "validation_split": 0.2,
            "shuffle": False,
        },
        predict={"x": [letters[text], before]},
    )


class Decoder(layers.Layer):
    """A transformer block that attends to what was written so far, then to an encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.own = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH)
        self.other = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH)
        self.network = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(WIDTH)])
        self.norms = [layers.LayerNormalization() for _ in range(3)]

    def call(self, inputs: Any, mask: Any = None) -> Any:
        x, encoded = inputs
        own_mask, other_mask = mask if mask is not None else (None, None)
        attended = self.own(x, x, query_mask=own_mask, use_causal_mask=True)
        x = self.norms[0](x + attended)
        attended = self.other(x, encoded, query_mask=own_mask, key_mask=other_mask)
        x = self.norms[1](x + attended)
        return self.norms[2](x + self.network(x))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return mask[0] if mask is not None else None


@program(
    "nlp/neural_machine_translation_with_transformer",
    "masks from an own layer to the loss, two inputs in a dict, an encoder and a decoder",
    reference="slices",
    dtype="float64",
)
def neural_machine_translation_with_transformer(setting: Setting) -> Recipe:
    source = keras.Input((None,), dtype="int64", name="encoder_inputs")
    target = keras.Input((None,), dtype="int64", name="decoder_inputs")
    encoded = Block(setting, rate=0.0)(Places(masks=True)(source))
    x = Decoder()([Places(masks=True)(target), encoded])
    outputs = layers.Dense(WORDS, activation="softmax")(setting.dropout(0.5, seed=7)(x))
    model = keras.Model([source, target], outputs)
    model.compile(
        "rmsprop",
        loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
        metrics=["accuracy"],
    )
    text = sentences(40)
    written = np.where(text > 0, WORDS - text, 0)
    data = {"encoder_inputs": text[:, :-1], "decoder_inputs": written[:, :-1]}
    dataset = batches(data, written[:, 1:])
    return Recipe(
        model,
        fit={"x": dataset, "epochs": 2, "validation_data": dataset.take(2)},
        evaluate={"x": dataset},
    )


class Writes(keras.callbacks.Callback):
    """Writes on from a few words at each epoch's end, each time the likeliest word."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        text = [1, 2, 3]
        for _ in range(3):
            padded = np.zeros((1, LENGTH), "int32")
            padded[0, : len(text)] = text
            logits, _ = self.model.predict(padded, verbose=0)
            text.append(int(np.argmax(logits[0, len(text) - 1])))
        self.written += text[3:]


@program(
    "generative/text_generation_with_miniature_gpt",
    "two outputs of which one has no loss, causal masks, a callback that calls predict",
    reference="slices",
    dtype="float64",
)
def text_generation_with_miniature_gpt(setting: Setting) -> Recipe:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Block(setting, causal=True)(Places()(inputs))
    model = keras.Model(inputs, [layers.Dense(WORDS)(x), x])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])
    text = (generator(0).integers(1, 5, (40, 1)) + np.arange(LENGTH + 1)) % WORDS
    dataset = batches(text[:, :-1].astype("int32"), text[:, 1:].astype("int32"))
    writes = Writes()
    return Recipe(
        model,
        fit={"x": dataset, "epochs": 2, "callbacks": [writes]},
        predict={"x": text[:8, :-1].astype("int32")},
        after=lambda _: {"written": np.asarray(writes.written)},
    )


class MaskedLanguageModel(keras.Model):
    """A train_step whose loss counts the words that were left out, by sample weights."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        self.tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        features, labels, sample_weight = data if len(data) == 3 else (*data, None)
        with tf.GradientTape() as tape:
            said = self(features, training=True)
            loss = self.loss_fn(labels, said, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss, sample_weight=sample_weight)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.tracker]


@program(
    "nlp/masked_language_modeling",
    'a train_step whose loss has the reduction None, and sample weights; "dropout off"',
    dtype="float64",
)
def masked_language_modeling(setting: Setting) -> Recipe:
    inputs = keras.Input((LENGTH,), dtype="int64")
    x = Block(setting, rate=0.0)(Places()(inputs))
    model = MaskedLanguageModel(inputs, layers.Dense(WORDS, activation="softmax")(x))
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001))
    text = sentences(40)
    left_out = generator(4).uniform(size=text.shape) < 0.3
    masked = np.where(left_out, WORDS - 1, text)
    dataset = batches(masked, text, left_out.astype("float32"))
    return Recipe(model, fit={"x": dataset, "epochs": 2}, predict={"x": masked})
