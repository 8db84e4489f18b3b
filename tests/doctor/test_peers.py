"""Which tasks have another directory than the chief."""

from __future__ import annotations

import pytest

from tfdist.doctor.peers import of_directory

OWN = "has a directory of its own, without the file of chief/0"
UNSEEN = "has written a file there that chief/0 does not see"
FULL = "cannot write to it (No space left on device)"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([("", [])], [""]),
        ([("", []), ("", [])], ["", ""]),
        ([("", [2]), ("", [2]), ("", [0, 1])], ["", "", OWN]),
        ([("", [1]), ("", [])], ["", UNSEEN]),
        ([("", [1]), (FULL, [])], ["", FULL]),
        ([(FULL, []), ("", [0])], [FULL, ""]),
    ],
)
def test_it_is_named(told: list[tuple[str, list[int]]], found: list[str]) -> None:
    assert of_directory("chief/0", told) == found
