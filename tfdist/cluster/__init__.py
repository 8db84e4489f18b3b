"""Reads the cluster from TF_CONFIG, Slurm, Kubernetes or a cluster spec.

`tfdist.rendezvous` meets its other tasks.
"""

from __future__ import annotations

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.hostlist import expand_hostlist

__all__ = ["Cluster", "Task", "expand_hostlist"]
