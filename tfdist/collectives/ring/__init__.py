"""Ring all-reduce, reduce-scatter, all-gather, broadcast and others over plain TCP.

    connections   sockets to both neighbours, authenticated by a secret that the workers share
    watch         a thread that detects the loss of a neighbour and reports it to the others
    stream        bytes to the next worker and from the previous one at the same time
    calls         one collective at a time; all workers must make the same calls
    chunks        the pieces in which arrays travel
    rooted        gather and scatter
    ring          `Ring`: the collectives, on NumPy arrays
    buffers       memory that is reused once TensorFlow has released it
    transport     `RingTransport`: the same collectives for tensors, in a step
    wiring        makes the ring of a `tf.distribute` strategy

All but the last two work without TensorFlow.
"""
