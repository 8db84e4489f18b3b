"""Reads the cluster from the variables that Amazon SageMaker sets on the machines of a job.

    SM_HOSTS=["algo-1", "algo-2"]
    SM_CURRENT_HOST=algo-2

Each machine runs one process, and each becomes a worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tfdist.cluster.address import join_address
from tfdist.cluster.alone import WORKERS
from tfdist.cluster.spec import Jobs, check_jobs
from tfdist.validation import quote, reject

_HOSTS, _HERE = "SM_HOSTS", "SM_CURRENT_HOST"
_PORT = 2222


def is_sagemaker(environ: Mapping[str, str]) -> bool:
    """Returns whether this is one of several machines of a job."""
    return WORKERS not in environ and len(_hosts(environ)) > 1


def parse_sagemaker(environ: Mapping[str, str]) -> tuple[Jobs, str, int]:
    """Returns the jobs, all of them workers, and the role and index of this machine.

    Raises:
        ConfigError: A variable is missing or malformed.
    """
    hosts = _hosts(environ)
    jobs = check_jobs({"worker": [join_address(host, _PORT) for host in hosts]}, _HOSTS)
    here = environ.get(_HERE, "")
    if here not in hosts:
        reject(_HERE, f"{quote(here)} is not in {_HOSTS}, {quote(environ[_HOSTS])}")
    return jobs, "worker", hosts.index(here)


def _hosts(environ: Mapping[str, str]) -> list[str]:
    text = environ.get(_HOSTS, "").strip() or "[]"
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        reject(_HOSTS, f"{quote(text)} is not a list of names in JSON")
    return hosts
