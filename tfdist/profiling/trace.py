"""Reads a profile: what ran on which thread, and when."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib
from typing import Any

from tfdist.errors import ConfigError

# The name of a step in a profile.
STEP = "tfdist step"
# The event in which a step waits for its data, and the type given to it here.
_GET_NEXT = "IteratorGetNextOp::DoCompute"
NEXT = "IteratorGetNext"
_SUFFIX = ".xplane.pb"
_HOST = "/host:"
_ENVIRONMENT = "Task Environment"
_SCHEMA = "tsl/profiler/protobuf/xplane_pb2.py"


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that ran.

    Attributes:
        name: The operation's name in the graph, or the step.
        kind: The operation's type, such as `MatMul`; "" if it is not an operation.
        thread: The name of its thread.
        begin: Seconds of `time.time()`.
        seconds: How long it ran.
    """

    name: str
    kind: str
    thread: str
    begin: float
    seconds: float

    @property
    def end(self) -> float:
        """When it ended."""
        return self.begin + self.seconds


@dataclasses.dataclass(frozen=True)
class Trace:
    """The profile of one task.

    Attributes:
        task: The task.
        spans: All operations, in the order in which they began.
        steps: The steps.
    """

    task: str
    spans: list[Span]
    steps: list[Span]


def folder_of(folder: pathlib.Path, task: str) -> pathlib.Path:
    """Returns the folder of a task's profile: a log directory for TensorBoard."""
    return folder / task.replace("/", "-")


def read_all(folder: pathlib.Path) -> list[Trace]:
    """Reads the profiles of all tasks under a folder.

    Raises:
        ConfigError: There is none, or one has no steps.
    """
    traces = [_read(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    found = [trace for trace in traces if trace is not None]
    if not found:
        raise ConfigError(f"profile: {str(folder)!r} has no profile of any task")
    for trace in found:
        if not trace.steps:
            raise ConfigError(
                f"profile: the profile of {trace.task} in {str(folder)!r} has no steps"
            )
    return found


def _read(folder: pathlib.Path) -> Trace | None:
    """Returns the latest profile of a task; None if there is none."""
    files = sorted(folder.rglob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    if not files:
        return None
    space = _schema().XSpace()
    space.ParseFromString(files[-1].read_bytes())
    start = next((_start(plane) for plane in space.planes if plane.name == _ENVIRONMENT), 0)
    spans: list[Span] = []
    steps: list[Span] = []
    for plane in space.planes:
        if plane.name == _ENVIRONMENT:
            continue
        on_host = plane.name.startswith(_HOST)
        for line in plane.lines:
            for event in line.events:
                # Some events have arguments after their names.
                text = plane.event_metadata[event.metadata_id].name.partition("#")[0]
                named = _named(text, on_host=on_host)
                if named is None:
                    continue
                nanoseconds = start + line.timestamp_ns + event.offset_ps / 1e3
                span = Span(
                    *named,
                    line.name or plane.name,
                    nanoseconds / 1e9,
                    event.duration_ps / 1e12,
                )
                (steps if text.startswith(STEP) else spans).append(span)
    spans.sort(key=lambda span: span.begin)
    steps.sort(key=lambda span: span.begin)
    return Trace(folder.name.replace("-", "/"), spans, steps)


def _named(text: str, *, on_host: bool) -> tuple[str, str] | None:
    """Returns the name and type of what ran; None if it is not an operation."""
    if text.startswith(STEP):
        return STEP, ""
    if text == _GET_NEXT:
        return NEXT, NEXT
    name, _, kind = text.rpartition(":")
    if name and not name.endswith(":") and kind.isidentifier():
        return name, kind
    return None if on_host else (text, text)


def _start(plane: Any) -> int:
    """Returns when the profile began, in nanoseconds since 1970."""
    for stat in plane.stats:
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
            return int(stat.uint64_value or stat.int64_value)
    return 0


@functools.cache
def _schema() -> Any:
    """Loads TensorFlow's schema of profiles without TensorFlow, which takes seconds."""
    package = importlib.util.find_spec("tensorflow")
    assert package is not None and package.submodule_search_locations
    path = pathlib.Path(package.submodule_search_locations[0]) / _SCHEMA
    spec = importlib.util.spec_from_file_location("tfdist_xplane_pb2", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
