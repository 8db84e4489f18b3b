"""A workload: what it may be, whatever runs it."""

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
    ],
)
def test_bad_fields(changes, message):
    with pytest.raises(ConfigError) as caught:
        workload(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
