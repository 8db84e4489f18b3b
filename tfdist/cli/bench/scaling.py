"""`tfdist bench scaling`: measures what more workers or replicas bring."""

from __future__ import annotations

import argparse

from tfdist.cli.arguments import Parser, count
from tfdist.cli.bench.say import check_model, say, show
from tfdist.cli.output import output, picture, write_json
from tfdist.cluster import Cluster
from tfdist.errors import EXIT_DONE, EXIT_INTERRUPTED


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import hardware, scaling
    from tfdist.benchmark.trial import Setting

    parser = Parser(
        "tfdist bench scaling",
        "Train with 1, 2, 4, ... workers or replicas, and with as many processes without "
        "communication: samples a second, efficiency, and what a step consists of. Between "
        "processes of this machine, or as a task of the cluster that the environment describes: "
        "this worker alone, and then all of them.",
        examples=(
            "tfdist bench scaling --counts 1 2 --model small_cnn",
            "tfdist bench scaling --of replicas --global-batch 64",
            "tfdist launch --workers 2 tfdist bench scaling",
        ),
    )
    parser.add_argument(
        "--counts", nargs="+", type=count, metavar="N", help="how many (1 2 4 8, up to the cores)"
    )
    parser.add_argument(
        "--of",
        choices=("workers", "replicas"),
        help="workers: local processes; replicas: of one process, on virtual CPUs (workers)",
    )
    parser.add_argument(
        "--per-replica-batch", type=count, metavar="B", help="weak scaling: examples each (32)"
    )
    parser.add_argument(
        "--global-batch", type=count, metavar="B", help="strong scaling: examples of all together"
    )
    parser.add_argument(
        "--model", default="resnet50", help="resnet50, small_cnn or module:function (resnet50)"
    )
    parser.add_argument(
        "--dataset", default="synthetic", help="a name, as for tfdist train (synthetic)"
    )
    parser.add_argument("--image-size", type=count, default=32, help="pixels (32)")
    parser.add_argument("--steps", type=count, default=12, help="steps on the clock (12)")
    parser.add_argument("--json", type=output, metavar="FILE", help="also write the figures")
    parser.add_argument("--csv", type=output, metavar="FILE", help="also write them as CSV")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    if options.per_replica_batch is not None and options.global_batch is not None:
        parser.error("--per-replica-batch is for weak scaling, --global-batch for strong; give one")
    counts = sorted(set(options.counts or scaling.default_counts()))
    batch = options.global_batch or options.per_replica_batch or 32
    if not counts[0] or not options.steps or not options.image_size:
        parser.error("counts, steps and pixels are 1 or more")
    check_model(parser, options.model)
    cluster = Cluster.from_environment()
    if not cluster.is_local:
        _check_cluster(parser, options, cluster)
    setting = Setting(
        of=options.of or "workers",
        batch=batch,
        is_strong=options.global_batch is not None,
        model=options.model,
        data=options.dataset,
        image_size=options.image_size,
        steps=options.steps,
    )
    described = hardware.describe()
    if cluster.is_chief:
        say(hardware.line(described))
    if cluster.is_local:
        points = scaling.measure(setting, counts, say=say)
    else:
        points, counts = scaling.measure_here(setting, cluster, say=say), []
    if not points:
        return EXIT_INTERRUPTED if cluster.is_local else EXIT_DONE
    table = scaling.table(setting, points)
    show(scaling.title(setting), scaling.cells(setting, points), table)
    if options.json:
        write_json(options.json, {"hardware": described, "points": scaling.rows(points)})
    if options.csv:
        scaling.write_csv(points, options.csv)
    if options.plot:
        scaling.plot(setting, points, options.plot)
    return EXIT_DONE if len(points) >= len(counts) else EXIT_INTERRUPTED


def _check_cluster(parser: Parser, options: argparse.Namespace, cluster: Cluster) -> None:
    """Checks that what is asked for can be measured by the tasks of a cluster.

    Raises:
        ConfigError: It cannot.
    """
    for name in ("counts", "of"):
        if getattr(options, name) is not None:
            parser.error(
                f"--{name} is given in a cluster of {cluster.num_workers} workers "
                f"({cluster.source}), which are measured as they are; leave it out"
            )
    roles = sorted({task.type for task in cluster.tasks} - {"chief", "worker"})
    if roles:
        parser.error(f"the cluster has {roles[0]} tasks; allowed: a chief and workers")
