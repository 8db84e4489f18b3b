"""Ring all-reduce, reduce-scatter, all-gather, broadcast and others over plain TCP.

    connections   sockets to both neighbours, authenticated by a secret that the workers share
    monitor       a thread that detects the loss of a neighbour and reports it to the others
    failure       the reason why a ring is broken, as the workers send and raise it
    checksum      by which a message that was changed on the way is known
    stream        chunks of arrays, to the next worker and from the previous one at the same time
    collective    one collective at a time; all workers must enter the same ones
    rooted        gather and scatter
    ring          `Ring`: the collectives, on NumPy arrays
    memory        memory that the workers of one host have in common
    buffers       memory that is reused once TensorFlow has released it
    background    a thread that sums while the backward pass continues
    transport     `RingTransport`: the same collectives for tensors, in a step
    wiring        makes the ring of a `tf.distribute` strategy

All but the last two work without TensorFlow.
"""
