"""Divides the time of a task's steps among compute, update, wire, input and host."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

from tfdist.profiling.trace import NEXT, Span, Trace

COMPUTE, UPDATE, WIRE, INPUT, HOST = "compute", "update", "wire", "input", "host"
# If several run at once, the moment counts for the first of them.
PARTS = (COMPUTE, UPDATE, WIRE, INPUT, HOST)

# tfdist's ring is called through a function of Python; the rest are TensorFlow's own.
_WIRE = re.compile(r"PyFunc|Collective|Nccl|_?(Host)?(Recv|Send)$|SendTensor|RecvTensor", re.ASCII)
_UPDATE = re.compile(r"^(Resource(Sparse)?Apply|Assign)|XlaLaunch|_XlaRun|XlaRun", re.ASCII)
# These only wait for others, which are counted on their own.
_OUTER = re.compile(
    r"(PartitionedCall|^While|^If$|^StatelessWhile|^StatelessIf|^NoOp|^_Retval|^_Arg|^Identity)",
    re.ASCII,
)
# Work for the next steps, during this one.
_AHEAD = "tf_data"


@dataclasses.dataclass(frozen=True)
class Shares:
    """Where the time of some steps of a task went.

    Attributes:
        task: The task.
        steps: How many steps.
        seconds: From the first one's beginning to the last one's end.
        parts: The seconds of each of `PARTS`, which add up to that.
        top: The operations that took longest: type, calls, and seconds over all threads.
    """

    task: str
    steps: int
    seconds: float
    parts: dict[str, float]
    top: list[tuple[str, int, float]]


def kind_of(span: Span) -> str | None:
    """Returns which of `PARTS` an operation belongs to; None if it does no work of the step."""
    if not span.kind or _OUTER.search(span.kind):
        return None
    if span.kind == NEXT:
        return INPUT
    if span.thread.startswith(_AHEAD):
        return None
    if _WIRE.search(span.kind):
        return WIRE
    if _UPDATE.search(span.kind):
        return UPDATE
    return COMPUTE


def shares(trace: Trace, top: int = 10) -> Shares:
    """Divides the time of a task's steps.

    Args:
        trace: Its profile.
        top: How many of the operations that took longest are listed.
    """
    begin, end = trace.steps[0].begin, max(step.end for step in trace.steps)
    by_part: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}
    totals: dict[str, list[float]] = collections.defaultdict(list)
    for span in trace.spans:
        part = kind_of(span)
        if part is None or span.end < begin or span.begin > end:
            continue
        by_part[part].append((max(begin, span.begin), min(end, span.end)))
        totals[span.kind].append(span.seconds)
    taken: list[tuple[float, float]] = []
    parts, before = {}, 0.0
    for part in PARTS[:-1]:
        taken = _union([*taken, *by_part[part]])
        covered = sum(stop - start for start, stop in taken)
        parts[part], before = covered - before, covered
    parts[HOST] = end - begin - before
    longest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:top]
    return Shares(
        trace.task,
        len(trace.steps),
        end - begin,
        parts,
        [(name, len(each), sum(each)) for name, each in longest],
    )


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the same intervals, those that overlap joined, in order."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def slowest(all_shares: Sequence[Shares]) -> str:
    """Names the task that the others wait for; "" if none is clearly slower.

    In a synchronous job a step takes all tasks equally long: the slow one waits least on the wire.
    """
    if len(all_shares) < 2:
        return ""
    waits = sorted(all_shares, key=lambda each: each.parts[WIRE] / each.steps)
    least, next_one = waits[0], waits[1]
    apart = next_one.parts[WIRE] / next_one.steps - least.parts[WIRE] / least.steps
    step = least.seconds / least.steps
    if apart < 0.1 * step:
        return ""
    own = max(PARTS, key=lambda part: least.parts[part] - next_one.parts[part])
    return (
        f"{least.task} is slowest: the others wait {1e3 * apart:.0f} ms of a step of "
        f"{1e3 * step:.0f} ms for it, mostly for its {own}"
    )


def text(all_shares: Sequence[Shares]) -> str:
    """Returns the shares of all tasks, and the operations that took longest, as a table."""
    width = max(len(each.task) for each in all_shares)
    lines = [f"{'':<{width}}{'steps':>7}{'ms each':>9}" + "".join(f"{p:>10}" for p in PARTS)]
    for each in all_shares:
        parts = "".join(f"{100 * each.parts[p] / each.seconds:>8.1f} %" for p in PARTS)
        lines.append(
            f"{each.task:<{width}}{each.steps:>7}{1e3 * each.seconds / each.steps:>9.1f}{parts}"
        )
    slow = slowest(all_shares)
    if slow:
        lines.append(slow)
    first = all_shares[0]
    lines += ["", f"operations of {first.task}, over all its threads"]
    for name, calls, seconds in first.top:
        each_step = 1e3 * seconds / first.steps
        lines.append(f"  {name:<40}{each_step:>9.2f} ms a step{calls // first.steps:>7} calls")
    return "\n".join(lines)
