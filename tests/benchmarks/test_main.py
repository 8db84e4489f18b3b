"""`python -m benchmarks`: its help, its examples, its mistakes, and where it says to find it."""

from __future__ import annotations

import re
import shlex

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from tfdist import cli
from tfdist.cli import arguments


class Understood(Exception):
    """Raised where a command has read its arguments and would begin."""


@pytest.mark.parametrize("name", ["", *BENCHMARKS])
def test_help_has_flags_with_dashes_and_examples_that_are_understood(name, capsys, monkeypatch):
    try:
        assert main([*name.split(), "--help"]) == 0
    except SystemExit as end:
        assert end.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python -m benchmarks {name}".rstrip())
    assert re.findall(r"--[a-z-]+_", text) == []
    _, heading, end = text.partition("\nexample")
    lines = end.splitlines()[1:]
    assert heading and lines

    def read(self, *given):
        parse(self, *given)
        raise Understood

    parse = arguments.Parser.parse_args
    monkeypatch.setattr(arguments.Parser, "parse_args", read)
    for line in lines:
        *command, _ = words = shlex.split(line)
        assert command[:3] == ["python", "-m", "benchmarks"]
        with pytest.raises(Understood):
            main(words[3:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "benchmarks: no benchmark is given; benchmarks are peers, "),
        ("growt", "benchmarks: 'growt' is not a benchmark; benchmarks are peers, "),
        ("peers --pairs 0", "benchmarks peers: --pairs 0: allowed: 1 or more; see 'python -m "),
        ("loss --times 0", "benchmarks loss: --times 0: allowed: 1 or more; see 'python -m "),
        ("growth --only x", "benchmarks growth: argument --only: 'x' is given"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"tfdist: {message}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("name", BENCHMARKS)
def test_tfdist_says_where_they_are(name, capsys):
    assert cli.main(["bench", name]) == 2
    error = capsys.readouterr().err
    assert f"run 'python -m benchmarks {name}' in a checkout" in error
    assert error.count("\n") == 1
