"""A workload: what it may be, whatever runs it."""

import random

import pytest

from tfdist.errors import ConfigError

from .jobs import workload


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Job"}, "render(--name): 'Job' is not"),
        ({"name": "j" * 41}, "render(--name): "),
        ({"name": "job\n"}, "render(--name): "),
        ({"namespace": "a_b"}, "render(--namespace): 'a_b'"),
        ({"image": "two words"}, "render(--image): "),
        ({"command": []}, "render: no command given; add '-- COMMAND'"),
        ({"command": ["tfdist", "train", "--overwrite"]}, "render: the command has --overwrite"),
        ({"workers": 0}, "render(--workers): 0 is below 1"),
        ({"cpus": "many"}, "render(--cpus): 'many'"),
        ({"memory": "8 GB"}, "render(--memory): '8 GB'"),
        ({"cpus": "0"}, "render(--cpus): '0' is not a quantity above 0"),
        ({"secret": "No Secret"}, "render(--secret): 'No Secret' is not the name of a Secret"),
        ({"expand": ["1"]}, "render(--expand): '1' is not the name of a variable"),
        ({"expand": ["ID"]}, "render(--expand): 'ID' is neither in the command nor in a path; "),
    ],
)
def test_bad_fields(changes, message):
    with pytest.raises(ConfigError) as caught:
        workload(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def as_kubernetes(text, env):
    """What Kubernetes makes of a word of a command (third_party/forked/golang/expansion)."""
    data, found, at = text.encode(), "", 0
    while at < len(data):
        if data[at] != ord("$") or at + 1 == len(data):
            end = data.find(b"$", at + 1) if data.find(b"$", at + 1) >= 0 else len(data)
            found, at = found + data[at:end].decode(), end
            continue
        following, close = chr(data[at + 1]), data.find(b")", at + 2)
        if following == "(" and close >= 0:
            name = data[at + 2 : close].decode()
            found, at = found + env.get(name, f"$({name})"), close + 1
        else:  # Of what follows the first byte alone, whatever it is a part of.
            found, at = found + ("$" if following == "$" else "$" + following), at + 2
    return found


def test_kubernetes_leaves_the_command_as_it_is():
    drawn = random.Random(0)
    for _ in range(2000):
        word = "".join(drawn.choice("$$$()A{} \u00e9") for _ in range(drawn.randrange(1, 9)))
        (made,) = workload(command=[word]).words
        assert as_kubernetes(made, {"A": "other"}) == word, made


def test_kubernetes_fills_in_the_variables_that_are_asked_for():
    command = ["runs/$POD/$(POD)${POD}", "$PODS$(HOME)$$", "$$POD$"]
    made = workload(command=command, expand=["POD"]).words
    found = [as_kubernetes(word, {"POD": "a$b", "HOME": "/no"}) for word in made]
    assert found == ["runs/a$b/a$ba$b", "$PODS$(HOME)$$", "$a$b$"]
