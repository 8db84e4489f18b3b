"""`tfdist profile`: show where the time of recorded steps went, and write a timeline."""

from __future__ import annotations

import pathlib

from tfdist.cli.arguments import Parser
from tfdist.cli.output import output, write_json
from tfdist.errors import EXIT_DONE, ConfigError


def main(argv: list[str]) -> int:
    """Prints the shares of the tasks' steps; returns the exit code.

    Raises:
        ConfigError: There is no profile, or a file cannot be written.
    """
    parser = Parser(
        "tfdist profile",
        "Read the profiles that Trainer(profile=(A, B)) or tfdist train --profile A:B has "
        "recorded: what a step consists of, the operations that take longest, and who is slow. "
        "TensorBoard opens the same folder.",
        examples=("tfdist profile runs/digits/profile",),
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of the profiles")
    parser.add_argument(
        "--timeline",
        type=output,
        metavar="FILE",
        help="write all tasks' operations for ui.perfetto.dev and chrome://tracing "
        "(DIR/timeline.json)",
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="also write the shares")
    options = parser.parse_args(argv)
    folder = pathlib.Path(options.folder)
    if not folder.is_dir():
        raise ConfigError(
            f"profile: {options.folder!r} is not a folder; give the folder of a profile"
        )
    from tfdist.profiling import shares, timeline, trace

    traces = trace.read_all(folder)
    found = [shares.shares(each) for each in traces]
    place = options.timeline or folder / "timeline.json"
    try:
        timeline.write(traces, place)
        if options.json:
            rows = [
                {"task": s.task, "steps": s.steps, "seconds": s.seconds, **s.parts} for s in found
            ]
            write_json(options.json, rows)
    except OSError as error:
        raise ConfigError(
            f"profile: {error.filename} cannot be written ({error.strerror})"
        ) from None
    print(f"{shares.text(found)}\n\ntimeline: {place} (open it in ui.perfetto.dev)")
    return EXIT_DONE
