"""Describes options as fields of a dataclass, with help and limits, and reads them from text."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

from tfdist.validation import LARGEST, number, one_of, quote, reject, whole_number

# The largest number, so that arithmetic with it ends.
_MOST = 1e24
_KEY = "option"
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """An option: a field of a dataclass, and what its type and default do not show.

    Attributes:
        help: What it is for.
        group: The heading under which help lists it; that of the field before if empty.
        choices: The words that are allowed; any if empty.
        least: The inclusive lower limit; if None, 1 for integers and 0 for other numbers.
        above: The exclusive lower limit.
        most: The inclusive upper limit.
        metavar: The word for its value in help; by default one for its type.
        name: The field's name.
        type: The type of its value, or of each value of a list.
        is_list: Whether it has several values, with commas between them.
        default: The field's default.
    """

    help: str
    group: str = ""
    choices: Collection[str] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    metavar: str | None = None
    name: str = ""
    type: Any = str
    is_list: bool = False
    default: Any = None

    def read(self, where: str, text: str) -> Any:
        """Returns the value that a text stands for.

        Args:
            where: What was given, such as `train(--epochs)`, for messages.
            text: The text.

        Raises:
            ConfigError: It is not of the option's type, or out of its limits.
        """
        if self.is_list:
            return [self._read(where, part.strip()) for part in text.split(",") if text]
        return self._read(where, text)

    def _read(self, where: str, text: str) -> Any:
        if self.choices:
            return one_of(where, text, self.choices)
        if self.type is bool:
            if text.lower() not in _WORDS:
                reject(where, f"{quote(text)} is given; allowed: true or false")
            return _WORDS[text.lower()]
        if self.type is int:
            least = 1 if self.least is None else int(self.least)
            most = int(self.most or LARGEST)
            return whole_number(where, _converted(int, text), least=least, most=most)
        if self.type is float:
            bound = {"least": self.least or 0.0} if self.above is None else {"above": self.above}
            return number(where, _converted(float, text), **bound, most=self.most or _MOST)
        return text


def option(help: str, default: Any = None, **more: Any) -> Any:
    """Returns a field of a dataclass that is an option.

    Args:
        help: What it is for.
        default: Its default.
        more: Further attributes of `Option`.
    """
    return dataclasses.field(default=default, metadata={_KEY: Option(help=help, **more)})


def options_of(holder: type) -> list[Option]:
    """Returns the options that are fields of a dataclass, in their order."""
    hints, group = typing.get_type_hints(holder), ""
    found = []
    for field in dataclasses.fields(holder):
        described, kind = field.metadata[_KEY], hints[field.name]
        group = described.group or group
        if isinstance(kind, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not types.NoneType)
        is_list = typing.get_origin(kind) is not None
        resolved = {"type": typing.get_args(kind)[0] if is_list else kind, "is_list": is_list}
        resolved |= {"name": field.name, "group": group, "default": field.default}
        found.append(dataclasses.replace(described, **resolved))
    return found


def _converted(kind: Callable[[str], Any], text: str) -> Any:
    """Returns the number; where it is not one, the text, which the check then refuses."""
    try:
        return kind(text)
    except ValueError:
        return text
