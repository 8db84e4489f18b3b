"""`tfdist plan`: compute batch size, learning rate and cost before a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tfdist.cli.arguments import Parser, flag
from tfdist.cli.output import print_json
from tfdist.cli.plan_cost import COST, CostOptions, estimate, is_asked
from tfdist.errors import EXIT_DONE
from tfdist.option_fields import option, options_of
from tfdist.scaling.estimate import Estimate
from tfdist.scaling.plan import DECAYS, RULES, Plan
from tfdist.scaling.scale import scale

# What a plan of batch and rate needs; a cost alone does not.
_REQUIRED = ("per_replica_batch", "num_replicas", "base_learning_rate")
# Images per worker and step, where only a cost is asked for.
_IMAGES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RunOptions:
    """The arguments of `scale`, which checks their limits."""

    per_replica_batch: int | None = option("examples per replica and step", group="batch")
    num_replicas: int | None = option("replicas in sync")
    accumulate_steps: int = option("global batches per update", 1)
    base_learning_rate: float | None = option("the rate for --base-batch", group="learning rate")
    base_batch: int = option("the batch that rate was tuned for", 256)
    rule: str = option("how the rate is scaled with the batch", "linear", choices=RULES)
    warmup_epochs: float = option("epochs of linear warmup", 5.0)
    warmup_start: float | None = option("the rate that warmup begins at")
    decay: str = option("the decay after warmup", "constant", choices=DECAYS)
    boundaries: list[float] | None = option("epochs of step decay (30,60,80)")
    decay_factor: float = option("factor of step decay", 0.1)
    final_fraction: float = option("fraction of the peak that cosine decay ends at", 0.0)
    epochs: float | None = option("epochs of the run", above=0, group="length of the run")
    num_examples: int | None = option("examples per epoch")
    steps_per_epoch: int | None = option("global batches per epoch, instead of --num-examples")
    drop_remainder: bool = option("drop a partial last batch", False)


def main(argv: list[str]) -> int:
    """Prints the plan, the rate over the run where its length is known, and what it costs.

    Raises:
        ConfigError: An argument is malformed, missing or out of range.
    """
    parser = Parser(
        "tfdist plan",
        "Compute batch size and learning rate for many replicas, and what they cost.",
        examples=(
            "tfdist plan --per-replica-batch 32 --num-replicas 256 --base-learning-rate 0.1",
            "tfdist plan --model resnet50 --tflops 100 --link nvlink --workers 8,64,512",
        ),
        usage="tfdist plan [FLAGS]",
    )
    options, of_cost = options_of(_RunOptions), options_of(CostOptions)
    parser.add_options([*options, *of_cost], {COST: "With --model or --multiply-adds:"})
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.read_options(argv, [*options, *of_cost])
    as_json = given.pop("json")
    for_cost = {each.name: given.pop(each.name) for each in of_cost if each.name in given}
    run, costs = _RunOptions(**given), is_asked(for_cost)
    plan = None
    if not costs or run.base_learning_rate is not None:
        missing = [flag(name) for name in _REQUIRED if name not in given]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        plan = scale(**dataclasses.asdict(run))
    cost = _estimate(CostOptions(**for_cost), run) if costs else None
    if cost is not None and for_cost.get("plot"):
        cost.plot(Path(for_cost["plot"]))
    if as_json:
        found: dict[str, Any] = {} if plan is None else plan.to_dict()
        if cost is not None:
            found["cost"] = cost.to_dict()
        print_json(found)
        return EXIT_DONE
    if plan is not None:
        _print(plan)
    if cost is not None:
        print(cost if plan is None else f"\n{cost}")
    return EXIT_DONE


def _estimate(costs: CostOptions, run: _RunOptions) -> Estimate:
    batch, replicas = run.per_replica_batch or _IMAGES, run.num_replicas or 1
    images = run.num_examples
    if images is None and run.steps_per_epoch is not None:
        images = run.steps_per_epoch * batch * replicas
    return estimate(costs, batch=batch, replicas=replicas, images=images, epochs=run.epochs)


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
