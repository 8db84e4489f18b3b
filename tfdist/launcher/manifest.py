"""Reads a TFJob, and the pods of all manifests: commands, and the fields not followed here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster.spec import check_role
from tfdist.runtime.heartbeat import VARIABLE as HEARTBEAT_VARIABLE
from tfdist.validation import kind, quote, reject

_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)|\$\$")
_MOST = 10_000

# Fields of a manifest that are not followed here, and what is done instead.
RESTARTS = "--max-restarts sets how often tasks start again"
AT_ONCE = "all tasks start at once"
END = "the job is done when chief and workers are; with ps, when the chief is"
_DIFFERENT_RUN = {
    "activeDeadlineSeconds": "there is no deadline",
    "backoffLimit": RESTARTS,
    "cleanPodPolicy": "all tasks end with the job",
    "schedulingPolicy": AT_ONCE,
}
_DIFFERENT_POD = {
    "initContainers": "they are not run",
    "activeDeadlineSeconds": "there is no deadline",
    "restartPolicy": RESTARTS,
}
_DIFFERENT_CONTAINER = {
    "startupProbe": AT_ONCE,
    "lifecycle": "its hooks are not run",
    "workingDir": "tasks run in this directory",
    "envFrom": "it is in the cluster; set its variables with --env",
    "volumeMounts": "nothing is mounted; paths are this machine's",
}


@dataclass
class Manifest:
    """The content of a manifest.

    Attributes:
        counts: The tasks of each role.
        commands: The command of each role.
        env: The variables of each role.
        notes: The differences from a run on the cluster, one line each.
        runtime: The document of a TrainJob's runtime, where that is in the file too.
    """

    counts: dict[str, int] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    env: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runtime: Mapping[str, Any] | None = None


def unpacked(document: Mapping[str, Any]) -> list[Any]:
    """Returns the documents in a `kind: List`; else the document itself."""
    items = document.get("items")
    return items if document.get("kind") == "List" and isinstance(items, list) else [document]


@dataclass(frozen=True)
class Given:
    """What a user gives with a manifest.

    Attributes:
        command: What to run; the containers' own commands when empty.
        roles: The roles of replicated jobs by name, where they are not clear.
        documents: All documents of the file.
    """

    command: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    documents: Sequence[Mapping[str, Any]] = ()


def read_tfjob(loaded: Mapping[str, Any], path: str, given: Given) -> tuple[Manifest, str]:
    """Reads a TFJob, as the training operator would.

    Args:
        loaded: The document.
        path: The file, for messages.
        given: What was given with it.

    Returns:
        What was read, and the name of the field that has the tasks.

    Raises:
        ConfigError: The operator would reject it, or suspend it.
    """
    where = f"{path}: spec.tfReplicaSpecs"
    if given.roles:
        reject("launch(--role)", "is given; a TFJob's replicas have their roles' names")
    spec = part(loaded, "spec", path)
    replicas = part(spec, "tfReplicaSpecs", f"{path}: spec")
    read = Manifest()
    policy = spec.get("runPolicy") or {}
    if isinstance(policy, Mapping):
        refuse_suspended(policy, f"{path}: spec.runPolicy")
        add_notes(read, policy, f"{path}: spec.runPolicy", _DIFFERENT_RUN)
    add_notes(read, spec, f"{path}: spec", {"successPolicy": END})
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
        if not number_of(count, f"{where}.{name}.replicas"):
            continue
        add_notes(read, replica, f"{where}.{name}", {"restartPolicy": RESTARTS})
        add_role(read, role, replica, f"{where}.{name}", given.command, named=True)
        read.counts[role] = number_of(count, f"{where}.{name}.replicas")
    return read, where


def add_role(
    read: Manifest,
    role: str,
    holder: Mapping[str, Any],
    where: str,
    command: Sequence[str],
    *,
    named: bool,
) -> None:
    """Adds the command and the variables of a role to `read`."""
    container = container_of(holder, where, named=named)
    pod = holder["template"]["spec"]
    add_notes(read, pod, f"{where}.template.spec", _DIFFERENT_POD)
    add_notes(read, container, f"{where}: container", _DIFFERENT_CONTAINER)
    others = [quote(c.get("name")) for c in pod["containers"] if c is not container]
    if others:
        read.notes.append(f"{where}: containers {', '.join(others)} are not run here")
    read.env[role] = environment(container, read.notes, where)
    read.env[role].pop(HEARTBEAT_VARIABLE, None)  # The launcher gives each task its own.
    read.commands[role] = list(command) or command_of(container, read.env[role], where)


def add_notes(
    read: Manifest, holder: Mapping[str, Any], where: str, different: Mapping[str, str]
) -> None:
    """Notes each field that is given but not followed, once, and what is done instead."""
    for name, instead in different.items():
        text = f".{name} is not followed here: {instead}"
        if holder.get(name) and not any(note.endswith(text) for note in read.notes):
            read.notes.append(where + text)


def refuse_suspended(holder: Mapping[str, Any], where: str) -> None:
    """Rejects a job that is suspended.

    Raises:
        ConfigError: It is.
    """
    if holder.get("suspend"):
        reject(f"{where}.suspend", "is true: such a job is held; set it to false to run it")


def number_of(value: Any, where: str) -> int:
    """Checks a number of replicas; None means one."""
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        reject(where, f"{quote(value)} is not 0 to {_MOST}")
    return value


def part(mapping: Any, key: str, where: str) -> Mapping[str, Any]:
    """Returns an object in an object.

    Raises:
        ConfigError: There is none.
    """
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    if not isinstance(value, Mapping):
        reject(f"{where}.{key}" if ":" in where else f"{where}: {key}", "is not an object")
    return value


def container_of(spec: Mapping[str, Any], where: str, *, named: bool) -> Mapping[str, Any]:
    """Returns the container that runs the task.

    Args:
        spec: What has the template of the pods.
        where: Its place, for messages.
        named: Whether it has to be named `tensorflow`, as TFJob's operator wants it.

    Raises:
        ConfigError: There is none, or its place is malformed.
    """
    template = part(spec, "template", where)
    containers = part(template, "spec", f"{where}.template").get("containers")
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        reject(f"{where}.template.spec.containers", f"{quote(containers)} is not a list of objects")
    for container in containers:
        # The one that gets TF_CONFIG; a TrainJob's.
        if container.get("name") in (("tensorflow",) if named else ("tensorflow", "node")):
            return container
    if not containers:
        reject(f"{where}.template.spec.containers", "is empty; give one named tensorflow")
    if named:
        names = ", ".join(quote(container.get("name")) for container in containers)
        reject(f"{where}.template.spec.containers", f"none is named tensorflow, but {names}")
    return containers[0]


def environment(container: Mapping[str, Any], notes: list[str], where: str) -> dict[str, str]:
    """Returns the variables of a container; adds a note for each that is in the cluster.

    Raises:
        ConfigError: One is malformed.
    """
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


def command_of(container: Mapping[str, Any], env: Mapping[str, str], where: str) -> list[str]:
    """Returns the command of a container, with its variables filled in.

    Raises:
        ConfigError: There is none, or it is not a list of strings.
    """
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
