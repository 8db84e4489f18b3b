"""Where flags end and a command begins."""

from __future__ import annotations

import pytest

from tfdist.cli.arguments import Parser, count
from tfdist.errors import ConfigError


def parser() -> Parser:
    made = Parser("tfdist try", "")
    made.add_argument("--workers", type=count)
    made.add_argument("--env-vars", action="append", default=[])
    made.add_argument("--report", action="store_true")
    made.add_argument("-v", action="store_true")
    return made


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("--workers 2 python x.py", "python x.py"),
        ("--workers 2 -- python x.py", "python x.py"),
        ("--workers=2 python --workers 3 -- x", "python --workers 3 -- x"),
        ("--report -v python x.py --typo", "python x.py --typo"),
        ("--env-vars A=1 --env-vars B python", "python"),
        ("-- --typo x", "--typo x"),
        ("--report -- -- x", "-- x"),
        ("- x", "- x"),
        ("--report -1 x", "-1 x"),
        ("--workers 2 --", ""),
    ],
)
def test_the_command_begins_behind_the_flags(argv: str, command: str) -> None:
    assert parser().parse_with_command(argv.split())[1] == command.split()


def test_flags_of_the_command_are_its_own() -> None:
    args, _ = parser().parse_with_command(["--workers", "2", "x", "--workers", "3", "--report"])
    assert args.workers == 2 and not args.report


def test_dashes_and_underscores_are_the_same_in_flags_alone() -> None:
    argv = ["--env_vars", "A_B=1", "--env-vars=C_D=x_y", "--", "--env_vars", "a_b"]
    args, command = parser().parse_with_command(argv)
    assert args.env_vars == ["A_B=1", "C_D=x_y"] and command == ["--env_vars", "a_b"]
    _, command = parser().parse_with_command(["--report", "a_b", "--env_vars"])
    assert command == ["a_b", "--env_vars"]
    assert parser().parse_args(["--env_vars=--a_b", "--env-vars", "c_d"]).env_vars == [
        "--a_b",
        "c_d",
    ]


def test_there_may_be_no_command() -> None:
    assert parser().parse_with_command(["--workers", "2"])[1] is None


def test_a_sentence_is_no_flag() -> None:
    assert parser().parse_args(["--env-vars", "--a sentence"]).env_vars == ["--a sentence"]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ("--workers 2 --typo x", "try: '--typo' is not a flag; see 'tfdist try --help'"),
        ("--wokers=2 x", "'--wokers' is not a flag; did you mean '--workers'?"),
        ("--workers -- x", "argument --workers: expected one argument"),
        ("--workers --report x", "argument --workers: expected one argument"),
        ("--workers", "argument --workers: expected one argument"),
        ("--report=3 x", "ignored explicit argument '3'"),
        ("--workers two x", "'two' is not an integer"),
    ],
)
def test_a_mistake_in_front_of_the_command_is_told(argv: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parser().parse_with_command(argv.split())
    assert problem in str(error.value)


def test_what_is_too_much_is_told_where_there_is_no_command() -> None:
    with pytest.raises(ConfigError, match="unrecognized arguments: .*more"):
        parser().parse_args(["--workers", "2", "--", "more"])
