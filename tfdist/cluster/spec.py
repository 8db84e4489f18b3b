"""Checks the jobs of a cluster: roles, addresses and valid combinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.cluster.address import address_key, check_address
from tfdist.validation import kind, plural, quote, reject

ROLES = ("chief", "worker", "ps", "evaluator")
_ALIASES = {"master": "chief"}
_ROLES_TEXT = "roles are chief, worker, ps and evaluator"

Jobs = dict[str, tuple[str, ...]]


def check_role(value: Any, where: str) -> str:
    """Returns the role that `value` names; `master` is the old name of chief.

    Raises:
        ConfigError: It is not a role.
    """
    if not isinstance(value, str):
        reject(where, f"{quote(value)} is {kind(value)}, not a role; {_ROLES_TEXT}")
    role = _ALIASES.get(value, value)
    if role not in ROLES:
        reject(where, f"{quote(value)} is not a role; {_ROLES_TEXT}")
    return role


def check_jobs(spec: Any, where: str) -> Jobs:
    """Returns the jobs of a cluster spec, in the order of `ROLES`.

    Args:
        spec: A mapping from role to list of addresses.
        where: The field that holds it, for the message.

    Raises:
        ConfigError: Something in it cannot work; the message names the field.
    """
    if not isinstance(spec, Mapping):
        reject(where, f"{quote(spec)} is {kind(spec)}, not an object of role: [addresses]")
    if not spec:
        reject(where, "is empty; give at least one job, such as {'worker': ['host:2222']}")
    found: Jobs = {}
    spelled: dict[str, str] = {}
    empty: list[str] = []
    for name, members in spec.items():
        role = check_role(name, where)
        if role in spelled:
            reject(where, f"{spelled[role]} and {name} are the same role; keep one of them")
        spelled[role] = name
        if isinstance(members, list | tuple) and not members and len(spec) > 1:
            empty.append(f"{where}.{name}")  # Legal: a job that has no tasks.
        else:
            found[role] = _check_members(members, f"{where}.{name}")
    if not found:
        reject(empty[0], "is empty, as are all others; give at least one 'host:port'")
    _check_distinct(found, spelled, where)
    if len(found.get("chief", ())) > 1:
        count = len(found["chief"])
        reject(f"{where}.{spelled['chief']}", f"has {count} tasks; a cluster has one chief")
    if "ps" in found and "worker" not in found:
        reject(f"{where}.ps", "there is a ps but no worker; add worker addresses or drop ps")
    return {role: found[role] for role in ROLES if role in found}


def check_index(value: Any, role: str, jobs: Jobs, where: str, jobs_where: str) -> int:
    """Returns `value` if it is the index of a task of `role`.

    Raises:
        ConfigError: It is not an integer or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        hint = ""
        if isinstance(value, str) and value.isascii() and value.isdigit():
            hint = ", without quotes"
        reject(where, f"{quote(value)} is {kind(value)}, not an integer; give 0 or more{hint}")
    # TFJob leaves evaluators out of the cluster, so there is no count to check against.
    count = len(jobs.get(role, ()))
    if role == "evaluator" and not count:
        if value < 0:
            reject(where, f"{quote(value)} is out of range; give 0 or more")
    elif not 0 <= value < count:
        allowed = "0" if count == 1 else f"0 to {count - 1}"
        tasks = plural(count, "task")
        given = quote(value)
        reject(where, f"{given} is out of range; {jobs_where}.{role} has {tasks} ({allowed})")
    return value


def _check_members(members: Any, where: str) -> tuple[str, ...]:
    if isinstance(members, Mapping):
        reject(
            where,
            "is a sparse map of index to address; every task must know all addresses: "
            "give a list (TFJob: drop enableDynamicWorker)",
        )
    if not isinstance(members, list | tuple):
        reject(where, f"{quote(members)} is {kind(members)}, not a list of 'host:port'")
    if not members:
        reject(where, "is empty; give at least one 'host:port' or drop the job")
    return tuple(check_address(member, f"{where}[{i}]") for i, member in enumerate(members))


def _check_distinct(jobs: Jobs, spelled: dict[str, str], where: str) -> None:
    seen: dict[tuple[str, int], str] = {}
    for role, members in jobs.items():
        for i, address in enumerate(members):
            field = f"{spelled[role]}[{i}]"
            first = seen.setdefault(address_key(address), field)
            if first != field:
                problem = f"{quote(address)} is also {first}; give every task its own address"
                reject(f"{where}.{field}", problem)
