"""Which tasks have another directory than the chief."""

from __future__ import annotations

import pytest

from tfdist.doctor.peers import folder_problems

OWN = "has another directory, without the file of chief/0"
UNSEEN = "has written a file there that chief/0 does not see"
FULL = "cannot write to it (No space left on device)"


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ([("", [])], [""]),
        ([("", []), ("", [])], ["", ""]),
        ([("", [2]), ("", [2]), ("", [0, 1])], ["", "", OWN]),
        ([("", [1]), ("", [])], ["", UNSEEN]),
        ([("", [1]), (FULL, [])], ["", FULL]),
        ([(FULL, []), ("", [0])], [FULL, ""]),
    ],
)
def test_it_is_named(results: list[tuple[str, list[int]]], found: list[str]) -> None:
    assert folder_problems("chief/0", results) == found
