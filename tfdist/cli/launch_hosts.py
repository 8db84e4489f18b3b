"""The flags of `tfdist launch` for jobs on several machines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tfdist.cli.arguments import count
from tfdist.cluster.address import check_address
from tfdist.errors import ConfigError
from tfdist.launcher.hosts.member import launch_member
from tfdist.launcher.hosts.ssh import launch_on_hosts, read_hosts
from tfdist.launcher.local import LaunchOptions
from tfdist.validation import reject

_ONE_OF_SEVERAL = ("--host-rank", "--num-hosts", "--rendezvous")


def add_flags(group: argparse._ArgumentGroup) -> None:
    """Adds the flags that say on which machines the tasks are to their group."""
    group.add_argument(
        "--hosts",
        metavar="A,B:2",
        help="start on these machines by ssh: a worker on each, or as many as are behind the colon",
    )
    group.add_argument(
        "--ssh", default="ssh", metavar="COMMAND", help="with --hosts: how to log in (ssh)"
    )
    group.add_argument(
        "--host-rank",
        type=count,
        metavar="I",
        help="start this machine's part of a job on several: its number, from 0",
    )
    group.add_argument(
        "--num-hosts", type=count, metavar="N", help="with --host-rank: the number of machines"
    )
    group.add_argument(
        "--rendezvous",
        metavar="HOST:PORT",
        help="with --host-rank: where machine 0 listens for the others; PORT is free there",
    )
    group.add_argument("--managed", action="store_true", help=argparse.SUPPRESS)


def wanted(args: argparse.Namespace) -> bool:
    """Returns whether the flags ask for several machines.

    Raises:
        ConfigError: They do not fit together.
    """
    given = [flag for flag in _ONE_OF_SEVERAL if _value(args, flag) is not None]
    others = ["--spec"] if args.spec is not None else []
    if args.hosts is not None:
        others = given + (["--workers"] if args.worker is not None else []) + others
    if others and (given or args.hosts is not None):
        one = "--hosts" if args.hosts is not None else given[0]
        raise ConfigError(f"launch: {one} and {others[0]} exclude each other; keep one of them")
    if given and len(given) < len(_ONE_OF_SEVERAL):
        missing = next(flag for flag in _ONE_OF_SEVERAL if flag not in given)
        raise ConfigError(f"launch: {given[0]} needs {missing}; give {', '.join(_ONE_OF_SEVERAL)}")
    return bool(given) or args.hosts is not None


def run(
    args: argparse.Namespace,
    counts: Mapping[str, int],
    command: Sequence[str],
    options: LaunchOptions,
) -> int:
    """Runs the job, or this machine's part of it, and returns the exit code.

    Args:
        args: The flags.
        counts: The tasks of each role that they give.
        command: What to run.
        options: The options of the run.

    Raises:
        ConfigError: The flags do not describe a job, or a machine cannot be used.
        PeerError: A machine did not come.
    """
    if not command:
        raise ConfigError("launch: no command given; add '-- COMMAND'")
    if args.hosts is not None:
        hosts = read_hosts(args.hosts)
        return launch_on_hosts(hosts, counts, _flags(args), command, options, args.ssh)
    if not sum(counts.values()):
        raise ConfigError("launch: no tasks are given for this host; give --workers N")
    if args.num_hosts < 1 or args.host_rank >= args.num_hosts:
        last = f"0 to {args.num_hosts - 1}" if args.num_hosts else "none, as --num-hosts is 0"
        reject("--host-rank", f"{args.host_rank} is given; allowed: {last}")
    address = check_address(args.rendezvous, "--rendezvous")
    return launch_member(
        args.host_rank, args.num_hosts, address, counts, command, options, managed=args.managed
    )


def _flags(args: argparse.Namespace) -> list[str]:
    """Returns the flags that each machine's launcher is given as well."""
    flags = [f"--grace={args.grace}", f"--stall-timeout={args.stall_timeout}"]
    flags += [f"--cpus-per-task={args.cpus_per_task}", f"--gpus-per-task={args.gpus_per_task}"]
    return [*flags, "--report"] if args.report else flags


def _value(args: argparse.Namespace, flag: str) -> object:
    return getattr(args, flag.removeprefix("--").replace("-", "_"))
