"""`tfdist launch`: run a cluster of local processes, each with its TF_CONFIG."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfdist.cli import launch_hosts
from tfdist.cli.arguments import Parser, count, seconds
from tfdist.cluster.spec import ROLES
from tfdist.errors import ConfigError
from tfdist.launcher.job import Job
from tfdist.launcher.jobset import NO_ROLE
from tfdist.launcher.local import STALL_SECONDS, LaunchOptions, launch
from tfdist.validation import quote

_FLAGS = {"chief": "--chief", "worker": "--workers", "ps": "--ps", "evaluator": "--evaluator"}


def main(argv: list[str]) -> int:
    """Runs the job and returns the exit code of the cause, or 0.

    Raises:
        ConfigError: The flags or the file do not describe a job. Nothing was started.
        PeerError: Another machine of the job did not come.
    """
    args, command = _parser().parse_with_command(argv)
    if command == []:
        raise ConfigError("launch: no command behind '--'; give a program to run")
    options = LaunchOptions(
        max_restarts=args.max_restarts,
        restart_delay=args.restart_delay,
        grace=args.grace,
        stall_timeout=args.stall_timeout,
        report=args.report,
        log_dir=args.log_dir,
        env=dict(args.env),
        cpus_per_task=args.cpus_per_task,
        gpus_per_task=args.gpus_per_task,
    )
    if launch_hosts.wanted(args):
        counts = {role: getattr(args, role) or 0 for role in ROLES}
        return launch_hosts.run(args, counts, command or [], options)
    return launch(_job(args, command or []), options)


def _job(args: argparse.Namespace, command: list[str]) -> Job:
    """Returns the job of this machine alone."""
    counts = {role: getattr(args, role) for role in ROLES}
    given = [_FLAGS[role] for role in ROLES if counts[role] is not None]
    if args.spec is not None:
        if given:
            raise ConfigError(f"launch: {given[0]} and --spec exclude each other; keep one of them")
        return Job.from_file(args.spec, command, dict(args.role))
    if args.role:
        raise ConfigError("launch: --role is given; it needs --spec, a JobSet or a TrainJob")
    if not given:
        raise ConfigError(
            "launch: no tasks are given; give --workers N, --spec FILE or --hosts A,B"
        )
    return Job.from_counts({role: n or 0 for role, n in counts.items()}, command)


def _parser() -> Parser:
    parser = Parser(
        "tfdist launch",
        "Run a cluster of local processes, each of them the command with its own TF_CONFIG.",
        examples=(
            "tfdist launch --workers 2 python mine.py",
            "tfdist launch --chief 1 --ps 1 --workers 2 --max-restarts 3 tfdist train --epochs 3",
            "tfdist launch --spec cluster_specs/two_workers.json -- tfdist train",
        ),
        usage="tfdist launch [FLAGS] [--] COMMAND",
    )
    add = parser.add_argument_group("tasks").add_argument
    for role in ROLES:
        add(_FLAGS[role], dest=role, type=count, metavar="N", help=f"number of {role} tasks")
    help = 'instead of counts: {"cluster": {...}}, a TFJob, JobSet or TrainJob'
    add("--spec", metavar="FILE", help=help)
    help = "role of a job in that file whose name is none, or none to leave it out; may be repeated"
    add("--role", type=_role, action="append", default=[], metavar="NAME=ROLE", help=help)
    launch_hosts.add_flags(parser.add_argument_group("several machines"))
    add = parser.add_argument_group("what each task is given").add_argument
    help = "set a variable for every task; may be repeated"
    add("--env", type=_variable, action="append", default=[], metavar="K=V", help=help)
    help = "cores per task: auto, none or a number (auto)"
    add("--cpus-per-task", default="auto", metavar="N", help=help)
    help = "GPUs per task: auto, none or a number (auto)"
    add("--gpus-per-task", default="auto", metavar="N", help=help)
    add = parser.add_argument_group("restarts and the end").add_argument
    help = "restarts allowed of tasks that end with 128 or more, or by a signal (0)"
    add("--max-restarts", type=count, default=0, metavar="K", help=help)
    help = "seconds before the first restart, doubled at each further one, up to 30 (1)"
    add("--restart-delay", type=seconds, default=1.0, metavar="S", help=help)
    help = "seconds a task has to end before it is killed (10)"
    add("--grace", type=seconds, default=10.0, metavar="S", help=help)
    help = (
        "seconds without a step after which a task counts as lost, and 10 minutes more while "
        f"compiling, building or saving; 0 for never ({STALL_SECONDS:.0f})"
    )
    add("--stall-timeout", type=seconds, default=STALL_SECONDS, metavar="S", help=help)
    add = parser.add_argument_group("output").add_argument
    help = "print step times at the end even for a single task; SIGUSR2 prints them at any time"
    add("--report", action="store_true", help=help)
    add("--log-dir", type=Path, metavar="D", help="also write one file per task")
    return parser


def _role(text: str) -> tuple[str, str]:
    name, _, role = text.partition("=")
    if not name or role not in (*ROLES, NO_ROLE):
        raise argparse.ArgumentTypeError(
            f"{quote(text)} is not like NAME=ROLE; roles are {', '.join(ROLES)}, and {NO_ROLE}"
        )
    return name, role


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE")
    return name, value
