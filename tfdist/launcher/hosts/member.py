"""Runs the tasks of this machine, one of several whose launchers agree on the cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfdist.cluster.spec import check_jobs
from tfdist.errors import EXIT_KILLED, EXIT_PEER_LOST
from tfdist.launcher.group import ATTEMPT_VARIABLE
from tfdist.launcher.hosts.stop_with_stdin import stop_with_stdin
from tfdist.launcher.job import Job
from tfdist.launcher.local import LaunchOptions, Supervisor
from tfdist.launcher.ports import free_ports
from tfdist.rendezvous.hosts import Machine, agree
from tfdist.runtime.timeouts import wait_seconds
from tfdist.validation import plural


def launch_member(
    rank: int,
    hosts: int,
    address: str,
    counts: Mapping[str, int],
    command: Sequence[str],
    options: LaunchOptions,
    *,
    managed: bool,
) -> int:
    """Agrees with the other hosts, runs the tasks of this one, and returns the exit code.

    Args:
        rank: The number of this host, from 0.
        hosts: How many there are.
        address: Where host 0 listens for the others.
        counts: The tasks of each role on this host.
        command: What they run.
        options: Those of the run.
        managed: Whether to stop with standard input. The exit code then also shows where a
            task was lost: 137 if it was here, 138 if the tasks here complain of others.

    Raises:
        ConfigError: The hosts do not fit together, or the tasks cannot be started.
        PeerError: A host did not come.
    """
    if managed:
        stop_with_stdin()
        options = replace(options, attempt=int(os.environ.get(ATTEMPT_VARIABLE, "1")))
    ports = {role: free_ports(count, "") for role, count in counts.items() if count}
    agreed = agree(Machine(rank, hosts, address, ports), wait_seconds())
    jobs = check_jobs(agreed.jobs, "launch: all hosts together")
    here = tuple(
        f"{role}/{agreed.first[role] + i}" for role in ports for i in range(len(ports[role]))
    )
    total = sum(map(len, jobs.values()))
    note = f"host {rank} of {hosts}: {', '.join(here)}, of {plural(total, 'task')}"
    commands = {role: list(command) for role in ports}
    supervisor = Supervisor(Job(jobs, commands, notes=(note,), here=here), options)
    code = supervisor.run()
    cause = supervisor.cause
    if managed and code == EXIT_PEER_LOST and cause is not None and not cause.complains:
        return EXIT_KILLED
    return code
