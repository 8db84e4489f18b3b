"""`tfdist check`: show the cluster, this task, and the choice of `auto`."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, seconds
from tfdist.cluster import Cluster, Task
from tfdist.errors import EXIT_DONE
from tfdist.runtime import sigterm
from tfdist.strategy.kinds import choose


def main(argv: list[str]) -> int:
    """Prints the cluster that the environment describes.

    Raises:
        ConfigError: the environment describes none.
        PeerError: with `--wait`, a peer did not come.
    """
    parser = Parser("tfdist check", "Show the cluster and this task.")
    parser.add_argument(
        "--wait", type=seconds, metavar="S", help="also meet all other tasks, within S seconds"
    )
    args = parser.parse_args(argv)
    cluster = Cluster.from_environment()
    for line in describe(cluster):
        print(line, flush=True)
    if args.wait is not None and not cluster.is_local:
        from tfdist.rendezvous.meeting import rendezvous

        sigterm.end_process_one()
        # A job of its own: it must not take the place of a task that is about to train.
        rendezvous(cluster, timeout=args.wait, job="tfdist check")
        print(f"all {len(cluster.tasks)} tasks met")
    return EXIT_DONE


def describe(cluster: Cluster) -> list[str]:
    """Returns the cluster as lines for people to read."""
    tasks = list(cluster.tasks)
    if cluster.task not in tasks:  # TFJob leaves evaluators out of the cluster.
        tasks.append(cluster.task)
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
