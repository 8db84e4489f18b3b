"""Merges the profiles of a job's tasks into one timeline that Chrome and Perfetto open."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from tfdist.profiling.shares import kind_of
from tfdist.profiling.trace import Span, Trace

# Names of colours in https://chromium.googlesource.com/catapult.
_COLOURS = {
    "compute": "thread_state_running",
    "update": "thread_state_runnable",
    "wire": "thread_state_iowait",
    "input": "thread_state_uninterruptible",
}


def write(traces: Sequence[Trace], path: pathlib.Path) -> None:
    """Writes a timeline: a process for each task, a row for each thread, from the first step on.

    The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.

    Args:
        traces: The tasks' profiles. Their clocks are those of their machines.
        path: The file.
    """
    begin = min(trace.steps[0].begin for trace in traces)
    end = max(step.end for trace in traces for step in trace.steps)
    events: list[dict[str, Any]] = []
    for process, trace in enumerate(traces):
        events.append(_named("process_name", process, 0, trace.task))
        events += [_event(step, process, 0, begin, "step") for step in trace.steps]
        events.append(_named("thread_name", process, 0, "steps"))
        threads: dict[str, int] = {}
        for span in trace.spans:
            part = kind_of(span)
            if part is None or span.end < begin or span.begin > end:
                continue
            if span.thread not in threads:
                threads[span.thread] = len(threads) + 1
                events.append(_named("thread_name", process, threads[span.thread], span.thread))
            events.append(_event(span, process, threads[span.thread], begin, part))
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _event(span: Span, process: int, thread: int, begin: float, part: str) -> dict[str, Any]:
    event = {
        "ph": "X",
        "name": span.kind or span.name,
        "cat": part,
        "pid": process,
        "tid": thread,
        "ts": round(1e6 * (span.begin - begin), 3),
        "dur": round(1e6 * span.seconds, 3),
        "args": {"name": span.name},
    }
    if part in _COLOURS:
        event["cname"] = _COLOURS[part]
    return event
