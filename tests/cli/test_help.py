"""The help of every command: flags with dashes, and examples that the command understands."""

from __future__ import annotations

import re
import shlex

import pytest

from tfdist import cli
from tfdist.cli import arguments, render
from tfdist.cli.bench import BENCHMARKS

COMMANDS = [name for name in cli.COMMANDS if name not in ("bench", "render")]
COMMANDS += [f"bench {name}" for name in BENCHMARKS]
COMMANDS += [f"render {name}" for name in render.KINDS]
TABLES = ["", "bench", "render"]  # Of commands.


class Understood(Exception):
    """Raised where a command has read its arguments and would begin."""


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        assert cli.main([*command.split(), "--help"]) == 0
    except SystemExit as end:
        assert end.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS + TABLES)
def test_flags_have_dashes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    assert text.startswith(f"usage: tfdist {command}".rstrip())
    assert re.findall(r"--[a-z-]+_", text) == []


@pytest.mark.parametrize("command", COMMANDS + TABLES)
def test_the_examples_are_understood(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, heading, end = help_of(command, capsys).partition("\nexample")
    lines = end.splitlines()[1:]
    assert heading and lines

    def reads(method):
        def read(*given, **more):
            method(*given, **more)
            raise Understood

        return read

    for name in ("parse_args", "parse_with_command"):
        monkeypatch.setattr(arguments.Parser, name, reads(getattr(arguments.Parser, name)))
    for line in lines:
        first, *words = shlex.split(line)
        assert first == "tfdist"
        with pytest.raises(Understood):
            cli.main(words)


def test_help_of_train_has_groups_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("train", capsys)
    assert re.search(r"--per-replica-batch N +examples per replica and step \(32\)", text)
    assert re.search(r"--accumulate-steps N +batches per update of the weights \(1\)", text)
    assert re.search(r"--\[no-\]augment +augment by the dataset's recipe \(on\)", text)
    groups = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert groups[1:-1] == [
        "cluster and strategy",
        "data",
        "model",
        "optimisation",
        "checkpoints and output",
        "speed",
    ]
