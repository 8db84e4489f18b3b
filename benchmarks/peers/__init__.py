"""Times tfdist against TensorFlow's own loops, Keras, tf-keras, PyTorch's DDP and Horovod."""
