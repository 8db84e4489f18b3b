"""The notebooks in examples/notebooks run from their first cell to their last."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_some():
    assert {path.stem for path in NOTEBOOKS} == {"virtual_devices", "two_workers"}


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells), "kept without outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, resources=resources).execute()
    (*_, last) = (cell for cell in book.cells if cell.cell_type == "code")
    assert last.execution_count == sum(cell.cell_type == "code" for cell in book.cells)
