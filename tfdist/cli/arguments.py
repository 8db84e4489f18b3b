"""Parses arguments; a usage error is one line, as all tfdist errors are."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.validation import quote


class Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would print its usage and exit."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Reports a usage error.

        Raises:
            ConfigError: always.
        """
        command = self.prog.removeprefix("tfdist ")
        # argparse repeats what it does not know, line breaks and all.
        line = "".join(c if c.isprintable() else "?" for c in message)
        raise ConfigError(f"{command}: {line}; see '{self.prog} --help'")


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
