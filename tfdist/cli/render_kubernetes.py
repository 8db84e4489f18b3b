"""`tfdist render tfjob|jobset|trainjob`: write a job's manifest for Kubernetes to stdout."""

from __future__ import annotations

import posixpath
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdist.cli.arguments import Parser, count
from tfdist.cli.output import made_by
from tfdist.errors import EXIT_DONE
from tfdist.render.commented import commented
from tfdist.render.kubernetes import documents
from tfdist.render.settings import GANG_SCHEDULERS, Settings
from tfdist.render.variables import left_alone
from tfdist.render.workload import Workload
from tfdist.strategy import kinds
from tfdist.validation import quote, reject


@dataclass(frozen=True)
class _Flag:
    """A flag for what a values file may hold too.

    Attributes:
        group: Where help lists it.
        key: Its name there.
        metavar: What to give.
        help: What it does.
        read: What turns the text into what a values file holds.
        gather: What turns several into one, where it may be repeated.
    """

    group: str
    key: str
    metavar: str
    help: str
    read: Callable[[str], Any] = str
    gather: Callable[[list[Any]], Any] | None = None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{quote(text)} is not like NAME=VALUE")
    return name, value


def _source(text: str) -> dict[str, Any]:
    kind, _, name = text.partition("/")
    if kind not in _SOURCES:
        raise ArgumentTypeError(f"{quote(text)} is not like secret/NAME or configmap/NAME")
    return {_SOURCES[kind]: {"name": name}}


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    found = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key}
    found.setdefault("operator", "Exists")
    return {**found, "effect": effect} if effect else found


def _group(text: str) -> dict[str, Any]:
    # Files that have the group already are not visited at each start.
    return {"fsGroup": count(text), "fsGroupChangePolicy": "OnRootMismatch"}


# Of a TrainJob that has none.
_RUNTIME_COMMAND = ["tfdist", "train"]
_JOB, _TASKS, _PODS, _NODES = "the job", "its tasks", "their pods", "their nodes"
_SOURCES = {"secret": "secretRef", "configmap": "configMapRef"}
_FLAGS = {
    "label": _Flag(_JOB, "labels", "K=V", "label of the job and its pods", _pair, dict),
    "queue": _Flag(_JOB, "queue", "NAME", "Kueue's queue that admits the job"),
    "gang": _Flag(
        _JOB, "gang", "SCHEDULER", f"start all pods or none: {', '.join(GANG_SCHEDULERS)}"
    ),
    "deadline": _Flag(
        _JOB, "activeDeadlineSeconds", "S", "seconds after which the job fails", count
    ),
    "ttl": _Flag(
        _JOB, "ttlSecondsAfterFinished", "S", "seconds after which an ended job is deleted", count
    ),
    "runtime": _Flag(
        _JOB, "runtime", "NAME", "ClusterTrainingRuntime of a trainjob (its own runtime)"
    ),
    "env": _Flag(_PODS, "env", "K=V", "variable of every task", _pair, dict),
    "env-from": _Flag(
        _PODS,
        "envFrom",
        "secret/NAME",
        "Secret or configmap/NAME whose keys are variables",
        _source,
        list,
    ),
    "volume": _Flag(
        _PODS,
        "volumes",
        "CLAIM:/PATH",
        "claim, secret/NAME or configmap/NAME to mount; ':ro' at the end to read only",
        str,
        list,
    ),
    "fs-group": _Flag(
        _PODS, "podSecurityContext", "GID", "group that may write to volumes", _group
    ),
    "gpu-resource": _Flag(_NODES, "gpuResource", "NAME", "resource of a GPU (nvidia.com/gpu)"),
    "shared-memory": _Flag(
        _PODS, "sharedMemory", "SIZE", "size of /dev/shm (64M; 1Gi with several GPUs)"
    ),
    "node-selector": _Flag(_NODES, "nodeSelector", "K=V", "label of nodes to run on", _pair, dict),
    "toleration": _Flag(
        _NODES, "tolerations", "KEY[=VALUE][:EFFECT]", "taint of nodes to run on", _toleration, list
    ),
    "priority-class": _Flag(_NODES, "priorityClassName", "NAME", "priority class of the pods"),
    "service-account": _Flag(_PODS, "serviceAccountName", "NAME", "service account of the pods"),
    "pull-secret": _Flag(
        _PODS, "imagePullSecrets", "NAME", "Secret with which the image is pulled", str, list
    ),
}


def main(argv: list[str]) -> int:
    """Writes the documents that the arguments describe.

    Args:
        argv: The kind, its flags, and the command.

    Raises:
        ConfigError: An argument is malformed or missing, or they contradict each other.
    """
    kind = argv[0]
    args, command = _parser(kind).parse_with_command(argv[1:])
    if args.image is None:
        reject("render(--image)", f"missing; a {kind} runs in a container")
    if kind == "runtime":
        command = command or _RUNTIME_COMMAND
        args.workers = 1 if args.workers is None else args.workers
    if args.workers is None:
        reject("render(--workers)", "missing; give the number of worker tasks")
    workload = Workload(
        name=args.name,
        image=args.image,
        command=command or [],
        workers=args.workers,
        ps=args.ps,
        namespace=args.namespace,
        gpus_per_worker=args.gpus_per_worker,
        cpus=args.cpus,
        memory=args.memory,
        secret=args.secret,
        expand=args.expand,
    )
    _check_strategy(workload)
    settings = _settings(args)
    made = documents(kind, workload, settings)
    if kind == "tfjob" and settings.queue is not None:
        print(
            f"tfdist: render(--queue): from Kueue 0.19 on, a TFJob starts without {settings.queue} "
            "unless Kueue's configuration has kubeflow.org/tfjob in integrations.frameworks; have "
            "that added, or render a jobset",
            file=sys.stderr,
        )
    if note := left_alone(workload.command, (), workload.expand):
        print(f"tfdist: {note}", file=sys.stderr)
    print(f"{made_by(['render', *argv])}\n{commented(made)}", end="")
    return EXIT_DONE


def _settings(args: Namespace) -> Settings:
    """Returns the settings of the values file, the flags and the patches."""
    found = Settings.from_file(args.values) if args.values is not None else Settings()
    given: dict[str, Any] = {}
    for name, flag in _FLAGS.items():
        value = getattr(args, name.replace("-", "_"))
        given[flag.key] = flag.gather(value) if flag.gather and value is not None else value
    names = {flag.key: name for name, flag in _FLAGS.items()}
    found = found.overridden(Settings.parse(given, lambda key: f"render(--{names[key]})"))
    for path in args.patch:
        found = found.with_patch(path)
    return found


def _check_strategy(workload: Workload) -> None:
    """Rejects a strategy given to `tfdist train` that does not fit the job's tasks."""
    if not {"tfdist", "train"} <= {posixpath.basename(word) for word in workload.command}:
        return  # A user's own program may give the word another meaning.
    words = [part for word in workload.command for part in word.split("=", 1)]
    after = [name for flag, name in zip(words, words[1:], strict=False) if flag == "--strategy"]
    strategy = kinds.BY_NAME.get(after[-1]) if after else None
    if strategy is None:
        return
    if not strategy.is_synchronous and not workload.ps:
        reject("render(--ps)", f"0 is given; {strategy.name} needs 1 or more")
    if strategy.is_synchronous and workload.ps:
        reject("render(--ps)", f"{workload.ps} is given; {strategy.name} has none")
    if not strategy.needs_cluster and workload.workers > 1:
        reject(
            "render(--workers)",
            f"{workload.workers} is given; {strategy.name} runs in 1 process, "
            "multi_worker_mirrored in several",
        )


def _parser(kind: str) -> Parser:
    given = "--name digits --workers 2 --image tfdist:0.1.0"
    parser = Parser(
        f"tfdist render {kind}",
        f"Write a {kind} for Kubernetes, whose tasks all run the command.",
        examples=(f"tfdist render {kind} {given} -- tfdist train --output-dir /runs/digits",),
        usage=f"tfdist render {kind} [FLAGS] [--] COMMAND",
    )
    groups = {name: parser.add_argument_group(name) for name in (_JOB, _TASKS, _PODS, _NODES)}
    add = groups[_JOB].add_argument
    add("--name", required=True, help="name of the job")
    add("--namespace", metavar="NAME", help="namespace (that of kubectl)")
    add = groups[_TASKS].add_argument
    add("--workers", type=count, metavar="N", help="worker tasks (1 in a runtime)")
    help = "parameter servers; adds a chief (0)"
    add("--ps", type=count, default=0, metavar="N", help=help)
    help = "GPUs of each worker (0)"
    add("--gpus-per-worker", type=count, default=0, metavar="N", help=help)
    add("--cpus", default="4", metavar="N", help="CPUs of each task (4)")
    add("--memory", default="8Gi", metavar="SIZE", help="memory of each task (8Gi)")
    add = groups[_PODS].add_argument
    add("--image", help="container image with tfdist in it")
    help = "Secret whose key 'secret' the tasks share (a new one, in the output)"
    add("--secret", metavar="NAME", help=help)
    help = "a pod's variable to fill in where the command has '$NAME', repeatable"
    add("--expand", action="append", default=[], metavar="NAME", help=help)
    for name, flag in _FLAGS.items():
        groups[flag.group].add_argument(
            f"--{name}",
            type=flag.read,
            action="append" if flag.gather else "store",
            metavar=flag.metavar,
            help=flag.help + (", repeatable" if flag.gather else ""),
        )
    add = parser.add_argument_group("files with these and more").add_argument
    add("--values", metavar="FILE", help="YAML with these and more; flags count before it")
    help = "YAML with metadata and spec that are merged into every pod by name, repeatable"
    add("--patch", metavar="FILE", action="append", default=[], help=help)
    return parser
