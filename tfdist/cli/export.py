"""`tfdist export`: a run's model as a SavedModel."""

from __future__ import annotations

from tfdist.cli.arguments import Parser
from tfdist.errors import EXIT_DONE
from tfdist.runtime.startup import start_tensorflow


def main(argv: list[str]) -> int:
    """Writes it; returns the exit code.

    Raises:
        ConfigError: There is no such run, or the folder already exists or cannot be written.
    """
    parser = Parser(
        "tfdist export",
        "Write the model of RUN as a SavedModel, which takes pixels of 0 to 255, for TensorFlow "
        "Serving, TensorFlow Lite and others.",
        examples=("tfdist export runs/digits --output served/digits/1",),
    )
    parser.add_argument("run", metavar="RUN", help="the --output-dir of a run of tfdist train")
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="the folder to write; it must not exist",
    )
    options = parser.parse_args(argv)
    start_tensorflow()
    from tfdist.programs import inference

    print(inference.export(options.run, options.output))
    return EXIT_DONE
