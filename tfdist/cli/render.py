"""`tfdist render`: write a job's manifest for Kubernetes or Slurm to stdout."""

from __future__ import annotations

import shlex

from tfdist.cli.arguments import Parser, count
from tfdist.errors import EXIT_DONE
from tfdist.render.slurm import sbatch
from tfdist.render.workload import Workload
from tfdist.validation import reject

_KUBERNETES = ("tfjob", "jobset", "trainjob", "runtime")


def main(argv: list[str]) -> int:
    """Writes the manifest that the arguments describe; the first of them is its kind.

    Raises:
        ConfigError: An argument is malformed or missing.
    """
    if argv and argv[0] in _KUBERNETES:
        from tfdist.cli import render_kubernetes  # Loads what Slurm does not need.

        return render_kubernetes.main(argv)
    options, command = argv, []
    if "--" in argv:
        cut = argv.index("--")
        options, command = argv[:cut], argv[cut + 1 :]
    args = _parser().parse_args(options)
    if args.kind in _KUBERNETES:
        reject("render", f"{args.kind} is not the first argument; give it in front of the flags")
    workload = Workload(
        name=args.name,
        image=args.image or "none",
        command=command,
        workers=args.workers,
        ps=args.ps,
        namespace=args.namespace,
        gpus_per_worker=args.gpus_per_worker,
        cpus=args.cpus,
        memory=args.memory,
        secret=args.secret,
    )
    # A command may have several lines.
    made_by = "# " + shlex.join(["tfdist", "render", *argv]).replace("\n", "\n# ")
    # The first line of a script has to be its interpreter.
    interpreter, _, rest = sbatch(workload).partition("\n")
    print(f"{interpreter}\n{made_by}\n{rest}", end="")
    return EXIT_DONE


def _parser() -> Parser:
    parser = Parser(
        "tfdist render",
        "Write a TFJob, JobSet, TrainJob or batch script that runs '-- COMMAND' in every task.",
    )
    parser.add_argument("kind", choices=[*_KUBERNETES, "slurm"], help="the kind of manifest")
    parser.add_argument("--workers", type=count, required=True, help="worker tasks")
    parser.add_argument("--ps", type=count, default=0, help="parameter servers; adds a chief")
    parser.add_argument("--name", required=True, help="name of the job")
    parser.add_argument("--image", help="container image with tfdist in it (Kubernetes)")
    parser.add_argument("--namespace", help="namespace (Kubernetes)")
    parser.add_argument("--volume", metavar="CLAIM:/PATH", help="claim to mount (Kubernetes)")
    parser.add_argument(
        "--secret",
        metavar="NAME",
        help="Secret whose key 'secret' the tasks share (a new one, in the output; Kubernetes)",
    )
    parser.add_argument("--gpus-per-worker", type=count, default=0, help="GPUs of each worker")
    parser.add_argument("--cpus", default="4", help="CPUs of each task (4)")
    parser.add_argument("--memory", default="8Gi", help="memory of each task (8Gi)")
    return parser
