"""Runs, as a task, the function that `tfdist.launch` sent: `python -m ... FOLDER`."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import tfdist
from tfdist.cluster import Cluster
from tfdist.launcher.parcels import Parcels, opened
from tfdist.runtime import excepthook
from tfdist.runtime.startup import start_tensorflow


def main(folder: str) -> None:
    """Calls the function, or serves the chief that does; sends the chief's result or the error.

    Args:
        folder: where the call is.

    Raises:
        Exception: what the function raises; it ends the task as it would end a script.
    """
    excepthook.install()
    parcels = Parcels(Path(folder))
    cluster = Cluster.from_environment()
    task = str(cluster.task)
    parcels.forget_failure(task)
    try:
        _work(parcels, cluster)
    except Exception as error:
        error.__traceback__ = _of_the_user(error.__traceback__)
        parcels.send_failure(task, error)
        raise


def _work(parcels: Parcels, cluster: Cluster) -> None:
    head = parcels.head()
    sys.path[:] = head["path"]
    if cluster.has_ps and tfdist.serve(cluster):
        return
    if head["tensorflow"]:
        start_tensorflow()
    function, args, kwargs = opened(head["call"])
    result = function(*args, **kwargs)
    if cluster.is_chief:
        parcels.send_result(result)


def _of_the_user(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the traceback without what is in this module at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(sys.argv[1])
