"""`tfdist bench batch`: measures samples a second by batch size."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count
from tfdist.cli.bench.say import check_model, say
from tfdist.cli.output import output, picture, write_json
from tfdist.errors import EXIT_INTERRUPTED


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import batch, hardware
    from tfdist.benchmark.trial import Setting
    from tfdist.scaling.scale import scale

    parser = Parser(
        "tfdist bench batch",
        "Train on one device with batches of 1, 2, 4, ... until the speed falls, memory ends or a "
        "limit is reached; recommend a batch, with the learning rate that belongs to it.",
        examples=(
            "tfdist bench batch --model small_cnn --limit 64",
            "tfdist bench batch --image-size 224 --replicas 8",
        ),
    )
    parser.add_argument("--limit", type=count, default=256, help="the largest batch (256)")
    parser.add_argument(
        "--model", default="resnet50", help="resnet50, small_cnn or module:function (resnet50)"
    )
    parser.add_argument("--image-size", type=count, default=32, help="pixels (32)")
    parser.add_argument("--steps", type=count, default=5, help="steps on the clock (5)")
    parser.add_argument("--replicas", type=count, default=1, help="for the learning rate (1)")
    parser.add_argument(
        "--base-learning-rate", type=float, default=0.1, help="rate for a batch of 256 (0.1)"
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="also write the figures")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    check_model(parser, options.model)
    if not (options.limit and options.steps and options.image_size and options.replicas):
        parser.error("limit, steps, pixels and replicas are 1 or more")
    setting = Setting(
        model=options.model, image_size=options.image_size, steps=options.steps, warm_up=2
    )
    described = hardware.describe()
    say(hardware.line(described))
    speeds, end = batch.measure(setting, options.limit, say=say)
    if not speeds:
        return EXIT_INTERRUPTED
    title = f"{options.model}, {options.image_size} pixels, one device"
    chosen = batch.recommended(speeds)
    plan = scale(
        per_replica_batch=chosen.batch,
        num_replicas=options.replicas,
        base_learning_rate=options.base_learning_rate,
        base_batch=256,
        rule="linear",
    )
    say(f"\n{title}; it ended as {end}\n{batch.table(speeds)}")
    say(
        f"recommended: {chosen.batch}, the smallest that reaches {100 * batch.SATURATED:.0f} % of "
        f"the best speed; learning rate {plan.peak_learning_rate:.4g} for {plan.global_batch} on "
        f"{options.replicas} (linear, {options.base_learning_rate:g} for 256)"
    )
    if options.json:
        found = {"hardware": described, "end": end, "recommended": chosen.batch}
        write_json(options.json, {**found, "batches": batch.rows(speeds)})
    if options.plot:
        batch.plot(title, speeds, options.plot)
    return EXIT_INTERRUPTED if end == "interrupted" else 0
