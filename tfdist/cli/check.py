"""`tfdist check`: show the cluster, this task, and the choice of `auto`."""

from __future__ import annotations

import os
import time
from typing import Any

from tfdist.cli.arguments import Parser, seconds
from tfdist.cli.output import print_json
from tfdist.cluster import Cluster, Task
from tfdist.errors import EXIT_DONE, EXIT_PEER_LOST, ConfigError
from tfdist.runtime import heartbeat, sigterm
from tfdist.runtime.timeouts import patience, stall_seconds
from tfdist.strategy.kinds import check_parameter_servers, choose

# A job's tasks stop together: the others name the one that is stuck before all count as stuck.
_LIMITS = 2


def main(argv: list[str]) -> int:
    """Prints the cluster that the environment describes.

    Raises:
        ConfigError: The environment describes none that can run here, or with `--alive` no
            heartbeat.
        PeerError: With `--wait`, a peer did not come.
    """
    parser = Parser(
        "tfdist check",
        "Show the cluster and this task; refuse what cannot run.",
        examples=("tfdist check", "tfdist launch --workers 2 tfdist check --wait 60"),
    )
    parser.add_argument(
        "--wait", type=seconds, metavar="S", help="also meet all other tasks, within S seconds"
    )
    parser.add_argument(
        "--alive",
        action="store_true",
        help="only report whether the task that writes $TFDIST_HEARTBEAT makes progress, for a "
        f"liveness probe; exit code {EXIT_PEER_LOST} if it has made none for {_LIMITS} times "
        "$TFDIST_STALL (600) seconds",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if args.alive:
        return _alive(args.json)
    # A liveness probe needs none of it.
    from tfdist.rendezvous.meeting import rendezvous
    from tfdist.rendezvous.own_address import check_own_address

    cluster = Cluster.from_environment()
    if cluster.has_ps:
        check_parameter_servers(cluster)
    check_own_address(cluster)
    if not args.json:
        print("\n".join(describe(cluster)), flush=True)
    meets = args.wait is not None and not cluster.is_local
    if meets:
        sigterm.end_process_one()
        # A separate job: it must not take the place of a task that is about to train.
        rendezvous(cluster, timeout=args.wait, job="tfdist check")
    if args.json:
        print_json({**to_dict(cluster), "met": meets})
    elif meets:
        print(f"all {len(cluster.tasks)} tasks met")
    return EXIT_DONE


def _alive(as_json: bool) -> int:
    path = os.environ.get(heartbeat.VARIABLE, "")
    if not path:
        raise ConfigError(f"check: {heartbeat.VARIABLE} is not set; it names the heartbeat's file")
    beat = heartbeat.read(path)
    if beat is None:
        if as_json:
            print_json({"state": "no heartbeat yet"})
        else:
            print("no heartbeat yet")
        return EXIT_DONE
    age = max(0.0, time.time() - beat.time)
    is_stuck = age > patience(beat.phase, _LIMITS * stall_seconds())
    state = "stuck" if is_stuck else "alive"
    if as_json:
        found = {"phase": beat.phase, "epoch": beat.epoch, "step": beat.step, "seconds": age}
        print_json({"state": state, **found})
    else:
        where = f"{beat.phase}, epoch {beat.epoch + 1}, step {beat.step}"
        print(f"{state}: {where}, {age:.0f} s ago")
    return EXIT_PEER_LOST if is_stuck else EXIT_DONE


def to_dict(cluster: Cluster) -> dict[str, Any]:
    """Returns the cluster as an object of JSON."""
    strategy, reason = choose(cluster)
    return {
        "source": cluster.source,
        "tasks": [{"task": str(task), "address": task.address} for task in _tasks(cluster)],
        "this": str(cluster.task),
        "chief": str(cluster.chief),
        "auto": {"strategy": strategy, "reason": reason},
    }


def _tasks(cluster: Cluster) -> list[Task]:
    tasks = list(cluster.tasks)
    if cluster.task not in tasks:  # TFJob leaves evaluators out of the cluster.
        tasks.append(cluster.task)
    return tasks


def describe(cluster: Cluster) -> list[str]:
    """Returns the cluster as lines for people to read."""
    tasks = _tasks(cluster)
    names = max(len(str(task)) for task in tasks)
    addresses = max(len(task.address or "-") for task in tasks)
    noun = "task" if len(tasks) == 1 else "tasks"
    lines = [f"cluster   {len(tasks)} {noun}, from {cluster.source}"]
    for task in tasks:
        row = f"  {task!s:{names}}  {task.address or '-':{addresses}}  {_remarks(cluster, task)}"
        lines.append(row.rstrip())
    lines.append(f"this is   {cluster.task}")
    lines.append(f"chief     {cluster.chief}")
    lines.append(f"auto      {': '.join(choose(cluster))}")
    return lines


def _remarks(cluster: Cluster, task: Task) -> str:
    remarks = []
    if task == cluster.task:
        remarks.append("this task")
    if task == cluster.chief:
        remarks.append("chief")
    return ", ".join(remarks)
