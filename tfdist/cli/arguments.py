"""Parses arguments; a usage error is one line, as all tfdist errors are."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.validation import did_you_mean, not_one_of, quote

# What argparse takes for a flag: not a negative number, and not a sentence.
_FLAG = re.compile(r"-[^\d. ][^ ]*\Z")


class Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would print its usage and exit."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Reads the arguments.

        Raises:
            ConfigError: A flag is unknown, or an argument is malformed or missing.
        """
        words = sys.argv[1:] if args is None else list(args)
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if _FLAG.match(name) and name not in self._option_string_actions:
                hint = did_you_mean(name, self._option_string_actions)
                self.error(f"{quote(name)} is not a flag{hint}")
        return super().parse_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Reports a usage error.

        Raises:
            ConfigError: always.
        """
        command = self.prog.removeprefix("tfdist ")
        # argparse repeats what it does not know, line breaks and all.
        line = "".join(c if c.isprintable() else "?" for c in message)
        help = "" if line.endswith("?") else f"; see '{self.prog} --help'"
        raise ConfigError(f"{command}: {line}{help}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, not_one_of(value, list(action.choices)))


def cut_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Returns the arguments before `--`, and the command behind it; None where there is no `--`."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def seconds(text: str) -> float:
    """Reads a duration, of 0 to 10,000,000 seconds.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    try:
        return validation.seconds(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Reads an integer of 0 or more.

    Raises:
        argparse.ArgumentTypeError: it is not one.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not an integer, 0 or more")
    return int(text)
