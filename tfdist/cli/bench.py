"""`tfdist bench`: measures what tfdist claims."""

from __future__ import annotations

import functools
import json
import pathlib

from tfdist.cli import bench_collectives
from tfdist.cli.arguments import Parser, count

_say = functools.partial(print, flush=True)


def main(argv: list[str]) -> int:
    """Runs a benchmark; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    others = {
        "peers": _peers,
        "accuracy": _accuracy,
        "loss": _loss,
        "growth": _growth,
        "collectives": bench_collectives.main,
        "prediction": _prediction,
    }
    if argv and argv[0] in others:
        return others[argv[0]](argv[1:])
    parser = Parser(
        "tfdist bench", "Compare the losses of strategies, or (peers) their speed with others'."
    )
    parser.add_argument(
        "what",
        choices=("equality", *others),
        help="equality: ResNet50's losses on one device, two replicas and two workers; "
        "accuracy: of ways to send less (see: tfdist bench accuracy --help); "
        "loss: how soon a lost peer is named (see: tfdist bench loss --help); "
        "growth: of a step with the model, the workers, the data and the run (see: tfdist bench "
        "growth --help); "
        "collectives: latency and bandwidth by operation, size, transport and wire type (see: "
        "tfdist bench collectives --help); "
        "prediction: steps as 'tfdist plan' predicts them, and measured (see: tfdist bench "
        "prediction --help); "
        "peers: images and steps a second beside TensorFlow's, Keras' and PyTorch's own loops "
        "(see: tfdist bench peers --help)",
    )
    parser.add_argument("--steps", type=count, default=20, help="updates of the weights (20)")
    parser.add_argument("--global_batch", type=count, default=32, help="examples per step (32)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="the type of all computations (float32)",
    )
    parser.add_argument(
        "--learning_rate",
        type=float,
        help="rate of SGD with momentum and clipped gradients (float32: 1e-5, float64: 0.01)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the losses of every step")
    parser.add_argument("--plot", metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    from tfdist.benchmark import equality

    rate = options.learning_rate
    if rate is None:
        rate = {"float32": 1e-5, "float64": 0.01}[options.dtype]
    losses = equality.measure(options.steps, options.global_batch, rate, options.dtype)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(losses, indent=1) + "\n")
    if options.plot:
        equality.plot(
            losses, pathlib.Path(options.plot), f"ResNet50, {options.dtype}, rate {rate:g}"
        )
    print(
        f"relative difference of the loss, {options.steps} steps of {options.global_batch}, "
        f"{options.dtype}, rate {rate:g}"
    )
    print(f"{'':<42}{'first':>10}{'median':>10}{'largest':>10}")
    for name, values in equality.differences(losses).items():
        middle = sorted(values)[len(values) // 2]
        print(f"{name:<42}{values[0]:>10.1e}{middle:>10.1e}{values.max():>10.1e}")
    return 0


def _accuracy(argv: list[str]) -> int:
    from tfdist.benchmark import accuracy

    parser = Parser(
        "tfdist bench accuracy",
        "Train two workers on the bundled digits, exactly and in each of the ways to send less, "
        "from several seeds; list the accuracy on the digits held out.",
    )
    parser.add_argument("--seeds", type=count, default=5, help="seeds (5)")
    parser.add_argument("--epochs", type=count, default=15, help="passes over the digits (15)")
    parser.add_argument("--json", metavar="FILE", help="also write every accuracy")
    options = parser.parse_args(argv)
    accuracy.checked(options.seeds, options.epochs)
    found = accuracy.measure(options.seeds, options.epochs)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    print(f"accuracy on the digits held out, {options.seeds} seeds, {options.epochs} epochs")
    print(accuracy.table(found))
    return 0


def _loss(argv: list[str]) -> int:
    from tfdist.benchmark import loss
    from tfdist.collectives.transport_names import AUTO, TRANSPORTS

    parser = Parser(
        "tfdist bench loss",
        "Kill one of two workers in the midst of training, without a launcher; say how soon the "
        "other one has ended, and whether it has named its peer.",
    )
    parser.add_argument("--times", type=count, default=20, help="kills (20)")
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help="transport (auto)")
    options = parser.parse_args(argv)
    losses = loss.measure(options.times, options.transport, say=_say)
    print(loss.summary(losses))
    return 0


def _growth(argv: list[str]) -> int:
    from tfdist.benchmark import growth
    from tfdist.collectives.transport_names import AUTO, TRANSPORTS

    parser = Parser(
        "tfdist bench growth",
        "Time a step of several workers, and of as many processes without communication, as the "
        "weights, the workers, the examples or the steps grow; list the memory too.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(growth.SWEEPS),
        default=list(growth.SWEEPS),
        help="what grows (all of them)",
        metavar="NAME",
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help="transport (auto)")
    options = parser.parse_args(argv)
    for name in options.only:
        costs = growth.measure(name, transport=options.transport, say=_say)
        _say(f"\n{growth.table(name, costs)}\n")
    return 0


def _prediction(argv: list[str]) -> int:
    from tfdist.benchmark import hardware, prediction

    parser = Parser(
        "tfdist bench prediction",
        "Compare the steps that 'tfdist plan' predicts for workers of this machine with measured "
        "ones; latency, bandwidth and the time of computation are measured in the same run.",
    )
    parser.add_argument(
        "--workers",
        nargs="+",
        type=count,
        default=[1, 2, 4],
        metavar="N",
        help="the numbers of workers (1 2 4)",
    )
    parser.add_argument(
        "--model", choices=("resnet50", "small"), default="resnet50", help="model (resnet50)"
    )
    parser.add_argument("--rounds", type=count, default=3, help="rounds, alternated (3)")
    options = parser.parse_args(argv)
    prediction.checked(options.workers, options.rounds)
    _say(hardware.line(hardware.describe()))
    found = prediction.measure(options.workers, options.model, options.rounds, say=_say)
    _say(f"\n{prediction.table(found)}")
    return 0


def _peers(argv: list[str]) -> int:
    from tfdist.benchmark.peers import measure, report
    from tfdist.benchmark.peers.contenders import COMPARISONS

    names = [each.name for each in COMPARISONS]
    parser = Parser(
        "tfdist bench peers",
        "Time tfdist beside its peers, in alternated rounds. Makes their Python environments "
        "where they are not there yet.",
    )
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="comparisons (all)", metavar="NAME"
    )
    parser.add_argument("--pairs", type=count, default=5, help="rounds (5)")
    parser.add_argument(
        "--environments",
        metavar="DIR",
        default="runs/peers",
        help="where the peers' Python environments are kept (runs/peers)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the speed of every round")
    parser.add_argument("--plot", metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    chosen = [each for each in COMPARISONS if each.name in options.only]
    measured = {}
    for comparison in chosen:
        folder = pathlib.Path(options.environments)
        measured[comparison.name] = measure.measure(comparison, options.pairs, folder, say=_say)
        _say(f"\n{report.table(comparison, measured[comparison.name])}\n")
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(measured, indent=1) + "\n")
    if options.plot:
        report.plot(measured, chosen, pathlib.Path(options.plot))
    return 0
