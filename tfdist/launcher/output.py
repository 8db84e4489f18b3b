"""Turns the output of a task into whole lines, with the task's name in front.

TensorFlow's log lines that tell nothing of the job are left out.
"""

from __future__ import annotations

import codecs
import os
import re
import time
from collections import deque
from collections.abc import Callable

from tfdist.launcher.outlet import LogFile, Outlet

_MAX_LINE = 64 * 1024
_RECENT_LINES = 4000  # enough for the stacks of many threads
_REDRAW_SECONDS = 2.0

# Information ("I0000 00:00:1795420471.66   13952 port.cc:153] text"), never warnings and errors;
# absl's own in Python look alike but for the file. And what every machine without a GPU prints.
_TF_LOG_LINE = re.compile(
    r"I\d{4} [\d:.]+ +\d+ \S+\.(cc|h):\d+\] "
    r"|\d{4}-\d\d-\d\d [\d:.]+: I (tensorflow|external|xla|tsl)/"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: "
    r"|E\d{4} [\d:.]+ +\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: "
    r"|/job:\w+/replica:\d+/task:\d+$"
)


def is_tf_log_line(line: str) -> bool:
    """Returns whether a line is of TensorFlow's C++ log and tells nothing of the job."""
    return _TF_LOG_LINE.match(line) is not None


class LineAssembler:
    """Cuts a byte stream into lines.

    A progress bar redraws its line with carriage returns. The last version of
    such a line is kept, and while it is being redrawn one version every two
    seconds is returned as a separate line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._drawn = ""
        self._shown = ""
        self._shown_at = clock()

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """Returns the lines that `data` completes; with `final`, also the unfinished one."""
        self._text += self._decoder.decode(data, final)
        *whole, self._text = self._text.split("\n")
        lines: list[str] = []
        for line in whole:
            self._finish(line, lines)
        if "\r" in self._text:
            *drawings, self._text = self._text.split("\r")
            self._drawn = next((d for d in reversed(drawings) if _visible(d)), self._drawn)
            if self._drawn != self._shown and self._clock() - self._shown_at >= _REDRAW_SECONDS:
                lines.append(_visible(self._drawn))
                self._shown, self._shown_at = self._drawn, self._clock()
        if len(self._text) > _MAX_LINE or (final and (self._text or self._drawn)):
            line, self._text = self._text, ""
            self._finish(line, lines)
        return lines

    def _finish(self, line: str, lines: list[str]) -> None:
        redrawn = self._drawn
        drawings = [d for d in line.split("\r") if _visible(d)]
        text = drawings[-1] if drawings else redrawn
        # The last drawing of a bar may already have come out.
        if not (redrawn and text == self._shown):
            lines.append(_visible(text))
        self._drawn = self._shown = ""
        self._shown_at = self._clock()


def _visible(drawing: str) -> str:
    # Keras moves back with backspaces before it redraws.
    return drawing.replace("\b", "").rstrip() if "\b" in drawing else drawing.rstrip("\r\n")


class TaskOutput:
    """Prints the lines of one task behind its name, and keeps its last ones.

    TensorFlow's log lines (`is_tf_log_line`) go only to `log`, unless TF_CPP_MIN_LOG_LEVEL is 0.

    Args:
        name: The task's name.
        width: The width of the name column, so that the lines are aligned.
        stream: Receives the lines, and never makes this process wait.
        log: Receives the unchanged bytes.
        keep: The number of last lines to keep for the report.

    Attributes:
        tail: The last lines.
        recent: More of them; a reader may clear it to see only the lines that follow.
    """

    def __init__(
        self, name: str, width: int, stream: Outlet, log: LogFile | None = None, keep: int = 20
    ) -> None:
        self._prefix = f"{name:{width}} | "
        self._stream = stream
        self._log = log
        self._lines = LineAssembler()
        self._shows_tf_log = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
        self.tail: deque[str] = deque(maxlen=keep)
        self.recent: deque[str] = deque(maxlen=_RECENT_LINES)

    def feed(self, data: bytes, final: bool = False) -> None:
        """Adds output of the task, and prints the lines it completes."""
        if self._log is not None and data:
            self._log.write(data)
        lines = self._lines.feed(data, final)
        if not lines:
            return
        self.recent.extend(lines)
        if not self._shows_tf_log:
            lines = [line for line in lines if not is_tf_log_line(line)]
        self.tail.extend(line for line in lines if line.strip())
        text = "".join(f"{self._prefix}{line}".rstrip(" ") + "\n" for line in lines)
        self._stream.write(text)
