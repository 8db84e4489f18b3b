"""Reads the cluster from the variables that Slurm's `srun` gives each task.

Every task of the step becomes a worker, unless TFDIST_ROLES assigns other
roles in the order of the ranks, as in `chief:1,ps:1,worker:2`. Ports are those
that `srun --resv-ports` reserved, or else derived from the job id, so that
every task computes the same ones; TFDIST_PORT_BASE sets the first one by hand.
TFDIST_HOST_SUFFIX is added to each host's name, for a network on which the hosts
have other names, such as node1-ib0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tfdist.cluster.address import MOST_PORTS, first_port, join_address
from tfdist.cluster.hostlist import expand_hostlist
from tfdist.cluster.spec import Jobs, check_jobs, check_role
from tfdist.validation import plural, quote, reject

HOST_SUFFIX = "TFDIST_HOST_SUFFIX"

_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", re.ASCII)
_MOST_TASKS = 100_000


def is_slurm_step(environ: Mapping[str, str]) -> bool:
    """Returns whether this process is one of several tasks that `srun` started.

    A batch script also has a SLURM_PROCID, but runs once: it is not a step.
    """
    if "SLURM_PROCID" not in environ:
        return False
    in_step = any(name in environ for name in ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"))
    if not in_step and environ.get("ENVIRONMENT") == "BATCH":
        return False
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1"
    return tasks != "1"


def parse_slurm(environ: Mapping[str, str]) -> tuple[Jobs, str, int]:
    """Returns the jobs, and the role and index of this task of the step.

    Raises:
        ConfigError: A variable is missing, malformed, or contradicts another.
    """
    hosts, per_node, places, rank = _layout(environ)
    ports = _ports(environ, max(per_node))
    names = [_on_network(host, environ) for host in hosts]
    addresses = [join_address(names[node], ports[local]) for node, local in places]
    jobs, role, index = assign_roles(environ, addresses, rank)
    return check_jobs(jobs, "SLURM"), role, index


def neighbours(environ: Mapping[str, str]) -> tuple[int, int | None, int]:
    """Counts the tasks of the step on this node.

    Returns:
        The number of them that compute gradients, this task's place among those (None if it does
        not), and the number of tasks.

    Raises:
        ConfigError: A variable is missing, malformed, or at odds with another.
    """
    _, per_node, places, rank = _layout(environ)
    names = [str(number) for number in range(len(places))]
    jobs, _, _ = assign_roles(environ, names, rank)
    computing = {*jobs.get("worker", ()), *(() if "ps" in jobs else jobs.get("chief", ()))}
    node = places[rank][0]
    here = [n for n, place in enumerate(places) if place[0] == node and str(n) in computing]
    return len(here), here.index(rank) if rank in here else None, per_node[node]


def _layout(
    environ: Mapping[str, str],
) -> tuple[list[str], list[int], list[tuple[int, int]], int]:
    """Returns hosts, tasks per host, node and number on it of each rank, and this task's rank."""
    name = _first(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    hosts = expand_hostlist(environ[name], name)
    count_name = _first(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    count = _integer(environ, count_name)
    if not 1 <= count <= _MOST_TASKS:
        reject(count_name, f"{count} is out of range; 1 to {_MOST_TASKS}")
    per_node = _tasks_per_node(environ, len(hosts), count)
    hosts, per_node = _by_group(environ, hosts, per_node)
    places = _distribute(environ, per_node)
    rank = _integer(environ, "SLURM_PROCID")
    if rank >= count:
        reject("SLURM_PROCID", f"{rank} is out of range; {count_name} is {count}")
    node = _integer(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else places[rank][0]
    if node != places[rank][0]:
        problem = f"rank {rank} is on node {node}, not {places[rank][0]} as {name} has it"
        reject("SLURM_NODEID", f"{problem}; use srun --distribution=block")
    return hosts, per_node, places, rank


def assign_roles(
    environ: Mapping[str, str], addresses: list[str], rank: int
) -> tuple[Jobs, str, int]:
    """Assigns the roles of TFDIST_ROLES to the ranks, in order.

    Returns:
        The jobs, and the role and index of `rank`.

    Raises:
        ConfigError: TFDIST_ROLES is malformed or is not for this many tasks.
    """
    text = environ.get("TFDIST_ROLES") or f"worker:{len(addresses)}"
    roles: list[str] = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        role = check_role(name, "TFDIST_ROLES")
        if role in roles:
            reject("TFDIST_ROLES", f"{quote(text)} names {role} twice")
        if not (count.isascii() and count.isdigit() and 0 < len(count) < 7 and int(count)):
            reject("TFDIST_ROLES", f"{quote(text)} is not like 'chief:1,ps:1,worker:2'")
        roles += [role] * min(int(count), len(addresses) + 1)
    if len(roles) != len(addresses):
        reject("TFDIST_ROLES", f"{quote(text)} is not for {plural(len(addresses), 'task')}")
    jobs: dict[str, tuple[str, ...]] = {}
    for role, address in zip(roles, addresses, strict=True):
        jobs[role] = (*jobs.get(role, ()), address)
    return jobs, roles[rank], roles[:rank].count(roles[rank])


def _first(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environ.get(name):
            return name
    reject(names[0], "is not set; start the tasks with srun")


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        reject(name, f"{quote(text)} is not an integer of 0 or more")
    return int(text)


def _tasks_per_node(environ: Mapping[str, str], nodes: int, count: int) -> list[int]:
    """Reads `2(x3),1` as [2, 2, 2, 1]."""
    name = _first(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    text = environ[name]
    result: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if not match or int(match.group(2) or 1) > nodes - len(result):
            reject(name, f"{quote(text)} is not like '2(x3),1' for {plural(nodes, 'node')}")
        result += [int(match.group(1))] * int(match.group(2) or 1)
    if len(result) != nodes or sum(result) != count:
        tasks = f"{plural(count, 'task')} on {plural(nodes, 'node')}"
        reject(name, f"{quote(text)} is not for {tasks}, as the other variables have it")
    return result


def _by_group(
    environ: Mapping[str, str], hosts: list[str], per_node: list[int]
) -> tuple[list[str], list[int]]:
    """Puts the nodes of a heterogeneous job's step in the order of the ranks: group by group.

    The step's own list is sorted by name there, and so are its tasks per node.
    """
    groups = _number(environ, "SLURM_HET_SIZE")
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{group}" for group in range(groups)]
    lists = [expand_hostlist(environ[name], name) for name in names if environ.get(name)]
    ordered = [host for group in lists for host in group]
    # A step of one group has that group's list.
    if sorted(ordered) != sorted(hosts):
        return hosts, per_node
    tasks = dict(zip(hosts, per_node, strict=True))
    return ordered, [tasks[host] for host in ordered]


def _on_network(host: str, environ: Mapping[str, str]) -> str:
    name, dot, domain = host.partition(".")
    return f"{name}{environ.get(HOST_SUFFIX, '')}{dot}{domain}"


def _distribute(environ: Mapping[str, str], per_node: list[int]) -> list[tuple[int, int]]:
    """Returns the node and the number on that node of each rank."""
    how = environ.get("SLURM_DISTRIBUTION", "block")
    how = re.split("[:,=]", how)[0]
    if how == "cyclic":
        rounds = range(max(per_node))
        return [(n, i) for i in rounds for n, count in enumerate(per_node) if i < count]
    if how in ("plane", "arbitrary"):
        reject("SLURM_DISTRIBUTION", f"{quote(how)} is not supported; use block or cyclic")
    return [(n, i) for n, count in enumerate(per_node) for i in range(count)]


def _ports(environ: Mapping[str, str], per_node: int) -> Sequence[int]:
    """Returns the port of each task of a node."""
    if environ.get("TFDIST_PORT_BASE"):
        base = _integer(environ, "TFDIST_PORT_BASE")
        if not 1024 <= base <= 65536 - per_node:
            reject("TFDIST_PORT_BASE", f"{base} is out of range; 1024 to {65536 - per_node}")
    elif environ.get("SLURM_STEP_RESV_PORTS"):
        return _reserved_ports(environ["SLURM_STEP_RESV_PORTS"], per_node)
    else:
        base = _derived_port(environ, per_node)
    return range(base, base + per_node)


def _reserved_ports(text: str, per_node: int) -> list[int]:
    name = "SLURM_STEP_RESV_PORTS"
    ports: list[int] = []
    for part in text.split(","):
        match = _PORTS.fullmatch(part.strip())
        found = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not found or found[-1] > 65535:
            reject(name, f"{quote(text)} is not like '31000-31003'")
        ports += found
    if len(ports) < per_node:
        have = f"{quote(text)} is {plural(len(ports), 'port')} for {per_node} tasks a node"
        reject(name, f"{have}; use srun --resv-ports={per_node}")
    return ports


def _derived_port(environ: Mapping[str, str], per_node: int) -> int:
    job = _integer(environ, _first(environ, "SLURM_JOB_ID", "SLURM_JOBID"))
    step, restarts = (_number(environ, f"SLURM_{name}") for name in ("STEP_ID", "RESTART_COUNT"))
    # Neighbouring jobs, steps of one job, and what is left of it before it was put back in the
    # queue, may share a node: keep them apart.
    if per_node > MOST_PORTS:
        reject(
            "SLURM_STEP_TASKS_PER_NODE",
            f"{per_node} tasks are on a node; at most {MOST_PORTS} can be",
        )
    return first_port(job + 101 * step + 211 * restarts, per_node)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
