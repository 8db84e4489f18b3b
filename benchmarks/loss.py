"""`python -m benchmarks loss`: how soon a worker that has lost its peer ends, and names it."""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.workload import data, make_model
from tfdist.benchmark.benchmark import Benchmark, Figures, say
from tfdist.benchmark.processes import calling, started
from tfdist.cli.arguments import Parser, count
from tfdist.collectives.transport_names import AUTO, TRANSPORTS
from tfdist.errors import EXIT_PEER_LOST, TfdistError


@dataclasses.dataclass(frozen=True)
class Loss:
    """The end of a worker whose peer was killed.

    Attributes:
        seconds: From the kill to the end of the process.
        code: Its exit code.
        names_peer: Whether its last line names the peer.
    """

    seconds: float
    code: int
    names_peer: bool


def measure(
    times: int, transport: str, *, patience: float = 120.0, say: Callable[[str], None] = say
) -> list[Loss]:
    """Kills one of two workers in the middle of training, several times; there is no launcher.

    Args:
        times: How often.
        transport: For the Trainer.
        patience: Seconds after which a survivor is taken to hang.
        say: Receives a line each time.

    Raises:
        TfdistError: The workers did not begin to train, or a survivor did not end.
    """
    found = []
    for number in range(times):
        loss, last = _lose(transport, patience)
        found.append(loss)
        say(f"{number + 1}/{times}  {loss.seconds:.2f} s, exit code {loss.code}: {last}")
    return found


def _lose(transport: str, patience: float) -> tuple[Loss, str]:
    """Kills a worker once; returns what became of the other, and its last line."""
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder) / "begun"
        work = calling("benchmarks.loss:train", {"transport": transport, "begun": str(begun)})
        with started(*work, {"worker": 2}) as group:
            survivor, victim = (group.processes[f"worker-{index}"] for index in range(2))
            deadline = time.monotonic() + patience
            while not begun.exists():
                if time.monotonic() > deadline or survivor.poll() or victim.poll():
                    log = group.log("worker-0")
                    raise TfdistError(f"benchmarks loss: the workers did not train\n{log[-2000:]}")
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))  # Anywhere in a step.
            victim.kill()
            began = time.monotonic()
            while survivor.poll() is None:
                if time.monotonic() > began + patience:
                    raise TfdistError(
                        f"benchmarks loss: the survivor still runs after {patience:g} s"
                    )
                time.sleep(0.005)
            seconds = time.monotonic() - began
            last = group.log("worker-0").strip().splitlines()[-1]
            return Loss(seconds, survivor.returncode, "worker/1" in last), last


def train(transport: str, begun: str) -> None:
    """Trains as one of the workers until it is ended; the chief creates a file when it does.

    Args:
        transport: For the Trainer.
        begun: The file.
    """
    import keras

    import tfdist

    cluster = tfdist.Cluster.from_environment()

    class Begun(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 20 and cluster.is_chief:
                Path(begun).touch()

    strategy = tfdist.build_strategy("auto", cluster)
    with strategy.scope():
        model = make_model("small")
    trainer = tfdist.Trainer(model, transport=transport)
    trainer.fit(data("small", 2), steps_per_epoch=10**6, verbose=0, callbacks=[Begun()])


def summary(losses: Sequence[Loss], limit: float = 2.0) -> str:
    """Returns how many were named, with the right exit code, within `limit` seconds."""
    right = [each for each in losses if each.names_peer and each.code == EXIT_PEER_LOST]
    seconds = sorted(each.seconds for each in losses)
    soon = sum(each.seconds < limit for each in right)
    return (
        f"named, with exit code {EXIT_PEER_LOST}, in less than {limit:g} s: {soon} of "
        f"{len(losses)}; median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s"
    )


def _add_flags(parser: Parser) -> None:
    parser.add_argument("--times", type=count, default=20, help="kills (20)")
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help="transport (auto)")


def _check(parser: Parser, options: argparse.Namespace) -> None:
    if not options.times:
        parser.error("--times 0: allowed: 1 or more")


def _measure(options: argparse.Namespace) -> Iterator[Figures]:
    yield Figures(summary(measure(options.times, options.transport)))


BENCHMARK = Benchmark(
    name="loss",
    summary="how soon a lost peer is named",
    description="Kill one of two workers in the middle of training, without a launcher; show how "
    "soon the other one has ended, and whether it has named its peer.",
    examples=("python -m benchmarks loss --times 5",),
    add_flags=_add_flags,
    check=_check,
    measure=_measure,
)
