"""`tfdist report`: draw one or several runs into one page."""

from __future__ import annotations

import pathlib

from tfdist.cli.arguments import Parser
from tfdist.errors import EXIT_DONE, ConfigError
from tfdist.report.page import figures, page
from tfdist.report.run import read


def main(argv: list[str]) -> int:
    """Writes the page; returns the exit code.

    Raises:
        ConfigError: A run cannot be read, or the page cannot be written.
    """
    parser = Parser(
        "tfdist report",
        "Draw runs of tfdist train (loss and accuracy by epoch and by time, throughput, restarts) "
        "into one page of HTML that needs nothing else.",
        examples=("tfdist report runs/digits", "tfdist report runs/a runs/b --output both.html"),
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the --output-dir of a run")
    parser.add_argument("--output", default="report.html", metavar="FILE", help="(report.html)")
    parser.add_argument("--png", metavar="DIR", help="also write each figure there")
    options = parser.parse_args(argv)
    runs = [read(pathlib.Path(path)) for path in options.runs]
    drawn = figures(runs)
    try:
        pathlib.Path(options.output).write_text(page(runs, drawn))
        if options.png:
            folder = pathlib.Path(options.png)
            folder.mkdir(parents=True, exist_ok=True)
            for name, png in drawn.items():
                (folder / f"{name.replace(' ', '_')}.png").write_bytes(png)
    except OSError as error:
        raise ConfigError(
            f"report: {error.filename} cannot be written ({error.strerror})"
        ) from None
    print(f"{options.output}: {', '.join(run.name for run in runs)}")
    return EXIT_DONE
