"""Models that train on every strategy: ResNet50, and a small network for tests.

Example:
    >>> model = tfdist.models.small_cnn(input_shape=(8, 8, 1), classes=10)
    >>> model.output_shape
    (None, 10)
"""

from tfdist.models.resnet import resnet50
from tfdist.models.small import small_cnn

__all__ = ["resnet50", "small_cnn"]
