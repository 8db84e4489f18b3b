"""A ring of workers over plain TCP: sums, gathers and broadcasts of arrays.

    connections   sockets to both neighbours, each proven by a secret that the workers share
    watch         a thread that sees the end of a neighbour, and tells the others who was lost
    stream        bytes to the next worker and from the previous one at the same time
    calls         one collective at a time; all workers must make the same
    ring          `Ring`: the collectives, on NumPy arrays
    buffers       memory that is used again once TensorFlow has let go of it
    transport     `RingTransport`: the same for tensors, in a step
    wiring        makes the ring of a `tf.distribute` strategy

All but the last two do without TensorFlow.
"""
