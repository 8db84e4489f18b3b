"""`tfdist bench equality`: measures how far the losses of strategies are apart."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count
from tfdist.cli.output import output, picture, write_json


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    parser = Parser(
        "tfdist bench equality",
        "Train ResNet50 from the same weights on the same batches on one device, two replicas and "
        "two workers; list how far their losses are apart.",
        examples=("tfdist bench equality --dtype float64 --steps 5",),
    )
    parser.add_argument("--steps", type=count, default=20, help="updates of the weights (20)")
    parser.add_argument("--global-batch", type=count, default=32, help="examples per step (32)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="the type of all computations (float32)",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        help="rate of SGD with momentum and clipped gradients (float32: 1e-5, float64: 0.01)",
    )
    parser.add_argument(
        "--json", type=output, metavar="FILE", help="also write the losses of every step"
    )
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    from tfdist.benchmark import equality

    rate = options.learning_rate
    if rate is None:
        rate = {"float32": 1e-5, "float64": 0.01}[options.dtype]
    losses = equality.measure(options.steps, options.global_batch, rate, options.dtype)
    if options.json:
        write_json(options.json, losses)
    if options.plot:
        equality.plot(losses, options.plot, f"ResNet50, {options.dtype}, rate {rate:g}")
    print(
        f"relative difference of the loss, {options.steps} steps of {options.global_batch}, "
        f"{options.dtype}, rate {rate:g}"
    )
    print(f"{'':<42}{'first':>10}{'median':>10}{'largest':>10}")
    for name, values in equality.differences(losses).items():
        middle = sorted(values)[len(values) // 2]
        print(f"{name:<42}{values[0]:>10.1e}{middle:>10.1e}{values.max():>10.1e}")
    return 0
