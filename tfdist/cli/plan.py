"""`tfdist plan`: compute batch size, learning rate and cost before a run."""

from __future__ import annotations

import argparse
from typing import Any

from tfdist.cli import plan_cost
from tfdist.cli.arguments import Parser, flag
from tfdist.cli.output import print_json
from tfdist.errors import EXIT_DONE
from tfdist.scaling.plan import Plan
from tfdist.scaling.rules import DECAYS, RULES
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
        plan_cost.draw(estimate, options["plot"])
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
        "tfdist plan", "Compute batch size and learning rate for many replicas, and what they cost."
    )
    _add(parser, "per_replica_batch", int, "examples per replica and step")
    _add(parser, "num_replicas", int, "replicas in sync")
    _add(parser, "base_learning_rate", float, "the rate for --base-batch")
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
    _add(parser, "steps_per_epoch", int, "global batches per epoch, instead of --num-examples")
    _add(parser, "accumulate_steps", int, "global batches per update (1)", default=1)
    parser.add_argument("--drop-remainder", action="store_true", help="drop a partial last batch")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, plan_cost.add_options(parser)


def _add(parser: Parser, name: str, kind: object, text: str, **more: object) -> None:
    parser.add_argument(flag(name), type=kind, help=text, **more)  # type: ignore[arg-type]


def _floats(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 30,60,80") from None
