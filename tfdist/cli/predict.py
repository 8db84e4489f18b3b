"""`tfdist predict`: classify image files with a run's model."""

from __future__ import annotations

import dataclasses
import json

from tfdist.cli.arguments import Parser, count
from tfdist.errors import EXIT_DONE
from tfdist.runtime.startup import start_tensorflow


def main(argv: list[str]) -> int:
    """Prints a line for each file; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong, or there is no such run, or no such image.
    """
    parser = Parser(
        "tfdist predict",
        "Print the most likely class of each image by the model of RUN, and its probability.",
        examples=(
            "tfdist predict runs/digits seven.png",
            "tfdist predict runs/digits scans --top 3",
        ),
    )
    parser.add_argument("run", metavar="RUN", help="the --output-dir of a run of tfdist train")
    parser.add_argument("files", nargs="+", metavar="FILE", help="images, or folders of them")
    parser.add_argument("--top", type=count, default=1, metavar="K", help="classes to name (1)")
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    options = parser.parse_args(argv)
    if not options.top:
        parser.error("--top is 1 or more")
    start_tensorflow()
    from tfdist.programs import inference

    for guess in inference.predict(options.run, options.files, options.top):
        if options.json:
            print(json.dumps(dataclasses.asdict(guess)), flush=True)
            continue
        pairs = zip(guess.classes, guess.probabilities, strict=True)
        print(guess.path, *(f"{name} {p:.4f}" for name, p in pairs), sep="  ", flush=True)
    return EXIT_DONE
