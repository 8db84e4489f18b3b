"""Knows the lines of TensorFlow's C++ code that say nothing of a job."""

from __future__ import annotations

import os
import re

# Remarks ("I0000 00:00:1795420471.66   13952 port.cc:153] text"), never warnings and errors; absl's
# own in Python look alike but for the file. And what every machine without a GPU says.
_NOISE = re.compile(
    r"I\d{4} [\d:.]+ +\d+ \S+\.(cc|h):\d+\] "
    r"|\d{4}-\d\d-\d\d [\d:.]+: I (tensorflow|external|xla|tsl)/"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: "
    r"|E\d{4} [\d:.]+ +\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: "
    r"|/job:\w+/replica:\d+/task:\d+$"
)


def is_noise(line: str) -> bool:
    """Returns whether a line of a task's output says nothing of the job."""
    return _NOISE.match(line) is not None


def is_wanted() -> bool:
    """Returns whether the user has asked for TensorFlow's remarks."""
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
