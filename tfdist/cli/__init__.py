"""The `tfdist` command: a table of subcommands, each loaded only when it is called."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Callable

from tfdist import __version__
from tfdist.cli.arguments import listing
from tfdist.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_USER_ERROR,
    ConfigError,
    TfdistError,
)
from tfdist.runtime import excepthook
from tfdist.runtime.lost_output import redirect_to_devnull
from tfdist.validation import did_you_mean, quote

# subcommand -> (module with `main(argv) -> int`, what it does)
COMMANDS = {
    "check": ("tfdist.cli.check", "show the cluster and this task"),
    "doctor": ("tfdist.cli.doctor", "examine whether the cluster can train, check by check"),
    "launch": ("tfdist.cli.launch", "run a cluster of local processes"),
    "train": ("tfdist.cli.train", "train an image classifier with any strategy"),
    "evaluate": ("tfdist.cli.evaluate", "evaluate the model of a run"),
    "predict": ("tfdist.cli.predict", "classify image files with it"),
    "export": ("tfdist.cli.export", "write it as a SavedModel"),
    "pack": ("tfdist.cli.pack", "pack a folder of images into few files"),
    "plan": ("tfdist.cli.plan", "compute batch size, learning rate and cost"),
    "bench": ("tfdist.cli.bench", "measure scaling, batch sizes, input and collectives"),
    "profile": ("tfdist.cli.profile", "show where the time of recorded steps went"),
    "report": ("tfdist.cli.report", "draw one or several runs into one page"),
    "render": ("tfdist.cli.render", "write manifests for Kubernetes or Slurm"),
    "task": ("tfdist.cli.task", "run a command in srun, which then exits with its code"),
    "env": ("tfdist.cli.env", "show versions, devices and environment variables"),
}
_EXAMPLES = (
    "tfdist train --epochs 3 --output-dir runs/digits",
    "tfdist launch --workers 2 tfdist train --strategy multi_worker_mirrored",
)


def main(argv: list[str] | None = None) -> int:
    """Runs a subcommand and returns the exit code.

    A user's error is one line on stderr, never a traceback.

    Args:
        argv: The arguments after `tfdist`; those of this process by default.
    """
    args = sys.argv[1:] if argv is None else argv
    return reporting_errors(lambda: _run(args))


def reporting_errors(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; its errors are one line on stderr."""
    try:
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except TfdistError as error:
        return excepthook.report(error)
    except KeyboardInterrupt as error:
        # Otherwise the exit handlers would wait for the other workers, as after finished work.
        sys.last_value = error
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone: it had enough.
        redirect_to_devnull(sys.stdout)
        return EXIT_DONE
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        redirect_to_devnull(sys.stdout)
        print(f"tfdist: the output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_USER_ERROR


def _run(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        names = {name: text for name, (_, text) in COMMANDS.items()}
        print(listing("tfdist", "COMMAND", "[ARGUMENTS]", names, _EXAMPLES))
        return EXIT_DONE
    if args and args[0] == "--version":
        print(f"tfdist {__version__}")
        return EXIT_DONE
    if not args or args[0] not in COMMANDS:
        given = f"{quote(args[0])} is not a command" if args else "no command given"
        hint = did_you_mean(args[0], COMMANDS) if args else ""
        raise ConfigError(f"{given}; commands are {', '.join(COMMANDS)}{hint}")
    code: int = importlib.import_module(COMMANDS[args[0]][0]).main(args[1:])
    return code
