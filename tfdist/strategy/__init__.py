"""Builds `tf.distribute` strategies from a cluster and this machine's devices."""
