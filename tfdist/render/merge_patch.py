"""Merges a patch into a pod as Kubernetes' strategic merge does: lists of named things by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist.validation import kind, quote, reject

# What names the items of a list; `name`, where all of them have one, in the others.
_KEYS = {
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_DIRECTIVE = "$patch"


def merged(base: Mapping[str, Any], patch: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns `base` with the fields of `patch`.

    Objects are merged field by field, and lists of named things (containers, env, volumes) item by
    item; a field that is null, and an item with `$patch: delete`, are taken out. Other lists and
    single values are replaced.

    Args:
        base: A pod's template, or a part of it.
        patch: What to change.
        where: The place of the patch, for messages.

    Raises:
        ConfigError: An object or a list is given where `base` has something else.

    Example:
        >>> pod = {"containers": [{"name": "a", "image": "x"}]}
        >>> merged(pod, {"containers": [{"name": "a", "tty": True}]}, "patch")
        {'containers': [{'name': 'a', 'image': 'x', 'tty': True}]}
    """
    result = dict(base)
    for name, value in patch.items():
        here = f"{where}.{name}"
        if name == _DIRECTIVE:
            reject(here, f"{quote(value)} is given; only items of a list take it, as delete")
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged_value(result.get(name), value, name, here)
    return result


def _merged_value(old: Any, new: Any, name: str, where: str) -> Any:
    if old is not None and (isinstance(old, (Mapping, list)) or isinstance(new, (Mapping, list))):
        wanted, given = kind(old), kind(new)
        if wanted != given:
            reject(where, f"{quote(new)} is {given}; give {wanted}")
    if isinstance(new, Mapping):
        return merged(old or {}, new, where)
    if isinstance(new, list):
        return _merged_list(old or [], new, name, where)
    return new


def _merged_list(old: list[Any], new: list[Any], name: str, where: str) -> list[Any]:
    key = _KEYS.get(name, "name")
    if not all(isinstance(item, Mapping) and key in item for item in [*old, *new]):
        return new
    result = {item[key]: item for item in old}
    for index, item in enumerate(new):
        here = f"{where}[{index}]"
        named = item[key]
        if isinstance(named, (Mapping, list)):
            reject(f"{here}.{key}", f"{quote(named)} is {kind(named)}; give a name")
        if item.get(_DIRECTIVE) == "delete":
            result.pop(named, None)
        else:
            result[named] = merged(result.get(named, {}), item, here)
    return list(result.values())
