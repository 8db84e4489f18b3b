"""A folder for temporary files is found in memory, but only where no other one can be used."""

from __future__ import annotations

import os
import tempfile

from tfdist.runtime import resources


def test_a_usual_folder_stays(monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    resources.find_temporary_folder()
    assert "TMPDIR" not in os.environ


def test_memory_where_nothing_else_can_be_written(monkeypatch, tmp_path):
    def gettempdir():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    monkeypatch.setattr(resources, "_IN_MEMORY", str(tmp_path / "absent"))
    resources.find_temporary_folder()
    assert "TMPDIR" not in os.environ
    monkeypatch.setattr(resources, "_IN_MEMORY", str(tmp_path))
    resources.find_temporary_folder()
    assert os.environ["TMPDIR"] == str(tmp_path)
    monkeypatch.delenv("TMPDIR")
