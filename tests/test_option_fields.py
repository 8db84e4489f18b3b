"""Options as fields of a dataclass: what help needs, and what a text is read as."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tfdist.errors import ConfigError
from tfdist.option_fields import option, options_of


@dataclasses.dataclass
class Run:
    epochs: int = option("passes over the data", 10, most=100, group="length")
    rate: float | None = option("the rate", above=0, group="rate")
    rule: str = option("the rule", "linear", choices=("linear", "none"))
    tasks: Sequence[str] | None = option("some tasks", group="tasks")
    counts: list[int] | None = option("some numbers")
    augment: bool = option("augment", True, group="length")
    wait: float = option("seconds", 3.0)


OPTIONS = {each.name: each for each in options_of(Run)}


def test_an_option_has_the_type_and_the_default_of_its_field():
    found = [(each.type, each.is_list, each.default) for each in OPTIONS.values()]
    assert found == [
        (int, False, 10),
        (float, False, None),
        (str, False, "linear"),
        (str, True, None),
        (int, True, None),
        (bool, False, True),
        (float, False, 3.0),
    ]
    groups = [each.group for each in OPTIONS.values()]
    assert groups == ["length", "rate", "rate", "tasks", "tasks", "length", "length"]
    assert Run() == Run(10, None, "linear", None, None, True, 3.0)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "100", 100),
        ("rate", "1e-3", 0.001),
        ("rule", "none", "none"),
        ("tasks", "worker/0, worker/1", ["worker/0", "worker/1"]),
        ("tasks", "", []),
        ("counts", "1,2", [1, 2]),
        ("augment", "False", False),
        ("augment", "1", True),
        ("wait", "0", 0.0),
    ],
)
def test_a_text_is_read(name, text, value):
    assert OPTIONS[name].read("run", text) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("epochs", "0", "a whole number of 1 or more"),
        ("epochs", "101", "a whole number up to 100"),
        ("epochs", "1.5", "a whole number of 1 or more"),
        ("rate", "0", "a finite number above 0 and at most 1e+24"),
        ("rate", "nan", "a finite number above 0 and at most 1e+24"),
        ("rule", "liner", "linear, none; did you mean 'linear'?"),
        ("counts", "1,x", "a whole number of 1 or more"),
        ("augment", "maybe", "true or false"),
        ("wait", "-1", "a finite number at least 0 and at most 1e+24"),
    ],
)
def test_what_is_not_allowed_is_one_line(name, text, allowed):
    with pytest.raises(ConfigError) as error:
        OPTIONS[name].read(f"run(--{name})", text)
    assert str(error.value).startswith(f"run(--{name}): ")
    assert str(error.value).endswith(f" is given; allowed: {allowed}")
