"""A benchmark as a command: its flags, and what is done with the figures that it measures."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfdist.cli.arguments import Parser, listing
from tfdist.cli.output import output, picture, write_json
from tfdist.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigError
from tfdist.validation import did_you_mean, quote

_Row = TypeVar("_Row")

# Lines show up at once, also where standard output is a file or a pipe.
say = functools.partial(print, flush=True)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a benchmark has measured.

    Attributes:
        text: The figures as a table, with what is concluded from them.
        json: All of them, for `--json`.
        plot: Draws them into a file, for `--plot`.
        is_whole: False if Ctrl-C ended the benchmark before it had measured everything.
    """

    text: str
    json: Any = None
    plot: Callable[[Path], None] | None = None
    is_whole: bool = True


def _accept(parser: Parser, options: argparse.Namespace) -> None:
    """Checks nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark.

    Attributes:
        name: Its name in the command.
        summary: What it measures, in a line of the list of benchmarks.
        description: What it does, for its help.
        examples: Commands that show it, for its help.
        add_flags: Adds its flags to a parser, but for `--json` and `--plot`.
        check: Checks the flags before anything is measured; reports what is wrong by
            `parser.error`.
        measure: Measures; yields figures at the end, or after each of several parts. Raises
            KeyboardInterrupt if it was interrupted before there are any.
        writes: Which of the flags "json" and "plot" it has.
    """

    name: str
    summary: str
    description: str
    examples: Sequence[str]
    add_flags: Callable[[Parser], None]
    measure: Callable[[argparse.Namespace], Iterator[Figures]]
    check: Callable[[Parser, argparse.Namespace], None] = _accept
    writes: Sequence[str] = ()

    def run(self, command: str, argv: Sequence[str]) -> int:
        """Measures, prints and writes; returns the exit code.

        Args:
            command: The command in front of the benchmark's name, for its help.
            argv: Its arguments.

        Raises:
            ConfigError: The arguments are wrong.
            TfdistError: A run failed.
            KeyboardInterrupt: It was interrupted before anything was measured.
        """
        parser = Parser(f"{command} {self.name}", self.description, examples=self.examples)
        parser.set_defaults(json=None, plot=None)
        self.add_flags(parser)
        if "json" in self.writes:
            parser.add_argument(
                "--json", type=output, metavar="FILE", help="also write the figures"
            )
        if "plot" in self.writes:
            parser.add_argument(
                "--plot", type=picture, metavar="FILE", help="also draw them, as a PNG"
            )
        options = parser.parse_args(argv)
        self.check(parser, options)
        code = EXIT_DONE
        for figures in self.measure(options):
            say(figures.text)
            if options.json is not None:
                write_json(options.json, figures.json)
            if options.plot is not None and figures.plot is not None:
                figures.plot(options.plot)
            if not figures.is_whole:
                code = EXIT_INTERRUPTED
        return code


def run_one_of(
    command: str, benchmarks: Mapping[str, Benchmark], argv: Sequence[str], examples: Sequence[str]
) -> int:
    """Runs the benchmark that the first argument names; returns the exit code.

    Args:
        command: The command whose arguments these are.
        benchmarks: The benchmarks by name.
        argv: The name of one, and its arguments.
        examples: Commands that show some, for the help of all.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
        KeyboardInterrupt: It was interrupted before anything was measured.
    """
    if argv and argv[0] in ("-h", "--help"):
        summaries = {name: benchmark.summary for name, benchmark in benchmarks.items()}
        print(listing(command, "NAME", "[ARGUMENTS]", summaries, examples))
        return EXIT_DONE
    if not argv or argv[0] not in benchmarks:
        given = f"{quote(argv[0])} is not a benchmark" if argv else "no benchmark is given"
        hint = did_you_mean(argv[0], benchmarks) if argv else ""
        where = command.split(" ")[-1]
        raise ConfigError(f"{where}: {given}; benchmarks are {', '.join(benchmarks)}{hint}")
    return benchmarks[argv[0]].run(command, argv[1:])


def until_interrupted(
    rows: Iterable[_Row], line: Callable[[Sequence[_Row]], str]
) -> tuple[list[_Row], bool]:
    """Collects what is measured, until all of it is or Ctrl-C is pressed.

    Args:
        rows: What is measured, as it is.
        line: Returns what to print after each row, of all rows so far.

    Returns:
        The rows, and whether they are all.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before anything was measured.
    """
    found: list[_Row] = []
    try:
        for row in rows:
            found.append(row)
            say(line(found))
    except KeyboardInterrupt:
        if not found:
            raise
        say("interrupted; what was measured so far:")
        return found, False
    return found, True
