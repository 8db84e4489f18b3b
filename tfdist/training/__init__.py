"""Trains Keras models under any `tf.distribute` strategy."""

from tfdist.training.trainer import Trainer

__all__ = ["Trainer"]
