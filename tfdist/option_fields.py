"""Describes options as fields of a dataclass, with help and limits, and reads them from text."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

from tfdist.validation import LARGEST, number, one_of, quote, reject, whole_number

_METADATA = "option"
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """An option: a field of a dataclass, and what its type and default do not show.

    Attributes:
        group: The heading under which help lists it.
        help: What it is for.
        choices: The words that are allowed; any if empty.
        least: The inclusive lower limit of a number; of an integer, 1 if None.
        above: The exclusive lower limit of a number.
        most: The inclusive upper limit of a number.
        metavar: What stands for its value in help, if not what usually does for its type.
        name: The field's name.
        type: The type of its value, or of each value of a list.
        is_list: Whether it has several values, with commas between them.
        default: The field's default.
    """

    group: str
    help: str
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
            least, most = 1 if self.least is None else int(self.least), int(self.most or LARGEST)
            return whole_number(where, _converted(int, text), least=least, most=most)
        if self.type is float:
            limits = {"above": self.above, "least": self.least, "most": self.most}
            return number(where, _converted(float, text), **limits)
        return text


def option(
    group: str,
    help: str,
    default: Any = None,
    *,
    factory: Callable[[], Any] | None = None,
    **more: Any,
) -> Any:
    """Returns a field of a dataclass that is an option.

    Args:
        group: The heading under which help lists it.
        help: What it is for.
        default: Its default.
        factory: Makes the default, in the place of `default`.
        more: Further attributes of `Option`.
    """
    metadata = {_METADATA: Option(group=group, help=help, **more)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(holder: type) -> list[Option]:
    """Returns the options that are fields of a dataclass, in their order."""
    hints = typing.get_type_hints(holder)
    found = []
    for field in dataclasses.fields(holder):
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not types.NoneType)
        is_list = typing.get_origin(kind) is not None
        make = field.default_factory
        found.append(
            dataclasses.replace(
                field.metadata[_METADATA],
                name=field.name,
                type=typing.get_args(kind)[0] if is_list else kind,
                is_list=is_list,
                default=field.default if make is dataclasses.MISSING else make(),
            )
        )
    return found


def _converted(kind: Callable[[str], Any], text: str) -> Any:
    """Returns the number; where it is not one, the text, which the check then refuses."""
    try:
        return kind(text)
    except ValueError:
        return text
