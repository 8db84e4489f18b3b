"""`tfdist plan`: compute batch size and learning rate before a run."""

from __future__ import annotations

import argparse

from tfdist.cli.arguments import Parser
from tfdist.errors import EXIT_DONE
from tfdist.scaling.plan import Plan
from tfdist.scaling.rules import DECAYS, RULES
from tfdist.scaling.scale import scale


def main(argv: list[str]) -> int:
    """Prints the plan, and the rate over the run where its length is known.

    Raises:
        ConfigError: An argument is malformed, missing or out of range.
    """
    args = vars(_parser().parse_args(argv))
    as_json = args.pop("json")
    plan = scale(**args)
    if as_json:
        print(plan.to_json(), end="")
        return EXIT_DONE
    print(plan)
    if plan.total_steps is not None:
        print("\n     epoch        step  learning rate")
        for epoch in _epochs(plan):
            step = round(epoch * plan.total_steps / (plan.epochs or 1))
            print(f"{epoch:>10g}  {step:>10,}  {plan.learning_rate(step):>13.6g}")
    return EXIT_DONE


def _epochs(plan: Plan) -> list[float]:
    """Returns the epochs to print: each of the warmup, each boundary, tenths of the run."""
    assert plan.epochs is not None
    whole = [float(epoch) for epoch in range(min(int(plan.warmup_epochs), 10) + 1)]
    tenths = [float(round(plan.epochs * tenth / 10)) for tenth in range(10)]
    wanted = {*whole, plan.warmup_epochs, *plan.boundaries, *tenths, plan.epochs}
    return sorted(epoch for epoch in wanted if epoch <= plan.epochs)


def _parser() -> Parser:
    parser = Parser("tfdist plan", "Compute batch size and learning rate for many replicas.")
    _add(parser, "per_replica_batch", int, "examples per replica and step", required=True)
    _add(parser, "num_replicas", int, "replicas in sync", required=True)
    _add(parser, "base_learning_rate", float, "the rate for --base_batch", required=True)
    _add(parser, "base_batch", int, "the batch that rate was tuned for (256)", default=256)
    _add(
        parser,
        "rule",
        str,
        "how the rate is scaled with the batch",
        default="linear",
        choices=tuple(RULES),
    )
    _add(parser, "warmup_epochs", float, "epochs of linear warmup (5)", default=5.0)
    _add(parser, "warmup_start", float, "the rate that warmup begins at")
    _add(parser, "decay", str, "the decay after warmup", default="constant", choices=DECAYS)
    _add(parser, "boundaries", _floats, "epochs of step decay (30,60,80)")
    _add(parser, "decay_factor", float, "factor of step decay (0.1)", default=0.1)
    _add(
        parser,
        "final_fraction",
        float,
        "fraction of the peak that cosine decay ends at (0)",
        default=0.0,
    )
    _add(parser, "epochs", float, "epochs of the run")
    _add(parser, "num_examples", int, "examples per epoch")
    _add(parser, "steps_per_epoch", int, "global batches per epoch, instead of --num_examples")
    _add(parser, "accumulate_steps", int, "global batches per update (1)", default=1)
    parser.add_argument(
        "--drop_remainder",
        "--drop-remainder",
        action="store_true",
        help="drop a partial last batch",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add(parser: Parser, name: str, kind: object, text: str, **more: object) -> None:
    # Underscores as the flags of `tfdist train`, dashes as the other subcommands.
    names = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    parser.add_argument(*names, type=kind, help=text, **more)  # type: ignore[arg-type]


def _floats(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 30,60,80") from None
