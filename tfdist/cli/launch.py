"""`tfdist launch`: run a cluster of local processes, each with its TF_CONFIG."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfdist.cli import launch_hosts
from tfdist.cli.arguments import Parser, count, cut_command, seconds
from tfdist.cluster.spec import ROLES
from tfdist.errors import ConfigError
from tfdist.launcher.job import Job
from tfdist.launcher.local import STALL_SECONDS, LaunchOptions, launch

_FLAGS = {"chief": "--chief", "worker": "--workers", "ps": "--ps", "evaluator": "--evaluator"}


def main(argv: list[str]) -> int:
    """Runs the job and returns the exit code of the cause, or 0.

    Raises:
        ConfigError: the flags or the file do not describe a job. Nothing was started.
        PeerError: another machine of the job did not come.
    """
    before, command = cut_command(argv)
    args = _parser().parse_args(before)
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
        return Job.from_file(args.spec, command)
    if not given:
        raise ConfigError(
            "launch: no tasks are given; give --workers N, --spec FILE or --hosts A,B"
        )
    return Job.from_counts({role: n or 0 for role, n in counts.items()}, command)


def _parser() -> Parser:
    parser = Parser("tfdist launch", "Run a cluster of local processes: flags, then -- COMMAND.")
    for role in ROLES:
        parser.add_argument(
            _FLAGS[role], dest=role, type=count, metavar="N", help=f"number of {role} tasks"
        )
    parser.add_argument(
        "--spec", metavar="FILE", help='instead of counts: {"cluster": {...}}, a TFJob or a JobSet'
    )
    launch_hosts.add_flags(parser)
    parser.add_argument(
        "--max-restarts",
        type=count,
        default=0,
        metavar="K",
        help="restarts allowed of tasks that end with 128 or more, or by a signal (0)",
    )
    parser.add_argument(
        "--restart-delay",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds before the first restart, doubled at each further one, up to 30 (1)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds a task has to end before it is killed (10)",
    )
    parser.add_argument(
        "--stall-timeout",
        type=seconds,
        default=STALL_SECONDS,
        metavar="S",
        help="seconds without a step after which a task counts as lost, and 10 minutes more while "
        f"compiling, building or saving; 0 for never ({STALL_SECONDS:.0f})",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="print step times at the end even for a single task; SIGUSR2 prints them at any time",
    )
    parser.add_argument("--log-dir", type=Path, metavar="D", help="also write one file per task")
    parser.add_argument(
        "--env",
        type=_variable,
        action="append",
        default=[],
        metavar="K=V",
        help="set a variable for every task; may be repeated",
    )
    parser.add_argument(
        "--cpus-per-task",
        default="auto",
        metavar="N",
        help="cores per task: auto, none or a number",
    )
    parser.add_argument(
        "--gpus-per-task", default="auto", metavar="N", help="GPUs per task: auto, none or a number"
    )
    return parser


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE")
    return name, value
