"""Describes a job for Slurm: its tasks, the nodes they need, and what surrounds the command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

from tfdist.errors import ConfigError
from tfdist.render.variables import check_expand, filled_in
from tfdist.render.workload import GRACE_SECONDS
from tfdist.validation import plural, quote

CONTAINERS = ("apptainer", "pyxis")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
# A partition may be a list of them.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@-]*")
_SUFFIX = re.compile(r"[A-Za-z0-9.-]+")
_MEMORY = re.compile(r"([0-9]{1,9})([MGT])i?")
_MEGABYTES = {"M": 1, "G": 1024, "T": 1024**2}
# MINUTES, M:S, H:M:S, or DAYS-H, D-H:M, D-H:M:S.
_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,5})-(?P<h>[0-9]{1,5})(?::(?P<m>[0-9]{1,5})(?::(?P<s>[0-9]{1,5}))?)?"
    r"|(?:(?P<hours>[0-9]{1,5})(?=:[0-9]+:):)?(?P<minutes>[0-9]{1,7})(?::(?P<seconds>[0-9]{1,5}))?)"
)
# Another value in each task, and in the script.
_OF_A_TASK = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_GTIDS"),
    *("SLURMD_NODENAME", "HOSTNAME", "CUDA_VISIBLE_DEVICES"),
)
_UNLIMITED = ("UNLIMITED", "INFINITE")


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """The tasks of a job, their nodes and their command.

    Attributes:
        name: The job's name.
        command: The command of each task.
        workers: The number of worker tasks.
        ps: The number of parameter servers; where there are any, there is a chief too.
        evaluator: The number of evaluators.
        workers_per_node: Workers of a node; None for one, or, with other tasks and without GPUs,
            for wherever CPUs are free.
        gpus_per_worker: GPUs of each worker; the other tasks have none.
        gpus_per_node: GPUs that a node has. Its workers share them, where `gpus_per_worker` is 0.
        cpus: CPUs of each task.
        memory: Memory of each task, such as 8G.
        time: The time limit, as Slurm writes it, such as 1-12:00:00; None for the partition's.
        grace: Seconds to save in, before the time limit.
        partition: The partition.
        account: The account.
        qos: The quality of service.
        options: More options of sbatch, such as `--constraint=a100`.
        setup: Lines of shell that run before the tasks start.
        container: apptainer or pyxis, to run the tasks in `image`.
        image: The image of the container.
        mounts: Directories for the container, as `FROM:TO`, in addition to the job's own.
        log_dir: A directory for a log of each task; None for one output of all.
        host_suffix: Ends the hosts' names, where those on a faster network have others.
        stage: What is copied to each node's disk first, as pairs of paths.
        expand: Variables to fill in, once and before the tasks start, where the command, `log_dir`,
            `image`, `mounts` or `stage` have `$NAME`.

    Raises:
        ConfigError: A field is out of range, or contradicts another.
    """

    name: str
    command: Sequence[str]
    workers: int
    ps: int = 0
    evaluator: int = 0
    workers_per_node: int | None = None
    gpus_per_worker: int = 0
    gpus_per_node: int = 0
    cpus: int = 4
    memory: str = "8G"
    time: str | None = None
    grace: int = GRACE_SECONDS
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    options: Sequence[str] = ()
    setup: Sequence[str] = ()
    container: str | None = None
    image: str | None = None
    mounts: Sequence[str] = ()
    log_dir: str | None = None
    host_suffix: str | None = None
    stage: Sequence[tuple[str, str]] = ()
    expand: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            _reject("name", self.name, "a name of letters, digits, '-', '_' and '.', up to 63")
        if not self.command:
            raise ConfigError("render: no command given; add '-- COMMAND'")
        for option in ("workers", "cpus", "grace"):
            if getattr(self, option) < 1:
                _reject(option, getattr(self, option), "a whole number of 1 or more")
        if not _MEMORY.fullmatch(self.memory) or not self.megabytes:
            _reject("memory", self.memory, "an amount of memory such as 8G or 512M")
        for option in ("partition", "account", "qos"):
            value = getattr(self, option)
            if value is not None and not _WORD.fullmatch(value):
                _reject(option, value, "a name as Slurm has them, such as gpu")
        if self.host_suffix is not None and not _SUFFIX.fullmatch(self.host_suffix):
            _reject("host-suffix", self.host_suffix, "the end of a host's name, such as '-ib0'")
        for option in self.options:
            if not re.fullmatch(r"-\S.*", option):
                _reject("sbatch", option, "an option of sbatch on one line, such as --exclusive")
        for line in self.setup:
            if not line.strip() or "\n" in line:
                _reject("setup", line, "one line of shell")
        self._check_time()
        self._check_nodes()
        self._check_container()
        check_expand(self.expand, [*self.command, *self.paths])
        for name in self.expand:
            if name in _OF_A_TASK or name.startswith("SLURM_STEP_"):
                _reject("expand", name, "the same in all tasks, and is filled in before they start")

    def _check_time(self) -> None:
        if self.time is None or self.time.upper() in _UNLIMITED:
            return
        match = _TIME.fullmatch(self.time)
        if not match:
            _reject("time", self.time, "a time such as 90 (minutes), 12:00:00 or 2-12:00:00")
        part = {unit: int(text or 0) for unit, text in match.groupdict().items()}
        minutes = ((part["days"] * 24 + part["h"] + part["hours"]) * 60) + part["m"]
        seconds = (minutes + part["minutes"]) * 60 + part["s"] + part["seconds"]
        if seconds <= self.grace:
            raise ConfigError(
                f"render(--time): {quote(self.time)} is {plural(seconds, 'second')}, of which the "
                f"last {self.grace} are to save in; give more, or a smaller --grace"
            )

    def _check_nodes(self) -> None:
        per_node = self.workers_per_node
        if per_node is not None:
            if per_node < 1:
                _reject("workers-per-node", per_node, "a whole number of 1 or more")
            if self.workers % per_node:
                raise ConfigError(
                    f"render(--workers): {self.workers} is not a multiple of --workers-per-node, "
                    f"{per_node}; nodes have to have as many workers each"
                )
        if not self.gpus_per_node:
            return
        here = per_node or 1
        if self.gpus_per_worker * here > self.gpus_per_node:
            raise ConfigError(
                f"render(--gpus-per-worker): {self.gpus_per_worker} for {plural(here, 'worker')} a "
                f"node is more than --gpus-per-node, {self.gpus_per_node}; give fewer of either"
            )
        if self.gpus_per_node % here and not self.gpus_per_worker:
            raise ConfigError(
                f"render(--gpus-per-node): {self.gpus_per_node} cannot be shared evenly by "
                f"{plural(here, 'worker')} a node; change --workers-per-node"
            )

    def _check_container(self) -> None:
        if self.container is not None and self.container not in CONTAINERS:
            _reject("container", self.container, f"one of {', '.join(CONTAINERS)}")
        if (self.container is None) != (self.image is None):
            given, missing = "image", "container"
            if self.image is None:
                given, missing = missing, given
            raise ConfigError(f"render(--{missing}): missing; --{given} needs it")
        if self.image is not None and self.image.split() != [self.image]:
            _reject("image", self.image, "the name of an image")
        for mount in self.mounts:
            if self.container is None:
                raise ConfigError("render(--container): missing; --mount needs it")
            if not re.fullmatch(r"/[^\s:,]*:/[^\s:,]*", self._from_root(mount)):
                _reject("mount", mount, "like /FROM:/TO, without spaces and commas")
        for pair in self.stage:
            if not all(
                path.startswith("/") and path.strip("/") and "\n" not in path
                for path in map(self._from_root, pair)
            ):
                _reject("stage", ":".join(pair), "like /FROM:/TO")

    def _from_root(self, text: str) -> str:
        """Returns paths with an absolute one for each variable that is filled in."""
        return filled_in(text, self.expand, "/{}".format, str)

    @property
    def paths(self) -> list[str]:
        """The words beside the command that may have variables."""
        given = (self.log_dir, self.image, *self.mounts, *chain.from_iterable(self.stage))
        return [path for path in given if path is not None]

    @property
    def other_tasks(self) -> dict[str, int]:
        """The number of tasks of each role that does not train, in the order of the ranks."""
        counts = {"chief": min(self.ps, 1), "ps": self.ps, "evaluator": self.evaluator}
        return {role: count for role, count in counts.items() if count}

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks of each role, in the order of the ranks."""
        return {**self.other_tasks, "worker": self.workers}

    @property
    def workers_here(self) -> int:
        """The number of workers of a node."""
        return self.workers_per_node or 1

    @property
    def gpus_here(self) -> int:
        """The number of GPUs to ask for on each node of the workers."""
        return self.gpus_per_worker * self.workers_here or self.gpus_per_node

    @property
    def is_heterogeneous(self) -> bool:
        """Whether the workers have separate nodes from those of the other tasks."""
        return bool(self.other_tasks) and (self.gpus_here > 0 or self.workers_per_node is not None)

    @property
    def megabytes(self) -> int:
        """The memory of each task."""
        match = _MEMORY.fullmatch(self.memory)
        return int(match[1]) * _MEGABYTES[match[2]] if match else 0


def _reject(option: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"render(--{option}): {quote(value)} is not {allowed}")
