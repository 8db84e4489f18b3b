"""The cluster: reading it from its many sources, and meeting its other tasks.

The meeting is `tfdist.cluster.rendezvous.rendezvous`, in a module of its own
because it needs asyncio, which reading a cluster does not.
"""

from __future__ import annotations

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.hostlist import expand_hostlist

__all__ = ["Cluster", "Task", "expand_hostlist"]
