"""Describes a job to launch: the tasks of each role, their addresses and their commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster.address import is_loopback
from tfdist.cluster.documents import load_documents
from tfdist.cluster.spec import ROLES, check_jobs
from tfdist.launcher.jobset import read_jobset, read_trainjob
from tfdist.launcher.manifest import Given, Manifest, read_tfjob, unpacked
from tfdist.launcher.ports import free_ports
from tfdist.validation import plural, quote, reject

_READERS = {"TFJob": read_tfjob, "JobSet": read_jobset, "TrainJob": read_trainjob}
_MAX_REPLICAS = 1000
_WANTED = "give a cluster spec, a TFJob, a JobSet or a TrainJob"


@dataclass(frozen=True)
class Job:
    """The tasks to start.

    Attributes:
        addresses: Of each role, the address of each task; None for any free
            loopback port.
        commands: The command of each role.
        env: The variables of each role.
        notes: Messages to the user about the file that was read.
        here: The tasks that this machine runs; None for all. Others run elsewhere.
        noun: What one of them is called.
    """

    addresses: Mapping[str, tuple[str | None, ...]]
    commands: Mapping[str, Sequence[str]]
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    here: tuple[str, ...] | None = None
    noun: str = "task"

    @property
    def names(self) -> list[str]:
        """The names of the tasks to start."""
        if self.here is not None:
            return list(self.here)
        return [f"{role}/{i}" for role, held in self.addresses.items() for i in range(len(held))]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], command: Sequence[str]) -> Job:
        """Describes a job with a number of tasks of each role.

        Raises:
            ConfigError: The counts do not form a cluster, or there is no command.
        """
        present = {role: counts[role] for role in ROLES if counts.get(role)}
        if not present:
            reject("--workers", "is 0; give at least one task")
        if not command:
            reject("launch", "no command given; add '-- COMMAND'")
        for role, count in present.items():
            _check_count(count, f"launch: {role}")
        _check_counts(present, "launch")
        return cls(
            {role: (None,) * count for role, count in present.items()},
            {role: list(command) for role in present},
        )

    @classmethod
    def from_file(
        cls, path: str, command: Sequence[str], roles: Mapping[str, str] | None = None
    ) -> Job:
        """Reads `{"cluster": {...}}`, a TFJob, a JobSet or a TrainJob.

        Loopback addresses of a cluster are used as they are; others name
        other machines, so they are replaced by free loopback ports.

        Args:
            path: A JSON or YAML file.
            command: What to run; a manifest's own container commands when empty.
            roles: The roles of a JobSet's replicated jobs, where their names do not say.

        Raises:
            ConfigError: The file cannot be read or describes no job.
        """
        documents = [
            item
            for loaded in load_documents(path, _WANTED)
            if isinstance(loaded, Mapping)
            for item in unpacked(loaded)
            if isinstance(item, Mapping)
        ]
        for loaded in documents:
            if "cluster" in loaded:
                if roles:
                    reject("launch(--role)", "is given; a cluster spec has its roles' names")
                return cls._from_cluster(loaded["cluster"], path, command)
            if loaded.get("kind") not in _READERS:
                continue
            given = Given(command, roles or {}, documents)
            read, where = _READERS[loaded["kind"]](loaded, path, given)
            others = [one for one in documents if one is not loaded and one is not read.runtime]
            if others:
                kinds = ", ".join(str(other.get("kind")) for other in others)
                further = plural(len(others), "further document")
                read.notes.append(f"{path}: {further} ({kinds}) left out")
            return cls._from_manifest(read, path, where)
        reject(path, 'holds neither {"cluster": {...}} nor a TFJob, JobSet or TrainJob')

    @classmethod
    def _from_cluster(cls, spec: Any, path: str, command: Sequence[str]) -> Job:
        jobs = check_jobs(spec, f"{path}: cluster")
        for role, members in jobs.items():
            _check_count(len(members), f"{path}: cluster.{role}")
        if not command:
            reject("launch", "no command given; add '-- COMMAND'")
        addresses: dict[str, tuple[str | None, ...]] = {
            role: tuple(a if is_loopback(a) else None for a in members)
            for role, members in jobs.items()
        }
        replaced = [a for members in jobs.values() for a in members if not is_loopback(a)]
        notes: tuple[str, ...] = ()
        if len(replaced) == 1:
            notes = (f"{path}: {quote(replaced[0])} is replaced by a free local port",)
        elif replaced:
            which = f"{len(replaced)} addresses ({quote(replaced[0])}, ...)"
            notes = (f"{path}: {which} are replaced by free local ports",)
        return cls(addresses, {role: list(command) for role in jobs}, notes=notes)

    @classmethod
    def _from_manifest(cls, read: Manifest, path: str, where: str) -> Job:
        if not read.counts:
            reject(where, "has no replicas; give at least one Worker")
        for role, count in read.counts.items():
            _check_count(count, f"{where}: {role}")
        _check_counts(read.counts, where)
        ordered = [role for role in ROLES if role in read.counts]
        addresses = {role: (None,) * read.counts[role] for role in ordered}
        return cls(addresses, read.commands, read.env, tuple(read.notes))

    def place(self) -> dict[str, list[str]]:
        """Returns the cluster's jobs, with a free loopback port for each address left open."""
        ports = free_ports(sum(members.count(None) for members in self.addresses.values()))
        return {
            role: [a if a is not None else f"127.0.0.1:{ports.pop()}" for a in members]
            for role, members in self.addresses.items()
        }


def _check_count(count: int, where: str) -> None:
    if count > _MAX_REPLICAS:
        reject(where, f"{count} is too many; one machine runs up to {_MAX_REPLICAS}")


def _check_counts(counts: Mapping[str, int], where: str) -> None:
    if counts.get("chief", 0) > 1:
        reject(where, f"{counts['chief']} chiefs; a cluster has one chief")
    if counts.get("ps") and not counts.get("worker"):
        reject(where, "there is a ps but no worker; add workers or drop ps")
    if not counts.get("worker") and not counts.get("chief"):
        reject(where, "there is neither a worker nor a chief; add workers")
