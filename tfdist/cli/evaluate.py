"""`tfdist evaluate`: loss and metrics of a run's model on test images."""

from __future__ import annotations

import json

from tfdist.cli.arguments import Parser, count
from tfdist.errors import EXIT_DONE
from tfdist.rendezvous.once import meet
from tfdist.runtime.startup import start_tensorflow


def main(argv: list[str]) -> int:
    """Evaluates it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong, or there is no such run or dataset.
        PeerError: A task of the cluster is missing or was lost.
    """
    from tfdist.cluster import Cluster

    parser = Parser(
        "tfdist evaluate",
        "Print loss and metrics of the model that tfdist train has left in RUN, on the test "
        "images of its dataset or of another one with the same classes.",
        examples=("tfdist evaluate runs/digits", "tfdist evaluate runs/digits --batch 256 --json"),
    )
    parser.add_argument("run", metavar="RUN", help="the --output-dir of a run")
    parser.add_argument("--dataset", metavar="NAME", help="as for tfdist train (that of the run)")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder of TFDS's datasets")
    parser.add_argument("--batch", type=count, default=32, help="images at a time (32)")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    options = parser.parse_args(argv)
    if not options.batch:
        parser.error("--batch is 1 or more")
    cluster = Cluster.from_environment()
    meet(cluster)
    start_tensorflow()
    from tfdist.programs import inference

    found = inference.evaluate(options.run, options.dataset, options.data_dir, options.batch)
    if cluster.is_chief:
        lines = [f"{name:12}{value:.4f}" for name, value in found.items()]
        print(json.dumps(found) if options.json else "\n".join(lines), flush=True)
    return EXIT_DONE
