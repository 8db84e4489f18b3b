"""What to launch: how many tasks of each role, where, and with which command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.cluster.address import is_loopback
from tfdist.cluster.messages import kind, quote, reject
from tfdist.cluster.spec import ROLES, check_jobs, check_role
from tfdist.cluster.tf_config import load_json
from tfdist.launch.ports import free_ports

_MAX_REPLICAS = 1000
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)|\$\$")


@dataclass(frozen=True)
class Job:
    """The tasks to start.

    Attributes:
        addresses: of each role, the address of each task; None where any free
            loopback port will do.
        commands: the command of each role.
        env: the variables of each role.
        notes: what the user should know about how FILE was read.
    """

    addresses: Mapping[str, tuple[str | None, ...]]
    commands: Mapping[str, Sequence[str]]
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], command: Sequence[str]) -> Job:
        """Describes a job of so many tasks of each role.

        Raises:
            ConfigError: the counts make no cluster, or there is no command.
        """
        present = {role: counts[role] for role in ROLES if counts.get(role)}
        if not present:
            reject("--workers", "is 0; give at least one task")
        if not command:
            reject("launch", "no command given; add '-- COMMAND'")
        for role, count in present.items():
            if count > _MAX_REPLICAS:
                reject(f"--{role}", f"{count} is too many; one machine runs up to {_MAX_REPLICAS}")
        _check_counts(present, "launch")
        return cls(
            {role: (None,) * count for role, count in present.items()},
            {role: list(command) for role in present},
        )

    @classmethod
    def from_file(cls, path: str, command: Sequence[str]) -> Job:
        """Reads `{"cluster": {...}}` or a TFJob.

        Loopback addresses of a cluster are used as they are; others name
        machines that are not this one, so they become free loopback ports.

        Args:
            path: a JSON or YAML file.
            command: what to run; a TFJob's own container commands when empty.

        Raises:
            ConfigError: the file cannot be read or describes no job.
        """
        for loaded in _load(path):
            if isinstance(loaded, Mapping) and loaded.get("kind") == "TFJob":
                return cls._from_tfjob(loaded, path, command)
            if isinstance(loaded, Mapping) and "cluster" in loaded:
                return cls._from_cluster(loaded["cluster"], path, command)
        reject(path, 'holds neither {"cluster": {...}} nor a TFJob')

    @classmethod
    def _from_cluster(cls, spec: Any, path: str, command: Sequence[str]) -> Job:
        jobs = check_jobs(spec, f"{path}: cluster")
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
    def _from_tfjob(cls, loaded: Mapping[str, Any], path: str, command: Sequence[str]) -> Job:
        where = f"{path}: spec.tfReplicaSpecs"
        replicas = _get(_get(loaded, "spec", path), "tfReplicaSpecs", f"{path}: spec")
        counts: dict[str, int] = {}
        commands: dict[str, list[str]] = {}
        env: dict[str, dict[str, str]] = {}
        notes: list[str] = []
        for name, spec in replicas.items():
            role = check_role(name.lower() if isinstance(name, str) else name, where)
            if role in counts:
                reject(where, f"{quote(name)} names {role} a second time; keep one of them")
            count = spec.get("replicas", 1) if isinstance(spec, Mapping) else None
            if (
                isinstance(count, bool)
                or not isinstance(count, int)
                or not (0 <= count <= _MAX_REPLICAS)
            ):
                reject(f"{where}.{name}.replicas", f"{quote(count)} is not 0 to {_MAX_REPLICAS}")
            if not count:
                continue
            counts[role] = count
            container = _container(spec, f"{where}.{name}")
            env[role] = _container_env(container, notes, f"{where}.{name}")
            commands[role] = list(command) or _container_command(
                container, env[role], f"{where}.{name}"
            )
        if not counts:
            reject(where, "has no replicas; give at least one Worker")
        _check_counts(counts, where)
        ordered = [role for role in ROLES if role in counts]
        return cls({role: (None,) * counts[role] for role in ordered}, commands, env, tuple(notes))

    def place(self) -> dict[str, list[str]]:
        """Returns the cluster's jobs, with a free loopback port for each address left open."""
        ports = free_ports(sum(members.count(None) for members in self.addresses.values()))
        return {
            role: [a if a is not None else f"127.0.0.1:{ports.pop()}" for a in members]
            for role, members in self.addresses.items()
        }


def _check_counts(counts: Mapping[str, int], where: str) -> None:
    if counts.get("chief", 0) > 1:
        reject(where, f"{counts['chief']} chiefs; a cluster has one chief")
    if counts.get("ps") and not counts.get("worker"):
        reject(where, "there is a ps but no worker; add workers or drop ps")
    if not counts.get("worker") and not counts.get("chief"):
        reject(where, "there is neither a worker nor a chief; add workers")


def _load(path: str) -> list[Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        reject(path, f"cannot be read: {error.strerror or error}; give a cluster spec or a TFJob")
    except ValueError:
        reject(path, "is not text; give a cluster spec or a TFJob")
    if path.endswith(".json"):
        return [load_json(text, path)]
    import yaml  # Only here: it takes longer to load than the rest of the command.

    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1} column {mark.column + 1})" if mark else ""
        reject(path, f"is not YAML{place}; give a cluster spec or a TFJob")
    except (RecursionError, ValueError):
        reject(path, "is not YAML that can be read; give a cluster spec or a TFJob")


def _get(mapping: Any, key: str, where: str) -> Mapping[str, Any]:
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    if not isinstance(value, Mapping):
        reject(f"{where}.{key}" if ":" in where else f"{where}: {key}", "is not an object")
    return value


def _container(spec: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    template = _get(spec, "template", where)
    containers = _get(template, "spec", f"{where}.template").get("containers")
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        reject(f"{where}.template.spec.containers", f"{quote(containers)} is not a list of objects")
    for container in containers:
        if container.get("name") == "tensorflow":  # The one that gets TF_CONFIG.
            return container
    if not containers:
        reject(f"{where}.template.spec.containers", "is empty; give one named tensorflow")
    return containers[0]


def _container_env(container: Mapping[str, Any], notes: list[str], where: str) -> dict[str, str]:
    result: dict[str, str] = {}
    entries = container.get("env") or []
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        reject(f"{where}: env", f"{quote(entries)} is not a list of objects")
    for entry in entries:
        name, value = entry.get("name"), entry.get("value")
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            reject(f"{where}: env", f"{quote(name)} is not the name of a variable")
        if isinstance(value, str) and "\0" not in value:
            result[name] = _expand(value, result)
        elif "valueFrom" in entry:
            notes.append(f"{where}: env {name} comes from the cluster; it is not set here")
        else:
            reject(f"{where}: env.{name}", f"{quote(value)} is {kind(value)}, not a string")
    return result


def _container_command(
    container: Mapping[str, Any], env: Mapping[str, str], where: str
) -> list[str]:
    words: list[str] = []
    for key in ("command", "args"):
        part = container.get(key) or []
        if not isinstance(part, list) or not all(isinstance(word, str) for word in part):
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
