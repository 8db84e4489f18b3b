"""Reads image datasets through TFDS, sharded over workers, in a reproducible order.

Example:
    Each worker reads its own part of every global batch::

        source = tfdist.data.load("digits", image_size=32, channels=3, seed=0)
        train, test = source.train(global_batch=64), source.test(global_batch=64)
        trainer.fit(train, epochs=6, validation_data=test)
"""

from __future__ import annotations

from tfdist.data.examples import from_examples
from tfdist.data.load import load
from tfdist.data.pipeline import Pipeline
from tfdist.data.recipe import Recipe
from tfdist.data.source import Source

__all__ = ["Pipeline", "Recipe", "Source", "from_examples", "load"]
