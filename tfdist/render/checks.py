"""Checks the parts of a Kubernetes manifest: names, labels, quantities, lists and objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tfdist.validation import kind, one_of, quote, reject, whole_number

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
QUANTITY = re.compile(r"(?=[0-9.]*[1-9])[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")

_T = TypeVar("_T")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_LABEL = 63
_LONGEST_OBJECT = 253
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
_SOURCES = ("secretRef", "configMapRef")
_VALUE_FROM = ("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
_AFFINITY = ("nodeAffinity", "podAffinity", "podAntiAffinity")
# Values of a file that a manifest cannot hold, or not in reasonable size: YAML's anchors multiply.
_MOST_VALUES = 100_000
_DEEPEST = 50
_VOLUME = re.compile(r"(?:(claim|secret|configmap)/)?([^/:]+):(/[^:]*?)/?(:ro)?")


def plain(where: str, value: Any) -> None:
    """Checks that a file's content is objects, lists, texts and numbers, and not without end.

    Raises:
        ConfigError: It is something else, such as a date or a list that holds itself.
    """
    waiting, seen = [(value, 0)], 0
    while waiting:
        found, depth = waiting.pop()
        seen += 1
        if seen > _MOST_VALUES or depth > _DEEPEST:
            reject(where, f"has more than {_MOST_VALUES} values, or more than {_DEEPEST} levels")
        if isinstance(found, Mapping):
            for name in found:
                string(f"{where}: a key", name)
            waiting += [(inner, depth + 1) for inner in found.values()]
        elif isinstance(found, list):
            waiting += [(inner, depth + 1) for inner in found]
        elif isinstance(found, str):
            string(where, found)
        elif found is not None and (not isinstance(found, int | float) or found != found):
            reject(where, f"{quote(found)} is {kind(found)}; write it in quotes")


def string(where: str, value: Any) -> str:
    """Returns a text.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, str):
        reject(where, f"{quote(value)} is {kind(value)}; give a string, in quotes")
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        reject(where, f"{quote(value)} is not text that a file can hold")
    return value


def label(where: str, value: Any) -> str:
    """Returns the name of something that begins with a letter, in 63 characters.

    Raises:
        ConfigError: It is none.
    """
    text = string(where, value)
    if not LABEL.fullmatch(text) or len(text) > _LONGEST_LABEL:
        reject(where, f"{quote(text)} is not a name of lower-case letters, digits and dashes")
    return text


def name(where: str, value: Any) -> str:
    """Returns the name of an object, such as a Secret, a class or an account.

    Raises:
        ConfigError: It is none.
    """
    text = string(where, value)
    if not _OBJECT.fullmatch(text) or len(text) > _LONGEST_OBJECT:
        reject(where, f"{quote(text)} is not a name of lower-case letters, digits, dashes and dots")
    return text


def quantity(where: str, value: Any) -> str:
    """Returns an amount, such as 4, 500m or 8Gi.

    Raises:
        ConfigError: It is none, or 0.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not QUANTITY.fullmatch(text):
        reject(where, f"{quote(value)} is no quantity above 0, such as 4, 500m or 8Gi")
    return text


def key(where: str, value: Any) -> str:
    """Returns the name of a label, an annotation or a resource, such as `nvidia.com/gpu`.

    Raises:
        ConfigError: It is none.
    """
    text = string(where, value)
    prefix, slash, word = text.rpartition("/")
    good = _WORD.fullmatch(word) and len(word) <= _LONGEST_LABEL
    if not good or (slash and (not _OBJECT.fullmatch(prefix) or len(prefix) > _LONGEST_OBJECT)):
        reject(where, f"{quote(text)} is not a key such as team or example.com/team")
    return text


def resource(where: str, value: Any) -> str:
    """Returns the name of a device plugin's resource.

    Raises:
        ConfigError: It is none.
    """
    text = key(where, value)
    if "/" not in text:
        reject(where, f"{quote(text)} is not a resource such as nvidia.com/gpu or amd.com/gpu")
    return text


def members(where: str, value: Any, allowed: Collection[str]) -> Mapping[str, Any]:
    """Returns an object that has no keys but the allowed ones.

    Raises:
        ConfigError: It is none, or has others.
    """
    given = mapping(where, value)
    for found in given:
        if found not in allowed:
            reject(where, f"{quote(found)} is not a key here; allowed: {', '.join(allowed)}")
    return given


def mapping(where: str, value: Any) -> Mapping[str, Any]:
    """Returns an object.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, Mapping) or not all(isinstance(found, str) for found in value):
        reject(where, f"{quote(value)} is {kind(value)}; give an object of names and values")
    return value


def each(check: Callable[[str, Any], _T]) -> Callable[[str, Any], list[_T]]:
    """Returns the check of a list whose items pass `check`."""

    def check_list(where: str, value: Any) -> list[_T]:
        if not isinstance(value, list):
            reject(where, f"{quote(value)} is {kind(value)}; give a list")
        return [check(f"{where}[{index}]", item) for index, item in enumerate(value)]

    return check_list


def labels(where: str, value: Any) -> dict[str, str]:
    """Returns labels, or the labels that a node has to have.

    Raises:
        ConfigError: A key or a value is none of a label.
    """
    given = strings(where, value)
    for found, text in given.items():
        if text and (not _WORD.fullmatch(text) or len(text) > _LONGEST_LABEL):
            reject(
                f"{where}.{found}",
                f"{quote(text)} is not a label's value: up to {_LONGEST_LABEL} letters, digits, "
                "dashes, dots and underscores",
            )
    return given


def strings(where: str, value: Any) -> dict[str, str]:
    """Returns texts under the keys of annotations.

    Raises:
        ConfigError: A key is none, or a value is no string.
    """
    given = mapping(where, value)
    return {key(where, found): string(f"{where}.{found}", text) for found, text in given.items()}


def env(reserved: Collection[str]) -> Callable[[str, Any], dict[str, Any]]:
    """Returns the check of variables, each a string or an object such as `{secretKeyRef: ...}`.

    Args:
        reserved: The names that may not be given.
    """

    def check(where: str, value: Any) -> dict[str, Any]:
        given = dict(mapping(where, value))
        for found, text in given.items():
            here = f"{where}.{found}"
            if not _VARIABLE.fullmatch(found):
                reject(where, f"{quote(found)} is not the name of a variable")
            if found in reserved:
                reject(here, "is what tells a task its place in the cluster; leave it out")
            if not isinstance(text, Mapping):
                string(here, text)
                continue
            reference = members(here, text, _VALUE_FROM)
            if len(reference) != 1:
                reject(here, f"has {len(reference)} sources; give one of {', '.join(_VALUE_FROM)}")
            for source, fields in reference.items():
                mapping(f"{here}.{source}", fields)
        return given

    return check


def env_source(where: str, value: Any) -> Mapping[str, Any]:
    """Returns a Secret or ConfigMap whose keys become variables, as in `envFrom`.

    Raises:
        ConfigError: It names none.
    """
    given = members(where, value, (*_SOURCES, "prefix"))
    found = [source for source in _SOURCES if source in given]
    if len(found) != 1:
        reject(where, f"{quote(dict(given))} names not one of {' and '.join(_SOURCES)}")
    here = f"{where}.{found[0]}"
    name(f"{here}.name", members(here, given[found[0]], ("name", "optional")).get("name"))
    return given


def toleration(where: str, value: Any) -> Mapping[str, Any]:
    """Returns a taint of nodes that pods may run on.

    Raises:
        ConfigError: It is malformed.
    """
    given = members(where, value, _TOLERATION)
    operator = one_of(f"{where}.operator", given.get("operator", "Equal"), ("Exists", "Equal"))
    if "effect" in given:
        one_of(f"{where}.effect", given["effect"], _EFFECTS)
    if "key" in given:
        key(f"{where}.key", given["key"])
    elif operator != "Exists":
        reject(where, "has no key; give one, or operator: Exists for every taint")
    if "value" in given:
        string(f"{where}.value", given["value"])
        if operator == "Exists":
            reject(f"{where}.value", "is given; operator Exists takes none")
    if "tolerationSeconds" in given:
        whole_number(f"{where}.tolerationSeconds", given["tolerationSeconds"], least=0)
        if given.get("effect") != "NoExecute":
            reject(f"{where}.tolerationSeconds", "is given; it needs effect NoExecute")
    return given


def affinity(where: str, value: Any) -> Mapping[str, Any]:
    """Returns where pods are to run, in Kubernetes' words.

    Raises:
        ConfigError: It has an unknown key.
    """
    return members(where, value, _AFFINITY)


def volume(where: str, value: Any) -> tuple[str, str, str, bool]:
    """Returns kind, name and mount point of `CLAIM:/PATH`, and whether it is only read.

    Raises:
        ConfigError: It is malformed.
    """
    text = string(where, value)
    match = _VOLUME.fullmatch(text)
    given = f"{match[1] or 'claim'}-{match[2]}" if match else ""
    if not match or not LABEL.fullmatch(given) or len(given) > _LONGEST_LABEL or match[3] == "/":
        reject(
            where,
            f"{quote(text)} is not like CLAIM:/PATH, secret/NAME:/PATH or configmap/NAME:/PATH, "
            "with :ro at the end where it is only read",
        )
    return match[1] or "claim", match[2], match[3], bool(match[4])
