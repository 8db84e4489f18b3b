"""Reads a TFJob or a JobSet: its tasks, their commands, and the fields not followed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster.spec import ROLES, check_role
from tfdist.runtime.heartbeat import VARIABLE as HEARTBEAT_VARIABLE
from tfdist.validation import kind, quote, reject

_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)|\$\$")
_MOST = 10_000

# Fields of a manifest that are not followed here, and what is done instead.
_RESTARTS = "--max-restarts sets how often tasks start again"
_END = "the job is done when chief and workers are; with ps, when the chief is"
_DIFFERENT_RUN = {
    "activeDeadlineSeconds": "there is no deadline",
    "backoffLimit": _RESTARTS,
    "cleanPodPolicy": "all tasks end with the job",
    "schedulingPolicy": "all tasks start at once",
}
_DIFFERENT_JOB = {
    "activeDeadlineSeconds": "there is no deadline",
    "backoffLimit": _RESTARTS,
    "podFailurePolicy": _RESTARTS,
}
_DIFFERENT_POD = {
    "initContainers": "they are not run",
    "activeDeadlineSeconds": "there is no deadline",
}
_DIFFERENT_CONTAINER = {
    "workingDir": "tasks run in this directory",
    "envFrom": "it is in the cluster; set its variables with --env",
    "volumeMounts": "nothing is mounted; paths are this machine's",
}
# The addresses of a JobSet's pods, for which the launcher gives a TF_CONFIG.
_OWN = ("TFDIST_CHIEF", "TFDIST_WORKERS", "TFDIST_PS", "TFDIST_EVALUATOR")
_OWN_TASK = ("TFDIST_TASK_TYPE", "TFDIST_TASK_INDEX")


@dataclass
class Manifest:
    """The content of a manifest.

    Attributes:
        counts: The tasks of each role.
        commands: The command of each role.
        env: The variables of each role.
        notes: The differences from a run on the cluster, one line each.
    """

    counts: dict[str, int] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    env: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def unpacked(document: Mapping[str, Any]) -> list[Any]:
    """Returns the documents in a `kind: List`; else the document itself."""
    items = document.get("items")
    return items if document.get("kind") == "List" and isinstance(items, list) else [document]


def read_tfjob(
    loaded: Mapping[str, Any], path: str, command: Sequence[str]
) -> tuple[Manifest, str]:
    """Reads a TFJob, as the training operator would.

    Args:
        loaded: The document.
        path: The file, for messages.
        command: What to run; the containers' own commands when empty.

    Returns:
        What was read, and the name of the field that has the tasks.

    Raises:
        ConfigError: The operator would reject it, or suspend it.
    """
    where = f"{path}: spec.tfReplicaSpecs"
    spec = _get(loaded, "spec", path)
    replicas = _get(spec, "tfReplicaSpecs", f"{path}: spec")
    read = Manifest()
    policy = spec.get("runPolicy") or {}
    if isinstance(policy, Mapping):
        _refuse_suspended(policy, f"{path}: spec.runPolicy")
        _note(read, policy, f"{path}: spec.runPolicy", _DIFFERENT_RUN)
    _note(read, spec, f"{path}: spec", {"successPolicy": _END})
    if spec.get("enableDynamicWorker"):
        reject(
            f"{path}: spec.enableDynamicWorker",
            "tasks would not know each other's addresses; leave it out",
        )
    for name, replica in replicas.items():
        role = check_role(name.lower() if isinstance(name, str) else name, where)
        if role in read.commands:
            reject(where, f"{quote(name)} names {role} a second time; keep one of them")
        count = replica.get("replicas") if isinstance(replica, Mapping) else 0
        if not _count(count, f"{where}.{name}.replicas"):
            continue
        _note(read, replica, f"{where}.{name}", {"restartPolicy": _RESTARTS})
        _add(read, role, replica, f"{where}.{name}", command, named=True)
        read.counts[role] = _count(count, f"{where}.{name}.replicas")
    return read, where


def read_jobset(
    loaded: Mapping[str, Any], path: str, command: Sequence[str]
) -> tuple[Manifest, str]:
    """Reads a JobSet whose replicated jobs are roles, such as `tfdist render jobset` writes.

    Args:
        loaded: The document.
        path: The file, for messages.
        command: What to run; the containers' own commands when empty.

    Returns:
        What was read, and the name of the field that has the tasks.

    Raises:
        ConfigError: It is malformed or suspended, or a replicated job of it is not a role.
    """
    where = f"{path}: spec.replicatedJobs"
    spec = _get(loaded, "spec", path)
    jobs = spec.get("replicatedJobs")
    if not isinstance(jobs, list) or not all(isinstance(job, Mapping) for job in jobs):
        reject(where, f"{quote(jobs)} is not a list of objects")
    read = Manifest()
    _refuse_suspended(spec, f"{path}: spec")
    _note(read, spec, f"{path}: spec", {"failurePolicy": _RESTARTS, "successPolicy": _END})
    for number, job in enumerate(jobs):
        here = f"{where}[{number}]"
        inner = _get(_get(job, "template", here), "spec", f"{here}.template")
        _note(read, inner, f"{here}.template.spec", _DIFFERENT_JOB)
        pods = inner.get("completions")
        pods = inner.get("parallelism") if pods is None else pods
        count = _count(job.get("replicas"), f"{here}.replicas") * _count(pods, f"{here}: pods")
        env = _container_env(_container(inner, here, named=False), [], here)
        role = env.get("TFDIST_TASK_TYPE") or job.get("name")
        if role not in ROLES:
            reject(f"{here}.name", f"{quote(role)} is not a role; set TFDIST_TASK_TYPE to one")
        if not count:
            continue
        if role not in read.counts:
            _add(read, role, inner, here, command, named=False)
        read.counts[role] = read.counts.get(role, 0) + count
        for own in (*_OWN, *_OWN_TASK):
            read.env[role].pop(own, None)
    return read, where


Reader = Callable[[Mapping[str, Any], str, Sequence[str]], tuple[Manifest, str]]
READERS: dict[str, Reader] = {"TFJob": read_tfjob, "JobSet": read_jobset}


def _add(
    read: Manifest,
    role: str,
    holder: Mapping[str, Any],
    where: str,
    command: Sequence[str],
    *,
    named: bool,
) -> None:
    """Adds the command and the variables of a role to `read`."""
    container = _container(holder, where, named=named)
    pod = holder["template"]["spec"]
    _note(read, pod, f"{where}.template.spec", _DIFFERENT_POD)
    _note(read, container, f"{where}: container", _DIFFERENT_CONTAINER)
    others = [quote(c.get("name")) for c in pod["containers"] if c is not container]
    if others:
        read.notes.append(f"{where}: containers {', '.join(others)} are not run here")
    read.env[role] = _container_env(container, read.notes, where)
    read.env[role].pop(HEARTBEAT_VARIABLE, None)  # The launcher gives each task its own.
    read.commands[role] = list(command) or _container_command(container, read.env[role], where)


def _note(
    read: Manifest, holder: Mapping[str, Any], where: str, different: Mapping[str, str]
) -> None:
    """Notes each field that is given but not followed, once, and what is done instead."""
    for name, instead in different.items():
        text = f".{name} is not followed here: {instead}"
        if holder.get(name) and not any(note.endswith(text) for note in read.notes):
            read.notes.append(where + text)


def _refuse_suspended(holder: Mapping[str, Any], where: str) -> None:
    if holder.get("suspend"):
        reject(f"{where}.suspend", "is true: such a job is held; set it to false to run it")


def _count(value: Any, where: str) -> int:
    """Checks a number of replicas; None means one."""
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        reject(where, f"{quote(value)} is not 0 to {_MOST}")
    return value


def _get(mapping: Any, key: str, where: str) -> Mapping[str, Any]:
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    if not isinstance(value, Mapping):
        reject(f"{where}.{key}" if ":" in where else f"{where}: {key}", "is not an object")
    return value


def _container(spec: Mapping[str, Any], where: str, *, named: bool) -> Mapping[str, Any]:
    template = _get(spec, "template", where)
    containers = _get(template, "spec", f"{where}.template").get("containers")
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        reject(f"{where}.template.spec.containers", f"{quote(containers)} is not a list of objects")
    for container in containers:
        if container.get("name") == "tensorflow":  # The one that gets TF_CONFIG.
            return container
    if not containers:
        reject(f"{where}.template.spec.containers", "is empty; give one named tensorflow")
    if named:
        names = ", ".join(quote(container.get("name")) for container in containers)
        reject(f"{where}.template.spec.containers", f"none is named tensorflow, but {names}")
    return containers[0]


def _container_env(container: Mapping[str, Any], notes: list[str], where: str) -> dict[str, str]:
    result: dict[str, str] = {}
    entries = container.get("env") or []
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        reject(f"{where}: env", f"{quote(entries)} is not a list of objects")
    for entry in entries:
        name, value = entry.get("name"), entry.get("value")
        if not isinstance(name, str) or not name or "=" in name or not _is_passable(name):
            reject(f"{where}: env", f"{quote(name)} is not the name of a variable")
        if value is None and "valueFrom" not in entry:
            result[name] = ""
        elif isinstance(value, str) and _is_passable(value):
            result[name] = _expand(value, result)
        elif "valueFrom" in entry:
            notes.append(f"{where}: env {name} comes from the cluster; it is not set here")
        else:
            what = "not text for a process" if isinstance(value, str) else kind(value)
            reject(f"{where}: env.{name}", f"{quote(value)} is {what}; give a string")
    return result


def _is_passable(text: str) -> bool:
    """Returns whether a process can be given the text: without NUL and lone surrogates."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _container_command(
    container: Mapping[str, Any], env: Mapping[str, str], where: str
) -> list[str]:
    words: list[str] = []
    for key in ("command", "args"):
        part = container.get(key) or []
        if not isinstance(part, list) or not all(
            isinstance(word, str) and _is_passable(word) for word in part
        ):
            reject(f"{where}: {key}", f"{quote(part)} is not a list of strings")
        words += [_expand(word, env) for word in part]
    if not words:
        reject(where, "the container has no command; add '-- COMMAND'")
    return words


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Expands `$(NAME)` as Kubernetes does: unknown names stay, `$$` is a dollar sign."""
    return _VARIABLE.sub(
        lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text
    )
