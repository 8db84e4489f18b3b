"""Updates the weights from reduced gradients."""
