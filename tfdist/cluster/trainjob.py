"""Reads the cluster from the variables that Kubeflow Trainer sets in the pods of a TrainJob.

It sets no variables for TensorFlow. Those for PyTorch and JAX give the number of pods, the index of
this one, and the address of the first one. The names of the others follow from the first one's, as
in every JobSet: `<job>-node-0-<index>.<job>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.cluster.address import check_address, join_address, split_address
from tfdist.cluster.spec import Jobs, check_index, check_jobs
from tfdist.validation import quote, reject

_FIRST_POD = re.compile(r"([^.]+-)0((?:\..+)?)")
# The number of pods, the number of this one, and the first one's host or address.
_KINDS = {
    "PET": ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"),
    "JAX": ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
}
_PORT = 2222


def is_trainjob(environ: Mapping[str, str]) -> bool:
    """Returns whether this is one of several pods of a TrainJob."""
    return _kind(environ) is not None


def parse_trainjob(environ: Mapping[str, str]) -> tuple[Jobs, str, int]:
    """Returns the jobs, all of them workers, and the role and index of this pod.

    Raises:
        ConfigError: A variable is missing or malformed.
    """
    kind = _kind(environ)
    assert kind is not None
    count_name, rank_name, first_name = _KINDS[kind]
    count = _integer(environ, count_name, "give a fixed number of pods")
    rank = _integer(environ, rank_name, "it is the number of this pod, from 0")
    first = environ.get(first_name, "")
    if not first:
        reject(first_name, "is not set; it is the address of the first pod")
    if kind == "PET":
        port_name = "PET_MASTER_PORT"
        hint = "it is the port that the pods use"
        port = _integer(environ, port_name, hint) if environ.get(port_name) else _PORT
        first = join_address(first, port)
    host, port = split_address(check_address(first, first_name))
    match = _FIRST_POD.fullmatch(host)
    if match is None:
        reject(
            first_name,
            f"{quote(host)} is not like 'job-node-0-0.job', from which the other pods' names "
            "follow; set TFDIST_WORKERS to the addresses of all of them",
        )
    hosts = [f"{match[1]}{index}{match[2]}" for index in range(count)]
    jobs = check_jobs({"worker": [join_address(name, port) for name in hosts]}, kind)
    return jobs, "worker", check_index(rank, "worker", jobs, rank_name, kind)


def _kind(environ: Mapping[str, str]) -> str | None:
    kinds = (kind for kind, names in _KINDS.items() if environ.get(names[0], "1").strip() != "1")
    return next(kinds, None)


def _integer(environ: Mapping[str, str], name: str, hint: str) -> int:
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        reject(name, f"{quote(text)} is not an integer; {hint}")
    return int(text)
