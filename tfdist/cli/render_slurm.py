"""`tfdist render slurm`: write a job's batch script for Slurm to stdout."""

from __future__ import annotations

import argparse
import sys

from tfdist.cli.arguments import Parser, count
from tfdist.cli.output import made_by
from tfdist.errors import EXIT_DONE
from tfdist.render.slurm import sbatch
from tfdist.render.slurm_job import CONTAINERS, SlurmJob
from tfdist.render.variables import left_alone
from tfdist.render.workload import GRACE_SECONDS
from tfdist.validation import quote


def main(argv: list[str]) -> int:
    """Writes the batch script that the arguments describe.

    Raises:
        ConfigError: An argument is malformed or missing, or contradicts another.
    """
    args, command = _parser().parse_with_command(argv)
    job = SlurmJob(command=command or [], **vars(args))
    script = sbatch(job)
    if job.time is None and not any(option.startswith(("--time", "-t")) for option in job.options):
        print(
            "tfdist: render(--time): not given; the partition's limit holds, and without one no "
            f"signal to save is sent {job.grace} seconds before it; give one, such as 1-00:00:00",
            file=sys.stderr,
        )
    if note := left_alone(job.command, job.paths, job.expand):
        print(f"tfdist: {note}", file=sys.stderr)
    # The first line of a script has to be its interpreter.
    interpreter, _, rest = script.partition("\n")
    print(f"{interpreter}\n{made_by(['render', 'slurm', *argv])}\n{rest}", end="")
    return EXIT_DONE


def _pair(text: str) -> tuple[str, str]:
    source, colon, target = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not like /FROM:/TO")
    return source, target


def _parser() -> Parser:
    parser = Parser(
        "tfdist render slurm",
        "Write a batch script that runs the command in every task.",
        examples=("tfdist render slurm --name digits --workers 2 --time 60 -- tfdist train",),
        usage="tfdist render slurm [FLAGS] [--] COMMAND",
    )
    add = parser.add_argument_group("tasks").add_argument
    add("--name", required=True, help="name of the job")
    add("--workers", type=count, required=True, metavar="N", help="worker tasks")
    add("--ps", type=count, default=0, metavar="N", help="parameter servers; adds a chief")
    add("--evaluator", type=count, default=0, metavar="N", help="evaluators")
    add("--workers-per-node", type=count, metavar="N", help="workers of each node (1)")
    add("--gpus-per-node", type=count, default=0, metavar="N", help="GPUs that each node has")
    add("--gpus-per-worker", type=count, default=0, metavar="N", help="GPUs of each worker")
    add("--cpus", type=count, default=4, metavar="N", help="CPUs of each task (4)")
    add("--memory", default="8G", help="memory of each task (8G)")
    add = parser.add_argument_group("in the queue").add_argument
    add("--time", help="time limit, such as 90 (minutes) or 1-12:00:00")
    help = f"seconds to save in before the time limit ({GRACE_SECONDS})"
    add("--grace", type=count, default=GRACE_SECONDS, metavar="S", help=help)
    add("--partition", help="partition")
    add("--account", help="account")
    add("--qos", help="quality of service")
    help = "one more option of sbatch, such as --sbatch=--exclusive (repeatable)"
    add("--sbatch", dest="options", action="append", default=[], metavar="OPTION", help=help)
    add = parser.add_argument_group("on the nodes").add_argument
    help = "a line of shell before the tasks start, such as 'module load cuda' (repeatable)"
    add("--setup", action="append", default=[], metavar="LINE", help=help)
    help = "run the tasks in a container of --image"
    add("--container", choices=CONTAINERS, help=help)
    add("--image", help="image of the container, with tfdist in it")
    help = "a directory for the container, in addition to the job's own (repeatable)"
    add("--mount", dest="mounts", action="append", default=[], metavar="/FROM:/TO", help=help)
    help = "copy FROM to each node's disk first, unless TO already exists (repeatable)"
    add("--stage", action="append", type=_pair, default=[], metavar="/FROM:/TO", help=help)
    help = "end of the hosts' names on the network to use, such as --host-suffix=-ib0"
    add("--host-suffix", metavar="SUFFIX", help=help)
    help = "a variable to fill in before the tasks start, where '$NAME' stands (repeatable)"
    add("--expand", action="append", default=[], metavar="NAME", help=help)
    add("--log-dir", metavar="DIR", help="a log of each task, such as DIR/worker-0.log")
    return parser
