"""`tfdist env`: show versions, devices and environment variables, for a bug report."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from tfdist.cli.arguments import Parser
from tfdist.cli.output import print_json
from tfdist.errors import EXIT_DONE
from tfdist.launcher.machine import gpu_ids, usable_cores
from tfdist.validation import quote

PACKAGES = ("tfdist", "tensorflow", "keras", "tensorflow-datasets", "numpy", "absl-py", "PyYAML")
_OWN = ("TFDIST_", "TF_", "KERAS_", "CUDA_", "NCCL_", "OMP_", "XLA_")
_STARTERS = (
    "SLURM_",
    "PET_",
    "JAX_",
    "OMPI_COMM_",
    "PMI_",
    "MPI_LOCAL",
    "AZ_BATCH_",
    "LSB_",
    "PBS_",
)
PREFIXES = (*_OWN, *_STARTERS)
NAMES = (
    *("JOB_COMPLETION_INDEX", "GRPC_VERBOSITY", "PYTHONPATH", "RANK", "WORLD_SIZE"),
    *("SM_HOSTS", "SM_CURRENT_HOST", "CLUSTER_SPEC", "NHOSTS"),
)


def main(argv: list[str]) -> int:
    """Prints versions, devices and variables; does not import TensorFlow."""
    parser = Parser(
        "tfdist env",
        "Show versions, devices and environment variables, for a bug report.",
        examples=("tfdist env", "tfdist env --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args(argv).json
    packages = {name: _version(name) for name in PACKAGES}
    cores, gpus = usable_cores(), gpu_ids()
    variables = {
        name: "set, and not shown" if _is_secret(name) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) or name in NAMES
    }
    if as_json:
        print_json(
            {
                "python": platform.python_version(),
                "platform": platform.platform(),
                "packages": packages,
                "cores": {"usable": len(cores), "all": os.cpu_count()},
                "gpus": list(gpus),
                "variables": variables,
            }
        )
        return EXIT_DONE
    rows = [("python", platform.python_version()), ("platform", platform.platform())]
    rows += [(name, version or "not installed") for name, version in packages.items()]
    rows.append(("cores", f"{len(cores)} usable of {os.cpu_count()}"))
    rows.append(("gpus", ", ".join(gpus) or "none"))
    for name, value in variables.items():
        rows.append((name, value if _is_secret(name) else quote(value)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    return EXIT_DONE


def _is_secret(name: str) -> bool:
    """Returns whether what a variable holds must not be in a bug report."""
    return any(word in name for word in ("SECRET", "TOKEN", "PASSWORD", "KEY"))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
