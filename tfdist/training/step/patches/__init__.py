"""Patches of Keras and TensorFlow that hold while a step runs."""
