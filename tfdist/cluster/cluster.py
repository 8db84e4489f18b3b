"""Describes the cluster that a task belongs to: its tasks, their addresses, and this task."""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster.address import split_address
from tfdist.cluster.alone import refuse_alone
from tfdist.cluster.kubernetes import is_indexed_job, parse_indexed_job
from tfdist.cluster.mpi import is_mpi, parse_mpi
from tfdist.cluster.sagemaker import is_sagemaker, parse_sagemaker
from tfdist.cluster.slurm import is_slurm_step, parse_slurm
from tfdist.cluster.slurm_gpus import share_of_gpus
from tfdist.cluster.spec import Jobs, check_index, check_jobs, check_role
from tfdist.cluster.tf_config import parse_tf_config
from tfdist.cluster.trainjob import is_trainjob, parse_trainjob
from tfdist.notebook import Rows
from tfdist.validation import quote, reject


@dataclass(frozen=True)
class Task:
    """One process of a cluster. Prints as `worker/0`.

    Attributes:
        type: One of chief, worker, ps and evaluator.
        index: Its number among the tasks of its type.
        address: Its `host:port`, or None where it has none (a local task).

    Example:
        >>> task = tfdist.Task("worker", 1, "host2:2222")
        >>> print(task, task.host, task.port)
        worker/1 host2 2222
    """

    type: str
    index: int
    address: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.type}/{self.index}"

    @property
    def host(self) -> str | None:
        """The host of its address, without the brackets of IPv6."""
        return None if self.address is None else split_address(self.address)[0]

    @property
    def port(self) -> int | None:
        """The port of its address."""
        return None if self.address is None else split_address(self.address)[1]


@dataclass(frozen=True)
class Cluster(Rows):
    """The tasks of a cluster, and which of them this process is.

    Build one with `from_environment`, `from_tf_config` or `from_cluster_spec`.

    Attributes:
        members: Pairs of job and addresses, in the order chief, worker, ps, evaluator.
        task: This process.
        source: A name for the source of the cluster, such as TF_CONFIG.

    Example:
        >>> cluster = tfdist.Cluster.from_cluster_spec(
        ...     {"worker": ["host1:2222", "host2:2222"]}, task_type="worker", task_index=1
        ... )
        >>> print(cluster.task, cluster.chief, cluster.is_chief, cluster.num_workers)
        worker/1 worker/0 False 2
    """

    members: tuple[tuple[str, tuple[str, ...]], ...]
    task: Task
    source: str = field(default="", compare=False)

    @classmethod
    def from_tf_config(cls, config: str | Mapping[str, Any]) -> Cluster:
        """Reads TF_CONFIG, as JSON text or as the decoded object.

        Raises:
            ConfigError: It is malformed; the message names the field.

        Example:
            >>> cluster = tfdist.Cluster.from_tf_config(
            ...     '{"cluster": {"worker": ["host1:2222", "host2:2222"]},'
            ...     ' "task": {"type": "worker", "index": 0}}'
            ... )
            >>> print(cluster.task, cluster.is_chief)
            worker/0 True
        """
        return cls._build(*parse_tf_config(config), source="TF_CONFIG")

    @classmethod
    def from_cluster_spec(
        cls, spec: Any, task_type: str = "worker", task_index: int = 0
    ) -> Cluster:
        """Reads a `tf.train.ClusterSpec`, or a dict of role to addresses.

        Args:
            spec: Such as `{"worker": ["host1:2222", "host2:2222"]}`.
            task_type: The role of this process.
            task_index: Its number among the tasks of that role.

        Raises:
            ConfigError: It is malformed; the message names the field.

        Example:
            >>> spec = {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222", "d:2222"]}
            >>> cluster = tfdist.Cluster.from_cluster_spec(spec, task_type="ps")
            >>> print(*cluster.tasks)
            chief/0 worker/0 worker/1 ps/0
        """
        as_dict = getattr(spec, "as_dict", None)
        jobs = check_jobs(as_dict() if callable(as_dict) else spec, "cluster_spec")
        role = check_role(task_type, "task_type")
        if role not in jobs and role != "evaluator":
            given = quote(task_type)
            reject("task_type", f"{given} is not in cluster_spec; it has {', '.join(jobs)}")
        if not isinstance(task_index, bool):
            with contextlib.suppress(TypeError):  # Accepts the integers of NumPy too.
                task_index = operator.index(task_index)
        index = check_index(task_index, role, jobs, "task_index", "cluster_spec")
        return cls._build(jobs, role, index, source="cluster_spec")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Cluster:
        """Reads the environment: TF_CONFIG, Slurm, Kubernetes, MPI, SageMaker, or one local task.

        An empty TF_CONFIG counts as none: so does a job of one replica, for
        which TFJob sets none. Of Kubernetes it reads the lists of an Indexed
        Job, else the variables of a TrainJob. The processes of mpirun are read
        where all are on one machine. One that shows that there are others, but
        not where, is refused, unless TFDIST_WORKERS is set and empty.

        Args:
            environ: The environment to read; that of this process by default.

        Raises:
            ConfigError: A variable is malformed, or there are other tasks of unknown addresses;
                the message names the field.

        Example:
            >>> cluster = tfdist.Cluster.from_environment({})
            >>> print(cluster.source, cluster.task)
            local worker/0
        """
        environ = os.environ if environ is None else environ
        text = environ.get("TF_CONFIG", "")
        if text.strip():
            return cls.from_tf_config(text)
        if is_slurm_step(environ):
            share_of_gpus(environ)  # Raises before anything starts where they cannot be shared.
            return cls._build(*parse_slurm(environ), source="Slurm")
        if is_indexed_job(environ):
            return cls._build(*parse_indexed_job(environ), source="Kubernetes")
        if is_trainjob(environ):
            return cls._build(*parse_trainjob(environ), source="TrainJob")
        if is_mpi(environ):
            return cls._build(*parse_mpi(environ), source="MPI")
        if is_sagemaker(environ):
            return cls._build(*parse_sagemaker(environ), source="SageMaker")
        refuse_alone(environ)
        return cls.local()

    @classmethod
    def local(cls) -> Cluster:
        """Returns the cluster of one local task, which has no address.

        Example:
            >>> cluster = tfdist.Cluster.local()
            >>> cluster.is_local, cluster.is_chief, cluster.addresses
            (True, True, ())
        """
        return cls(members=(), task=Task("worker", 0), source="local")

    @classmethod
    def _build(cls, jobs: Jobs, role: str, index: int, source: str) -> Cluster:
        address = jobs[role][index] if role in jobs else None
        return cls(tuple(jobs.items()), Task(role, index, address), source)

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """The addresses of each job, by index; empty for a local task."""
        return dict(self.members)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every task, in the order chief, worker, ps, evaluator."""
        if self.is_local:
            return (self.task,)
        return tuple(
            Task(role, index, address)
            for role, addresses in self.members
            for index, address in enumerate(addresses)
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of every task, in the order of `tasks`; empty for a local task."""
        return tuple(address for _, addresses in self.members for address in addresses)

    @property
    def is_local(self) -> bool:
        """Returns whether this is one task on its own, without addresses."""
        return not self.members

    @property
    def has_ps(self) -> bool:
        """Returns whether there are parameter servers."""
        return "ps" in self.jobs

    @property
    def num_workers(self) -> int:
        """The number of tasks that compute gradients.

        With parameter servers a chief only coordinates; without them it is
        a worker too.
        """
        if self.is_local:
            return 1
        workers = len(self.jobs.get("worker", ()))
        return workers if self.has_ps else workers + len(self.jobs.get("chief", ()))

    @property
    def chief(self) -> Task:
        """The task that writes and prints: `chief/0` where there is one, else `worker/0`."""
        role = "chief" if "chief" in self.jobs else "worker"
        addresses = self.jobs.get(role)
        return Task(role, 0, addresses[0] if addresses else None)

    @property
    def is_chief(self) -> bool:
        """Returns whether this process is the chief."""
        return self.task == self.chief

    def to_tf_config(self) -> str:
        """Returns the TF_CONFIG of this cluster and task; empty for a local task.

        Example:
            >>> cluster = tfdist.Cluster.from_cluster_spec({"worker": ["host1:2222"]})
            >>> cluster.to_tf_config()
            '{"cluster": {"worker": ["host1:2222"]}, "task": {"type": "worker", "index": 0}}'
        """
        if self.is_local:
            return ""
        task = {"type": self.task.type, "index": self.task.index}
        return json.dumps({"cluster": self.jobs, "task": task})

    def fingerprint(self) -> str:
        """Returns a hash of the jobs; it is the same in all tasks of a cluster.

        Example:
            >>> spec = {"worker": ["host1:2222", "host2:2222"]}
            >>> first, second = (
            ...     tfdist.Cluster.from_cluster_spec(spec, task_index=index) for index in range(2)
            ... )
            >>> first.fingerprint() == second.fingerprint()
            True
        """
        text = json.dumps(self.jobs, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("source", self.source)] if self.source else []
        for task in self.tasks or (self.task,):
            own = ", this process" if task == self.task else ""
            rows.append((str(task), f"{task.address or 'local'}{own}"))
        return rows
