"""A page of runs: what is in the lines that they wrote, and that a browser shows it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tfdist.cli import main
from tfdist.errors import ConfigError
from tfdist.report import run as module
from tfdist.report.page import row
from tfdist.report.run import FILE, read

START = {"event": "start", "strategy": "MirroredStrategy", "replicas": 2, "global_batch": 64}


def epoch(number, time, **metrics):
    timing = {"steps": 24, "train_seconds": 4.0, "input_seconds": 1.0, "images_per_second": 384.0}
    return {"event": "epoch", "epoch": number, "time": time, "memory": 7e8, **timing, **metrics}


def write(folder, events, tail=""):
    folder.mkdir()
    (folder / FILE).write_text("".join(json.dumps(event) + "\n" for event in events) + tail)
    return folder


@pytest.fixture
def run(tmp_path):
    """A run that was killed in its third epoch, in the middle of a line, and restarted."""
    events = [
        {**START, "time": 100.0, "epoch": 0},
        epoch(0, 110.0, loss=2.0, val_accuracy=0.2),
        epoch(1, 120.0, loss=1.5, val_accuracy=0.4),
        {**START, "time": 140.0, "epoch": 1},
        epoch(1, 150.0, loss=1.5, val_accuracy=0.4),
        epoch(2, 160.0, loss=1.0, val_accuracy=0.6),
    ]
    return write(tmp_path / "a <run>", events, tail='{"event": "epoch", "ep')


def test_a_run_is_read_over_its_restarts(run):
    found = read(run)
    assert found.restarts == 1 and found.restarted_in == [2]
    assert found.seconds == 60.0
    assert found.values("loss") == ([1, 2, 3], [2.0, 1.5, 1.0])
    assert found.values("absent") == ([], [])


def test_the_table_says_what_came_of_it(run):
    cells = row(read(run))
    assert cells[:5] == ["a <run>", "MirroredStrategy", "2", "64", "3"]
    assert cells[5:] == ["1.0000", "0.6000", "384.0", "25 %", "700", "60", "1"]


def test_runs_become_one_page_and_figures(run, tmp_path, capsys):
    other = write(tmp_path / "b", [{**START, "time": 5.0, "epoch": 0}, epoch(0, 9.0, loss=3.0)])
    page, folder = tmp_path / "report.html", tmp_path / "png"
    arguments = [str(run), str(other), "--output", str(page), "--png", str(folder)]
    assert main(["report", *arguments]) == 0
    assert "a <run>, b" in capsys.readouterr().out
    text = page.read_text()
    assert "a &lt;run&gt;" in text and "<run>" not in text
    assert text.count("data:image/png;base64,") == len(list(folder.iterdir())) == 5
    assert "http" not in text  # It needs nothing else.


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"event": "start", "time": 1e999}',
        '{"event": "epoch", "epoch": 1.5, "time": 1}',
        '{"event": "epoch", "epoch": 1' + "0" * 5000 + ', "time": 1}',
        '["event"]',
    ],
)
def test_a_line_that_is_no_event_of_a_run_is_left_out(run, tmp_path, line):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE).write_text(f"{line}\n{(run / FILE).read_text()}")
    assert read(tmp_path / "b").epochs == read(run).epochs


def test_figures_that_are_too_large_to_draw_are_left_out(run, tmp_path, capsys):
    huge = epoch(2, 160.0, loss=10**400, val_accuracy=-(10**400), memory=10**400)
    made = write(tmp_path / "b", [{**START, "time": 5.0}, epoch(0, 9.0, loss=3.0), huge])
    assert main(["report", str(made), "--output", str(tmp_path / "b.html")]) == 0


def test_what_has_no_end_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 20)
    assert main(["report", "/dev/zero"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == "tfdist: report: /dev/zero: has more than 1 MB; give the --output-dir of a tfdist train"
    )


def test_a_browser_shows_the_page(run, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium")
    page, shot = tmp_path / "report.html", tmp_path / "page.png"
    assert main(["report", str(run), "--output", str(page)]) == 0
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    dump = [browser, *flags, "--dump-dom", page.as_uri()]
    shown = subprocess.run(dump, capture_output=True, text=True, timeout=120).stdout
    assert "MirroredStrategy" in shown and shown.count("<img") == 5
    take = [browser, *flags, "--window-size=1200,1300", f"--screenshot={shot}", page.as_uri()]
    subprocess.run(take, capture_output=True, timeout=120, check=True)
    assert shot.stat().st_size > 50_000


@pytest.mark.parametrize("content", [None, "", "no lines of ours\n", '{"event": "epoch"}\n'])
def test_what_is_no_run_is_one_line(tmp_path, content, capsys):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "x.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


def test_a_page_that_cannot_be_written_is_one_line(run, tmp_path, capsys):
    assert main(["report", str(run), "--output", str(tmp_path / "no" / "x.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "absent")
