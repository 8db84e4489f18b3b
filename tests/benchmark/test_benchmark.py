"""What a benchmark prints and writes, and how it ends when it is interrupted."""

from __future__ import annotations

import json

import pytest

from tfdist.benchmark.benchmark import Benchmark, Figures, until_interrupted


def rows(*, until=None):
    for number in range(4):
        if number == until:
            raise KeyboardInterrupt
        yield number


def benchmark(until=None):
    def measure(options):
        found, is_whole = until_interrupted(rows(until=until), lambda found: f"row {found[-1]}")
        yield Figures(
            f"{len(found)} rows", found, lambda path: path.write_text("drawn"), is_whole=is_whole
        )

    return Benchmark(
        name="rows",
        summary="",
        description="",
        examples=(),
        add_flags=lambda parser: None,
        measure=measure,
        writes=("json", "plot"),
    )


def test_figures_are_printed_and_written(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = [tmp_path / "rows.json", tmp_path / "rows.png"]
    flags = ["--json", str(files[0]), "--plot", str(files[1])]
    assert benchmark().run("tfdist bench", flags) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["row 3", "4 rows"]
    assert json.loads(files[0].read_text()) == [0, 1, 2, 3]
    assert files[1].read_text() == "drawn"


def test_an_interrupt_leaves_the_rows_so_far_and_code_130(capsys):
    assert benchmark(until=2).run("tfdist bench", []) == 130
    assert capsys.readouterr().out.splitlines() == [
        *("row 0", "row 1", "interrupted; what was measured so far:", "2 rows")
    ]


def test_an_interrupt_before_the_first_row_leaves_nothing(capsys):
    with pytest.raises(KeyboardInterrupt):
        benchmark(until=0).run("tfdist bench", [])
    assert capsys.readouterr().out == ""
