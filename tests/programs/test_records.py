"""Results are whole, and the history is that of all epochs, over restarts."""

from __future__ import annotations

import json

import pytest

from tfdist.programs.records import History


def epochs(path, numbers, shift=0.0):
    history = History(path)
    history.on_train_begin()
    for number in numbers:
        history.on_epoch_begin(number)
        history.on_epoch_end(number, {"loss": number + shift})
    return history


def test_the_history_goes_on_where_an_earlier_process_ended(tmp_path):
    path = tmp_path / "history.json"
    epochs(path, [0, 1, 2])
    history = epochs(path, [2, 3], shift=0.5)
    assert json.loads(path.read_text()) == {"epoch": [0, 1, 2, 3], "loss": [0, 1, 2.5, 3.5]}
    assert history.last == {"loss": 3.5}


def test_a_run_that_begins_anew_forgets_the_old_one(tmp_path):
    path = tmp_path / "history.json"
    epochs(path, [0, 1, 2])
    epochs(path, [0])
    assert json.loads(path.read_text()) == {"epoch": [0], "loss": [0.0]}


def test_a_finished_run_started_once_more_changes_nothing(tmp_path):
    path = tmp_path / "history.json"
    epochs(path, [0, 1])
    before = path.read_text()
    assert epochs(path, []).last == {"loss": 1.0}
    assert path.read_text() == before


@pytest.mark.parametrize("text", ["", "[]", "{", '{"loss": 3}', '{"loss": [1.0, 2.0]}'])
def test_a_file_that_is_not_one_of_ours_or_an_older_one(tmp_path, text):
    path = tmp_path / "history.json"
    path.write_text(text)
    found = epochs(path, []).last
    assert found == ({"loss": 2.0} if "2.0" in text else {})


def test_without_a_file_only_the_last_epoch_is_asked_for():
    assert epochs(None, [0, 1]).last == {"loss": 1.0}
