"""Expands host lists in Slurm's notation: `node[9-10,12],gpu[001-003]`."""

from __future__ import annotations

import itertools
import math
import re

from tfdist.validation import quote, reject

_MAX_HOSTS = 100_000
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


def expand_hostlist(text: str, where: str = "host list") -> list[str]:
    """Returns the hosts of a list, in the order in which it names them.

    Slurm counts nodes in this order, so it must not be sorted: in
    `node[9-10]`, node9 comes first. Zeros in front are kept, a name may hold
    several brackets, and text may follow a bracket. Of several brackets the
    last one varies fastest, then the first, the second, and so on, as in
    Slurm (`scontrol show hostnames`).

    Args:
        text: Such as `node[9-10,12],gpu[001-003]`.
        where: The field that holds it, for messages.

    Raises:
        ConfigError: It is not a host list.
    """
    hosts: list[str] = []
    for part in _split(text, where):
        hosts += _expand(part, text, where)
        if len(hosts) > _MAX_HOSTS:
            reject(where, f"{quote(text)} names more than {_MAX_HOSTS} hosts")
    return hosts


def _split(text: str, where: str) -> list[str]:
    """Splits at the commas outside brackets."""
    parts = [""]
    depth = 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            reject(where, f"{quote(text)} has brackets that do not match")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        reject(where, f"{quote(text)} has brackets that do not match")
    parts = [part.strip() for part in parts]
    if not all(parts):
        reject(where, f"{quote(text)} holds an empty host name")
    return parts


def _expand(part: str, text: str, where: str) -> list[str]:
    words, brackets = [], []
    rest = part
    while "[" in rest:
        word, _, rest = rest.partition("[")
        body, _, rest = rest.partition("]")
        words.append(word)
        brackets.append(_numbers(body, text, where))
        if math.prod(map(len, brackets)) > _MAX_HOSTS:
            reject(where, f"{quote(text)} names more than {_MAX_HOSTS} hosts")
    # The last bracket varies fastest, then the first, the second, and so on.
    *leading, last = brackets or [[""]]
    hosts = []
    for numbers in itertools.product(*reversed(leading)):
        for final in last:
            pairs = zip(words, [*reversed(numbers), final], strict=False)
            hosts.append("".join(word + number for word, number in pairs) + rest)
    return hosts


def _numbers(body: str, text: str, where: str) -> list[str]:
    """Returns the numbers in a bracket, as text with leading zeros."""
    found: list[str] = []
    for piece in body.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if not match or any(len(number) > 9 for number in match.groups() if number):
            reject(where, f"{quote(text)} has a bad range {quote(piece)}; such as 'node[9-10,12]'")
        first, last = match.group(1), match.group(2) or match.group(1)
        count = int(last) - int(first) + 1
        if count < 1:
            reject(where, f"{quote(text)} has a range that runs backwards: {quote(piece)}")
        if len(found) + count > _MAX_HOSTS:
            reject(where, f"{quote(text)} names more than {_MAX_HOSTS} hosts")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found
