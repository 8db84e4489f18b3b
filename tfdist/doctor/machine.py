"""The checks that one task makes before TensorFlow starts, and the meeting with the others."""

from __future__ import annotations

import platform
import time
from importlib import metadata

from tfdist.cluster import Cluster
from tfdist.doctor.finding import WARNING, Findings
from tfdist.errors import TfdistError
from tfdist.launcher.machine import usable_cores
from tfdist.rendezvous.once import meet
from tfdist.rendezvous.own_address import check_own_address, check_own_port
from tfdist.strategy.kinds import check_parameter_servers, choose
from tfdist.validation import plural

_PACKAGES = ("tfdist", "tensorflow", "keras", "numpy")


def versions() -> str:
    """Returns the versions of Python and of the packages that must be the same in all tasks."""
    found = [f"{name} {metadata.version(name)}" for name in _PACKAGES]
    return ", ".join([f"python {platform.python_version()}", *found])


def examine_machine(findings: Findings, wait: float | None) -> Cluster | None:
    """Checks the configuration and this machine, and meets the other tasks.

    Args:
        findings: Receives the results.
        wait: Seconds to wait for the others; as in training by default.

    Returns:
        The cluster; None where it cannot be examined further.
    """
    try:
        cluster = Cluster.from_environment()
        if cluster.has_ps:
            check_parameter_servers(cluster)
    except TfdistError as error:
        findings.fail("cluster", error)
        return None
    findings.task = str(cluster.task)
    tasks = plural(len(cluster.tasks), "task")
    findings.add("cluster", f"{tasks}, from {cluster.source}; this is {cluster.task}")
    findings.add("strategy", ": ".join(choose(cluster)))
    findings.add("environment", f"{versions()}; {plural(len(usable_cores()), 'core')}")
    if cluster.is_local or cluster.task.address is None:
        return cluster
    # A task with a problem here still joins the meeting, where the others learn of the problem.
    try:
        if check_own_address(cluster):
            findings.add("own address", f"{cluster.task.address} leads to this machine")
        else:
            problem = f"cannot check {cluster.task.address}: its name does not resolve here"
            findings.add("own address", f"{problem}; the other tasks need it", state=WARNING)
    except TfdistError as error:
        findings.fail("own address", error)
    try:
        check_own_port(cluster)
        findings.add("own port", f"{cluster.task.port} is free")
    except TfdistError as error:
        findings.fail("own port", error)
    began = time.monotonic()
    try:
        meet(cluster, wait, job="tfdist doctor")
    except TfdistError as error:
        findings.fail("meeting", error)
        return None
    findings.add("meeting", f"all {tasks} met, after {time.monotonic() - began:.1f} s")
    return cluster
