"""`tfdist render`: write a job's manifest for Kubernetes, or its script for Slurm, to stdout."""

from __future__ import annotations

import shlex

from tfdist.cli import render_slurm
from tfdist.cli.arguments import Parser, count
from tfdist.errors import EXIT_DONE, ConfigError
from tfdist.render import kubernetes
from tfdist.render.workload import Workload

_KUBERNETES = {"tfjob": kubernetes.tfjob, "jobset": kubernetes.jobset}


def main(argv: list[str]) -> int:
    """Writes the manifest that the arguments describe.

    Raises:
        ConfigError: An argument is malformed or missing.
    """
    if argv[:1] == ["slurm"]:
        return render_slurm.main(argv[1:])
    options, command = argv, []
    if "--" in argv:
        cut = argv.index("--")
        options, command = argv[:cut], argv[cut + 1 :]
    args = _parser().parse_args(options)
    if args.image is None:
        raise ConfigError(f"render(--image): missing; a {args.kind} runs in a container")
    workload = Workload(
        name=args.name,
        image=args.image,
        command=command,
        workers=args.workers,
        ps=args.ps,
        namespace=args.namespace,
        gpus_per_worker=args.gpus_per_worker,
        cpus=args.cpus,
        memory=args.memory,
        volume=args.volume,
        secret=args.secret,
    )
    # A command may have several lines.
    made_by = "# " + shlex.join(["tfdist", "render", *argv]).replace("\n", "\n# ")
    import yaml  # Not every command needs it.

    job = _KUBERNETES[args.kind](workload)
    made = kubernetes.documents(job, workload)
    text = yaml.safe_dump_all(made, sort_keys=False, width=100)
    print(f"{made_by}\n{text}", end="")
    return EXIT_DONE


def _parser() -> Parser:
    parser = Parser(
        "tfdist render",
        "Write a TFJob or a JobSet that runs '-- COMMAND' in every task. For Slurm: "
        "'tfdist render slurm --help'.",
    )
    parser.add_argument("kind", choices=[*_KUBERNETES], help="the kind of manifest")
    parser.add_argument("--workers", type=count, required=True, help="worker tasks")
    parser.add_argument("--ps", type=count, default=0, help="parameter servers; adds a chief")
    parser.add_argument("--name", required=True, help="name of the job")
    parser.add_argument("--image", help="container image with tfdist in it")
    parser.add_argument("--namespace", help="namespace")
    parser.add_argument("--volume", metavar="CLAIM:/PATH", help="claim to mount")
    parser.add_argument(
        "--secret",
        metavar="NAME",
        help="Secret whose key 'secret' the tasks share (a new one, in the output)",
    )
    parser.add_argument("--gpus-per-worker", type=count, default=0, help="GPUs of each worker")
    parser.add_argument("--cpus", default="4", help="CPUs of each task (4)")
    parser.add_argument("--memory", default="8Gi", help="memory of each task (8Gi)")
    return parser
