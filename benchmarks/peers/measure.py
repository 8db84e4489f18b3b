"""`python -m benchmarks peers`: runs contenders alternately, one after another in each round."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.peers.contenders import COMPARISONS, Comparison, Contender
from benchmarks.peers.environments import python_of
from benchmarks.peers.slow_link import has_delays, two_hosts
from benchmarks.peers.speeds import plot, table
from tfdist.benchmark.benchmark import Benchmark, Figures, say
from tfdist.benchmark.processes import LOOPBACK, NetworkHost, started
from tfdist.cli.arguments import Parser, count

_HERE = Path(__file__).parent
# The programs of peers whose environments cannot import tfdist.
_PROGRAMS = {"torch": "torch_ddp.py", "horovod": "horovod_tape.py"}


@dataclasses.dataclass(frozen=True)
class Length:
    """How long a contender runs.

    Attributes:
        warm_up: Steps before the clock starts.
        steps: Steps on the clock.
    """

    warm_up: int
    steps: int


LENGTHS = {
    "resnet50": Length(5, 20),
    "resnet50_synchronized": Length(5, 20),
    "small": Length(200, 2000),
}


def measure(
    comparison: Comparison,
    pairs: int,
    environments: Path,
    *,
    length: Length | None = None,
    patience: float = 900.0,
    say: Callable[[str], None] = say,
) -> dict[str, list[float]]:
    """Runs every contender once in each round.

    Args:
        comparison: What is compared.
        pairs: Rounds.
        environments: Where the peers' Python environments are kept.
        length: How long each runs; by the model if None.
        patience: Seconds after which a run is ended.
        say: Receives a line after each run.

    Returns:
        Steps a second of each round, by the contender's name; on Ctrl-C, of those there are.

    Raises:
        TfdistError: A run failed or took too long.
        KeyboardInterrupt: It was interrupted before anything was measured.
    """
    length = length or LENGTHS[comparison.model]
    speeds: dict[str, list[float]] = {each.name: [] for each in comparison.contenders}
    pythons = {each.environment: "" for each in comparison.contenders}
    for name in pythons:
        pythons[name] = python_of(name, environments)
    link = comparison.link
    if link is not None and not has_delays():
        say(f"{comparison.name}: this kernel has no sch_netem: {link.rate}, and no delay")
    with contextlib.nullcontext([LOOPBACK]) if link is None else two_hosts(link) as hosts:
        try:
            for number in range(pairs):
                # In the other order every second time: what slows the machine down cancels out.
                for each in comparison.contenders[:: 1 if number % 2 == 0 else -1]:
                    work = {
                        "program": each.program,
                        "model": comparison.model,
                        "optimizer": comparison.optimizer,
                        "warm_up": length.warm_up,
                        "steps": length.steps,
                        "options": dict(each.options),
                    }
                    python = pythons[each.environment]
                    seconds = _seconds(each, work, python, patience, hosts)
                    speeds[each.name].append(length.steps / seconds)
                    round_of = f"{comparison.name} {number + 1}/{pairs}"
                    say(f"{round_of}  {each.name}: {length.steps / seconds:.4g} steps/s")
        except KeyboardInterrupt:
            if not any(speeds.values()):
                raise
            say("interrupted; what was measured so far:")
            speeds = {name: values for name, values in speeds.items() if values}
    return speeds


def _seconds(
    contender: Contender,
    work: dict[str, object],
    python: str,
    patience: float,
    hosts: Sequence[NetworkHost],
) -> float:
    """Runs the tasks of a contender; returns the seconds that the first of them measured.

    Args:
        contender: The contender.
        work: The fields of `work.Work` but for the output.
        python: The interpreter.
        patience: Seconds after which the run is ended.
        hosts: Where its tasks run, in turn.
    """
    program = [python, "-m", "benchmarks.peers.work"]
    if contender.environment in _PROGRAMS:
        program = [python, str(_HERE / _PROGRAMS[contender.environment])]
    with started(program, work, contender.tasks, hosts=hosts) as group:
        return float(group.result(contender.name, patience)["seconds"])


def _add_flags(parser: Parser) -> None:
    names = [each.name for each in COMPARISONS]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["all", *names],
        default=["two_workers"],
        help=f"all, or of {', '.join(names)} (two_workers)",
        metavar="NAME",
    )
    parser.add_argument("--pairs", type=count, default=1, help="rounds, of minutes each (1)")
    parser.add_argument(
        "--environments",
        metavar="DIR",
        default="runs/peers",
        help="where the peers' Python environments are kept (runs/peers)",
    )


def _check(parser: Parser, options: argparse.Namespace) -> None:
    if not options.pairs:
        parser.error("--pairs 0: allowed: 1 or more")


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    measured: dict[str, dict[str, list[float]]] = {}
    chosen = [each for each in COMPARISONS if {each.name, "all"} & {*options.only}]
    for number, comparison in enumerate(chosen, start=1):
        speeds = measure(comparison, options.pairs, Path(options.environments))
        measured[comparison.name] = speeds
        is_whole = sum(map(len, speeds.values())) == options.pairs * len(comparison.contenders)
        yield Figures(
            f"\n{table(comparison, speeds)}\n",
            measured,
            functools.partial(plot, measured, chosen[:number]),
            is_whole,
        )
        if not is_whole:
            return


BENCHMARK = Benchmark(
    name="peers",
    summary="speed next to TensorFlow's, Keras', PyTorch's and Horovod's own loops",
    description="Time tfdist and its peers, in alternated rounds. Makes the peers' Python "
    "environments if they do not exist yet.",
    examples=(
        "python -m benchmarks peers --pairs 5",
        "python -m benchmarks peers --only all --pairs 5 --plot peers.png",
    ),
    add_flags=_add_flags,
    check=_check,
    measure=_measure,
    writes=("json", "plot"),
)
