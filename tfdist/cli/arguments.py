"""Parses arguments; a usage error is one line, as all tfdist errors are."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from typing_extensions import override

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.option_fields import Option
from tfdist.validation import did_you_mean, not_one_of, printable, quote

# What stands for a number in help.
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_HELP_WIDTH, _HELP_COLUMN = 78, 32
# What argparse takes for a flag: not a negative number, and not a sentence.
_FLAG = re.compile(r"-[^\d. ][^ ]*\Z")


class Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would print its usage and exit.

    Flags are defined with dashes, and may be given with underscores.

    Args:
        prog: The command.
        description: What it does.
        examples: Commands that show it, at the end of its help.
        usage: What is printed instead of a list of all flags, where they are many.
    """

    def __init__(
        self, prog: str, description: str, *, examples: Sequence[str] = (), usage: str | None = None
    ) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=textwrap.fill(description, _HELP_WIDTH),
            epilog=examples_text(examples) if examples else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )

    def add_options(
        self, options: Iterable[Option], notes: Mapping[str, str] | None = None
    ) -> None:
        """Adds a flag for each option, under the heading of its group.

        Args:
            options: The options.
            notes: A line below the heading, by group.
        """
        groups: dict[str, Any] = {}
        for option in options:
            title = option.group
            if title not in groups:
                groups[title] = self.add_argument_group(title, (notes or {}).get(title))
            named: dict[str, Any] = {"help": _help_of(option), "default": argparse.SUPPRESS}
            if option.type is bool:
                groups[title].add_argument(flag(option.name), action=_Switch, **named)
            else:
                groups[title].add_argument(flag(option.name), metavar=_metavar(option), **named)

    def read_options(self, argv: Iterable[str], options: Collection[Option]) -> dict[str, Any]:
        """Reads the arguments where all flags but switches are options.

        Returns:
            The values of the options that are given, and of the other flags, by name.

        Raises:
            ConfigError: A flag is unknown, or a value is missing or not allowed.
        """
        given = vars(self.parse_args(argv))
        command = self.prog.removeprefix("tfdist ")
        for option in options:
            if option.name in given:
                where = f"{command}({flag(option.name)})"
                given[option.name] = option.read(where, given[option.name])
        return given

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Reads the arguments.

        Raises:
            ConfigError: A flag is unknown, or an argument is malformed or missing.
        """
        own, behind = self._divide(sys.argv[1:] if args is None else args, has_command=False)
        return super().parse_args(own if behind is None else [*own, "--", *behind], namespace)

    def parse_with_command(
        self, argv: Iterable[str]
    ) -> tuple[argparse.Namespace, list[str] | None]:
        """Reads flags in front of a command.

        Returns:
            The flags, and the command: what is behind `--`, or else begins with the first word that
            is neither a flag nor a flag's value. None where there is neither.

        Raises:
            ConfigError: A flag is unknown, malformed or missing.
        """
        own, command = self._divide(argv, has_command=True)
        return super().parse_args(own), command

    def _divide(
        self, argv: Iterable[str], *, has_command: bool
    ) -> tuple[list[str], list[str] | None]:
        """Returns the arguments that are this parser's, with dashes, and those that are not.

        Raises:
            ConfigError: A flag is unknown.
        """
        own: list[str] = []
        words = iter(argv)
        for word in words:
            if word == "--":
                return own, list(words)
            name, equals, value = word.partition("=")
            is_flag = _FLAG.match(name) is not None
            if has_command and not is_flag:
                return own, [word, *words]
            name = self._spelled(name) if is_flag else name
            own.append(name + equals + value)
            if is_flag and self._known(name).nargs is None and not equals:
                own += itertools.islice(words, 1)  # Its value, whatever it looks like.
        return own, None

    def _spelled(self, name: str) -> str:
        """Returns a flag with dashes, two of them in front unless it has one letter."""
        name = name.replace("_", "-")
        return f"-{name}" if f"-{name}" in self._option_string_actions else name

    def _known(self, flag: str) -> argparse.Action:
        found = self._option_string_actions.get(flag)
        if found is None:
            hint = did_you_mean(flag, self._option_string_actions)
            self.error(f"{quote(flag)} is not a flag{hint}")
        return found

    def error(self, message: str) -> NoReturn:
        """Reports a usage error.

        Raises:
            ConfigError: Always.
        """
        command = self.prog.removeprefix("tfdist ").removeprefix("python -m ")
        # argparse repeats what it does not know, line breaks and all.
        line = printable(message)
        help = "" if line.endswith("?") else f"; see '{self.prog} --help'"
        raise ConfigError(f"{command}: {line}{help}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, not_one_of(value, list(action.choices)))


class _Switch(argparse.Action):
    """A flag that is on as `--name` and off as `--no-name`; the text of a boolean is stored."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        (name,) = option_strings
        negations = (f"--no-{name[2:]}", f"--no{name[2:]}")
        super().__init__([name, *negations], dest, nargs="?", **more)

    def __call__(
        self, parser: Any, namespace: Any, value: Any, option_string: str | None = None
    ) -> None:
        is_negated = option_string != self.option_strings[0]
        if is_negated and value is not None:
            parser.error(f"{option_string} takes no value")
        setattr(namespace, self.dest, "false" if is_negated else value or "true")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN)

    @override
    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, _Switch):
            return f"--[no-]{action.option_strings[0][2:]}"
        return super()._format_action_invocation(action)


def _metavar(option: Option) -> str:
    if option.choices:
        return f"{{{','.join(option.choices)}}}"
    metavar = option.metavar or _METAVARS[option.type]
    return f"{metavar},..." if option.is_list else metavar


def _help_of(option: Option) -> str:
    """Returns what an option is for, and its default."""
    text, default = option.help.replace("%", "%%"), option.default
    if default is None:
        return text
    if option.type is bool:
        return f"{text} ({'on' if default else 'off'})"
    return f"{text} ({default:g})" if option.type is float else f"{text} ({default})"


def examples_text(examples: Sequence[str]) -> str:
    """Returns the end of a help text."""
    noun = "example" if len(examples) == 1 else "examples"
    return "\n".join([f"{noun}:", *(f"  {line}" for line in examples)])


def listing(
    command: str, noun: str, rest: str, names: Mapping[str, str], examples: Sequence[str]
) -> str:
    """Returns the help of a command whose first word is one of several names.

    Args:
        command: The command.
        noun: What the names are: `KIND`.
        rest: What comes behind a name.
        names: The names, and what each is.
        examples: Commands that show it.
    """
    width = max(map(len, names)) + 2
    lines = [f"usage: {command} {noun} {rest}", ""]
    lines += [f"  {name:{width}}{text}" for name, text in names.items()]
    lines += ["", f"See '{command} {noun} --help' for more.", "", examples_text(examples)]
    return "\n".join(lines)


def flag(name: str) -> str:
    """Returns the flag of an option's name: `--base-batch` of `base_batch`."""
    return f"--{name.replace('_', '-')}"


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
