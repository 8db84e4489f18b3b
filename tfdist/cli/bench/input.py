"""`tfdist bench input`: measures what the data pipeline alone delivers."""

from __future__ import annotations

from tfdist.cli.arguments import Parser, count, seconds
from tfdist.cli.bench.say import check_model, say
from tfdist.cli.output import output, picture, write_json
from tfdist.errors import EXIT_INTERRUPTED


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code.

    Raises:
        ConfigError: The arguments are wrong.
        TfdistError: A run failed.
    """
    from tfdist.benchmark import hardware
    from tfdist.benchmark import input as pipeline

    parser = Parser(
        "tfdist bench input",
        "Read a data set through the training pipeline, up to each of its stages; compare what it "
        "delivers with what the steps take, and say what to change.",
        examples=("tfdist bench input --dataset digits --need 500",),
    )
    parser.add_argument("--dataset", default="digits", help="as for tfdist train (digits)")
    parser.add_argument("--data-dir", metavar="DIR", help="where it is kept")
    parser.add_argument("--image-size", type=count, default=32, help="pixels (32)")
    parser.add_argument("--global-batch", type=count, default=32, help="examples a step (32)")
    parser.add_argument("--need", type=float, help="examples/s of the steps (they are timed)")
    parser.add_argument(
        "--model", default="resnet50", help="of these steps: resnet50, small_cnn or module:function"
    )
    parser.add_argument("--seconds", type=seconds, default=3.0, help="for each stage (3)")
    parser.add_argument("--json", type=output, metavar="FILE", help="also write the figures")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="also draw them, as a PNG")
    options = parser.parse_args(argv)
    check_model(parser, options.model)
    if not (options.global_batch and options.image_size and options.seconds):
        parser.error("global_batch, pixels and seconds are more than 0")
    if options.need is not None and not 0 < options.need < 1e12:
        parser.error(f"--need {options.need:g}: allowed: examples a second, more than 0")
    from tfdist import data

    source = data.load(
        options.dataset, data_dir=options.data_dir, image_size=options.image_size, channels=3
    )
    described = hardware.describe()
    say(hardware.line(described))
    stages = pipeline.measure(source, options.global_batch, options.seconds, say=say)
    if not stages:
        return EXIT_INTERRUPTED
    need = options.need
    if need is None:
        need = _need(options.model, options.global_batch, options.image_size)
    title = f"{source.name}, {options.image_size} pixels, batches of {options.global_batch}"
    say(f"\n{title}\n{pipeline.table(stages, need)}\n{pipeline.verdict(stages, need)}")
    if options.json:
        rates = {stage.name: stage.examples for stage in stages}
        write_json(options.json, {"hardware": described, "need": need, "stages": rates})
    if options.plot:
        pipeline.plot(title, stages, need, options.plot)
    return 0


def _need(model: str, batch: int, image_size: int) -> float:
    """Returns the examples a second of training on all cores, on data that costs nothing."""
    from tfdist.benchmark.trial import Setting, try_out
    from tfdist.launcher.machine import usable_cores

    setting = Setting(model=model, batch=batch, image_size=image_size, warm_up=2, steps=6)
    return batch / try_out(setting, 1, cores=len(usable_cores()))["step"]
