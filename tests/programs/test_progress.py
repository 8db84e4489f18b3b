"""What is shown of a run: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tfdist.programs import progress
from tfdist.programs.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 2.0
        return self.now


@pytest.fixture
def shown(monkeypatch, capsys):
    """Goes through two epochs of four steps, on a terminal or not; returns what is printed."""
    monkeypatch.setattr(progress, "time", Clock())

    def go(is_terminal: bool) -> tuple[str, str]:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=is_terminal, width=100)
        callback = Progress(global_batch=8, epochs=2, console=console)
        callback.set_params({"steps": 4})
        callback.on_train_begin()
        for epoch in range(2):
            callback.on_epoch_begin(epoch)
            for step in range(4):
                callback.on_train_batch_end(step, {"loss": 1.0 / (step + 1)})
            callback.on_epoch_end(epoch, {"loss": 0.25, "val_loss": 0.5})
        callback.close()
        return capsys.readouterr().out, screen.getvalue()

    return go


def test_a_log_has_lines(shown):
    lines, screen = shown(False)
    assert screen == ""
    assert "epoch 1/2  step 2/4  loss 0.5000  4.0 images/s  0:12 left" in lines
    assert lines.count("done  loss 0.2500  val_loss 0.5000") == 2


def test_a_terminal_has_a_bar_that_goes(shown):
    lines, screen = shown(True)
    assert lines == "".join(
        f"epoch {epoch}/2 done  loss 0.2500  val_loss 0.5000\n" for epoch in (1, 2)
    )
    assert "epoch 2/2" in screen and "4/4" in screen
    # The line is erased and the cursor is back.
    assert screen.rstrip().endswith("\x1b[2K")
    assert screen.count("\x1b[?25h") == 2


def test_a_run_that_is_interrupted_leaves_the_terminal_as_it_was():
    screen = io.StringIO()
    callback = Progress(8, 2, Console(file=screen, force_terminal=True, width=100))
    callback.set_params({"steps": None})
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    callback.on_train_batch_end(0, {})
    callback.close()
    assert "\x1b[?25h" in screen.getvalue()
