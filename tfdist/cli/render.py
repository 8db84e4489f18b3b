"""`tfdist render`: write a job's manifest for Kubernetes, or its script for Slurm, to stdout."""

from __future__ import annotations

import importlib

from tfdist.cli.arguments import listing
from tfdist.errors import EXIT_DONE, ConfigError
from tfdist.validation import did_you_mean, quote

_KUBERNETES = {
    "jobset": "a JobSet",
    "trainjob": "a TrainJob for Kubeflow Trainer",
    "runtime": "the ClusterTrainingRuntime that TrainJobs may share",
    "tfjob": "a TFJob",
}
_SLURM = {"slurm": "a batch script"}
KINDS = {**_KUBERNETES, **_SLURM}
_EXAMPLES = (
    "tfdist render jobset --name digits --workers 2 --image tfdist:0.1.0 -- tfdist train",
    "tfdist render slurm --name digits --workers 2 --time 60 -- tfdist train",
)


def main(argv: list[str]) -> int:
    """Writes the manifest that the arguments describe; the first of them is its kind.

    Raises:
        ConfigError: An argument is malformed or missing.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(listing("tfdist render", "KIND", "[FLAGS] [--] COMMAND", KINDS, _EXAMPLES))
        return EXIT_DONE
    if not argv or argv[0] not in KINDS:
        given = f"{quote(argv[0])} is given first" if argv else "no kind is given"
        hint = did_you_mean(argv[0], KINDS) if argv else ""
        raise ConfigError(f"render: {given}; allowed: {', '.join(KINDS)}, then its flags{hint}")
    for number, word in enumerate(argv, 1):
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise ConfigError(
                f"render: argument {number}, {quote(word)}, is not text in UTF-8, which is all "
                "that a script or a manifest can hold; rename it"
            )
    # Each loads what the other does not need.
    if argv[0] in _SLURM:
        return int(importlib.import_module("tfdist.cli.render_slurm").main(argv[1:]))
    return int(importlib.import_module("tfdist.cli.render_kubernetes").main(argv))
