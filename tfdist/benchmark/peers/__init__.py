"""Times tfdist beside: TensorFlow's plain loops, Keras' and tf-keras' fit, PyTorch's DDP."""
