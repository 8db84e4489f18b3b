"""`tfdist plan`: compute batch size, learning rate and cost before a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tfdist.cli import plan_cost
from tfdist.cli.arguments import METAVARS, Parser, flag
from tfdist.cli.output import print_json
from tfdist.errors import EXIT_DONE
from tfdist.scaling.plan import DECAYS, RULES, Plan
from tfdist.scaling.scale import scale

# What a plan of batch and rate needs; a cost alone does not.
_REQUIRED = ("per_replica_batch", "num_replicas", "base_learning_rate")


def main(argv: list[str]) -> int:
    """Prints the plan, the rate over the run where its length is known, and what it costs.

    Raises:
        ConfigError: An argument is malformed, missing or out of range.
    """
    parser, names = _parser()
    args = vars(parser.parse_args(argv))
    as_json = args.pop("json")
    options = {name: args.pop(name) for name in names}
    costs = plan_cost.is_asked(options)
    plan = None
    if not costs or args["base_learning_rate"] is not None:
        missing = [flag(name) for name in _REQUIRED if args[name] is None]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        plan = scale(**args)
    estimate = plan_cost.estimate(options, args) if costs else None
    if estimate is not None and options["plot"]:
        estimate.plot(Path(options["plot"]))
    if as_json:
        found: dict[str, Any] = {} if plan is None else plan.to_dict()
        if estimate is not None:
            found["cost"] = estimate.to_dict()
        print_json(found)
        return EXIT_DONE
    if plan is not None:
        _print(plan)
    if estimate is not None:
        print(estimate if plan is None else f"\n{estimate}")
    return EXIT_DONE


def _print(plan: Plan) -> None:
    print(plan)
    if plan.total_steps is not None:
        print("\n     epoch        step  learning rate")
        for epoch in _epochs(plan):
            step = round(epoch * plan.total_steps / (plan.epochs or 1))
            print(f"{epoch:>10g}  {step:>10,}  {plan.learning_rate(step):>13.6g}")


def _epochs(plan: Plan) -> list[float]:
    """Returns the epochs to print: each of the warmup, each boundary, tenths of the run."""
    assert plan.epochs is not None
    whole = [float(epoch) for epoch in range(min(int(plan.warmup_epochs), 10) + 1)]
    tenths = [float(round(plan.epochs * tenth / 10)) for tenth in range(10)]
    wanted = {*whole, plan.warmup_epochs, *plan.boundaries, *tenths, plan.epochs}
    return sorted(epoch for epoch in wanted if epoch <= plan.epochs)


def _parser() -> tuple[Parser, list[str]]:
    """Returns the parser, and the names of the options about the cost."""
    parser = Parser(
        "tfdist plan",
        "Compute batch size and learning rate for many replicas, and what they cost.",
        examples=(
            "tfdist plan --per-replica-batch 32 --num-replicas 256 --base-learning-rate 0.1",
            "tfdist plan --model resnet50 --tflops 100 --link nvlink --workers 8,64,512",
        ),
        usage="tfdist plan [FLAGS]",
    )
    batch = parser.add_argument_group("batch")
    _add(batch, "per_replica_batch", int, "examples per replica and step")
    _add(batch, "num_replicas", int, "replicas in sync")
    _add(batch, "accumulate_steps", int, "global batches per update (1)", default=1)
    rate = parser.add_argument_group("learning rate")
    _add(rate, "base_learning_rate", float, "the rate for --base-batch")
    _add(rate, "base_batch", int, "the batch that rate was tuned for (256)", default=256)
    help = "how the rate is scaled with the batch (linear)"
    _add(rate, "rule", str, help, default="linear", choices=tuple(RULES))
    _add(rate, "warmup_epochs", float, "epochs of linear warmup (5)", default=5.0)
    _add(rate, "warmup_start", float, "the rate that warmup begins at")
    help = "the decay after warmup (constant)"
    _add(rate, "decay", str, help, default="constant", choices=DECAYS)
    _add(rate, "boundaries", _floats, "epochs of step decay (30,60,80)")
    _add(rate, "decay_factor", float, "factor of step decay (0.1)", default=0.1)
    help = "fraction of the peak that cosine decay ends at (0)"
    _add(rate, "final_fraction", float, help, default=0.0)
    length = parser.add_argument_group("length of the run")
    _add(length, "epochs", float, "epochs of the run")
    _add(length, "num_examples", int, "examples per epoch")
    _add(length, "steps_per_epoch", int, "global batches per epoch, instead of --num-examples")
    length.add_argument("--drop-remainder", action="store_true", help="drop a partial last batch")
    names = plan_cost.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, names


def _add(
    group: argparse._ArgumentGroup, name: str, kind: object, text: str, **more: object
) -> None:
    metavar = METAVARS.get(kind, None if "choices" in more else "X,...")
    group.add_argument(flag(name), type=kind, help=text, metavar=metavar, **more)  # type: ignore[arg-type]


def _floats(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 30,60,80") from None
