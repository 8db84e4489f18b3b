"""Checks the parts of a Kubernetes manifest: texts by their pattern, objects by their keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tfdist.validation import kind, one_of, quote, reject, whole_number

_T = TypeVar("_T")
# Returns the value, or raises ConfigError, which names the place.
Check = Callable[[str, Any], _T]

# Values of a file that a manifest cannot hold, or not in reasonable size: YAML's anchors multiply.
_MOST_VALUES = 100_000
_DEEPEST = 50


def plain(where: str, value: Any) -> None:
    """Checks that a file's content is objects, lists, texts and numbers, and of reasonable size.

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
        ConfigError: It is not a text.
    """
    if not isinstance(value, str):
        reject(where, f"{quote(value)} is {kind(value)}; give a string, in quotes")
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        reject(where, f"{quote(value)} is not text that a file can hold")
    return value


class Pattern:
    """The check of a text by its form.

    Args:
        regex: What the whole text has to match.
        wanted: What such a text is, for messages.
    """

    def __init__(self, regex: str, wanted: str) -> None:
        self._regex = re.compile(regex)
        self.wanted = wanted

    def fits(self, text: str) -> bool:
        """Returns whether a text has the form."""
        return self._regex.fullmatch(text) is not None

    def __call__(self, where: str, value: Any) -> str:
        """Returns a text that has the form.

        Raises:
            ConfigError: It does not have it, or is not a text.
        """
        text = string(where, value)
        if not self.fits(text):
            reject(where, f"{quote(text)} is not {self.wanted}")
        return text


_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_OBJECT = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_WORD = r"(?=.{1,63}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_PREFIX = rf"(?=[^/]{{1,253}}/){_OBJECT}/"
_VOLUME = re.compile(r"(?:(claim|secret|configmap)/)?([^/:]+):(/[^:]*?)/?(:ro)?")

label = Pattern(rf"(?=.{{1,63}}\Z){_LABEL}", "a name of lower-case letters, digits and dashes")
name = Pattern(
    rf"(?=.{{1,253}}\Z){_OBJECT}", "a name of lower-case letters, digits, dashes and dots"
)
key = Pattern(rf"({_PREFIX})?{_WORD}", "a key such as team or example.com/team")
resource = Pattern(rf"{_PREFIX}{_WORD}", "a resource such as nvidia.com/gpu or amd.com/gpu")
amount = Pattern(
    r"(?=[0-9.]*[1-9])[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?",
    "a quantity above 0, such as 4, 500m or 8Gi",
)
_label_value = Pattern(
    rf"({_WORD})?", "a label's value: up to 63 letters, digits, dashes, dots and underscores"
)
_variable = Pattern(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable")


def quantity(where: str, value: Any) -> str:
    """Returns an amount, such as 4, 500m or 8Gi, as text.

    Raises:
        ConfigError: It is not an amount, or 0.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not amount.fits(text):
        reject(where, f"{quote(value)} is not {amount.wanted}")
    return text


def anything(where: str, value: Any) -> Any:
    """Returns the value."""
    del where
    return value


def mapping(where: str, value: Any) -> Mapping[str, Any]:
    """Returns an object.

    Raises:
        ConfigError: It is not an object.
    """
    if not isinstance(value, Mapping) or not all(isinstance(found, str) for found in value):
        reject(where, f"{quote(value)} is {kind(value)}; give an object of names and values")
    return value


def members(fields: Mapping[str, Check[Any]]) -> Check[dict[str, Any]]:
    """Returns the check of an object that has no keys but those of a table.

    Args:
        fields: The check of each key's value.
    """

    def check(where: str, value: Any) -> dict[str, Any]:
        given = mapping(where, value)
        for found in given:
            if found not in fields:
                reject(where, f"{quote(found)} is not a key here; allowed: {', '.join(fields)}")
        return {found: fields[found](f"{where}.{found}", inner) for found, inner in given.items()}

    return check


def entries(of_key: Check[str], of_value: Check[_T]) -> Check[dict[str, _T]]:
    """Returns the check of an object whose keys and values each pass one check."""

    def check(where: str, value: Any) -> dict[str, _T]:
        given = mapping(where, value)
        return {
            of_key(where, found): of_value(f"{where}.{found}", inner)
            for found, inner in given.items()
        }

    return check


def each(check: Check[_T]) -> Check[list[_T]]:
    """Returns the check of a list whose items pass `check`."""

    def check_list(where: str, value: Any) -> list[_T]:
        if not isinstance(value, list):
            reject(where, f"{quote(value)} is {kind(value)}; give a list")
        return [check(f"{where}[{index}]", item) for index, item in enumerate(value)]

    return check_list


def choice(*allowed: str) -> Check[str]:
    """Returns the check of one of a few texts."""
    return lambda where, value: one_of(where, value, allowed)


def at_least(least: int) -> Check[int]:
    """Returns the check of a whole number."""
    return lambda where, value: whole_number(where, value, least=least)


# Labels, or the labels that a node has to have; and annotations.
labels = entries(key, _label_value)
texts = entries(key, string)
affinity = members(dict.fromkeys(("nodeAffinity", "podAffinity", "podAntiAffinity"), anything))

_SOURCES = ("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
_reference = members(dict.fromkeys(_SOURCES, mapping))
_named = members({"name": name, "optional": anything})
_source = members({"secretRef": _named, "configMapRef": _named, "prefix": anything})
_toleration = members(
    {
        "key": key,
        "operator": choice("Exists", "Equal"),
        "value": string,
        "effect": choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerationSeconds": at_least(0),
    }
)


def env(reserved: Collection[str]) -> Check[dict[str, Any]]:
    """Returns the check of variables, each a string or an object such as `{secretKeyRef: ...}`.

    Args:
        reserved: The names that may not be given.
    """

    def of_variable(where: str, value: Any) -> Any:
        if where.rpartition(".")[2] in reserved:
            reject(where, "tells a task its place in the cluster; leave it out")
        if not isinstance(value, Mapping):
            return string(where, value)
        reference = _reference(where, value)
        if len(reference) != 1:
            reject(where, f"has {len(reference)} sources; give one of {', '.join(_SOURCES)}")
        return reference

    return entries(_variable, of_variable)


def env_source(where: str, value: Any) -> dict[str, Any]:
    """Returns a Secret or ConfigMap whose keys become variables, as in `envFrom`.

    Raises:
        ConfigError: It is malformed.
    """
    given = _source(where, value)
    found = [source for source in given if source != "prefix"]
    if len(found) != 1:
        reject(where, f"{quote(given)} does not name one of secretRef and configMapRef")
    if "name" not in given[found[0]]:
        reject(f"{where}.{found[0]}.name", "missing; give the object's name")
    return given


def toleration(where: str, value: Any) -> dict[str, Any]:
    """Returns a taint of nodes that pods may run on.

    Raises:
        ConfigError: It is malformed.
    """
    given = _toleration(where, value)
    exists = given.get("operator") == "Exists"
    if "key" not in given and not exists:
        reject(where, "has no key; give one, or operator: Exists for every taint")
    if "value" in given and exists:
        reject(f"{where}.value", "is given; operator Exists takes none")
    if "tolerationSeconds" in given and given.get("effect") != "NoExecute":
        reject(f"{where}.tolerationSeconds", "is given; it needs effect NoExecute")
    return given


def volume(where: str, value: Any) -> tuple[str, str, str, bool]:
    """Returns kind, name and mount point of `CLAIM:/PATH`, and whether it is only read.

    Raises:
        ConfigError: It is malformed.
    """
    text = string(where, value)
    match = _VOLUME.fullmatch(text)
    if not match or not label.fits(f"{match[1] or 'claim'}-{match[2]}") or match[3] == "/":
        reject(
            where,
            f"{quote(text)} is not like CLAIM:/PATH, secret/NAME:/PATH or configmap/NAME:/PATH, "
            "with :ro at the end where it is only read",
        )
    return match[1] or "claim", match[2], match[3], bool(match[4])
