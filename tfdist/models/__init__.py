"""Models that train on every strategy: ResNet50, and a small net for tests."""

from tfdist.models.resnet import resnet50
from tfdist.models.small import small_cnn

__all__ = ["resnet50", "small_cnn"]
