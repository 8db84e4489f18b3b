"""Makes all workers of a job exit together, with a barrier.

TensorFlow treats a worker that has ended as lost and raises an error on the others ("The tasks
have crashed"), which may still be saving or evaluating the model.
"""

from __future__ import annotations

import sys

import tensorflow as tf

from tfdist.collectives.peer_errors import peers_error
from tfdist.collectives.process_group import ProcessGroup
from tfdist.runtime import excepthook, shutdown

# Seconds that a finished worker waits for the others.
_PATIENCE = 3600.0

_registered = False


def add_exit_barrier(group: ProcessGroup) -> None:
    """Makes this process, when it ends without an error, wait for the other workers to end.

    If one of them is lost meanwhile, it exits with code 138, so that all are started again.

    Args:
        group: The processes that train.
    """
    global _registered
    if group.layout.workers == 1 or _registered:
        return
    _registered = True
    group.prepare_barrier()
    shutdown.at_exit(
        "the other workers to end", lambda: _wait_for_others(group), patience=_PATIENCE
    )


def _wait_for_others(group: ProcessGroup) -> None:
    # A worker that fails must not wait: the others see by its end that it failed.
    if not shutdown.ends_well():
        return
    try:
        group.barrier()
    except tf.errors.OpError as error:
        found = peers_error(error, group.task)
        if found is None:
            raise
        print(f"tfdist: {found}", file=sys.stderr)
        # TensorFlow's shutdown would wait for the lost one.
        excepthook.end_without_shutdown(found)
