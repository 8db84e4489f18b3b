"""Logs of a batch are computed for whoever reads batches."""

from __future__ import annotations

import keras
import pytest

from tfdist.training.calls import read_batches


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        """Reads it."""


class OldName(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        """Reads it."""


class EachEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        """Reads no batch."""


def progress(verbose):
    bar = keras.callbacks.ProgbarLogger()
    bar.set_params({"verbose": verbose, "epochs": 1, "steps": 1})
    return bar


@pytest.mark.parametrize(
    ("callback", "reads"),
    [
        (EachBatch(), True),
        (OldName(), True),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), True),
        (keras.callbacks.TerminateOnNaN(), True),
        (progress(1), True),
        (progress(2), False),
        (EachEpoch(), False),
        (keras.callbacks.History(), False),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False),
    ],
)
def test_who_reads_batches(callback, reads):
    assert read_batches([EachEpoch(), callback]) is reads
