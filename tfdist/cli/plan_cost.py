"""The options of `tfdist plan` about operations, memory, network and money."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tfdist.cli.arguments import flag
from tfdist.collectives.transport_names import FLOAT32, WIRE_BYTES
from tfdist.option_fields import option
from tfdist.scaling.cost import (
    FLOAT32_BYTES,
    PRECISIONS,
    SLOTS,
    Device,
    Memory,
    replica_memory,
    training_flop,
)
from tfdist.scaling.estimate import Estimate
from tfdist.scaling.network import LINKS, Link, read_link
from tfdist.scaling.prediction import Model, powers_of_two
from tfdist.validation import reject

# The group in which help lists the options.
COST = "what it costs"
_MOST_WORKERS = 4096
_IMAGE_SIZE, _CHANNELS = 224, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostOptions:
    """The options of `tfdist plan` about the cost of a run."""

    model: str | None = option(
        "resnet50, small_cnn, of keras.applications, a saved .keras file, or module:function",
        metavar="NAME",
        group=COST,
    )
    image_size: int | None = option("height and width of the images (224, or the model's own)")
    classes: int | None = option("classes of the model (its own)")
    multiply_adds: float | None = option(
        "instead of --model: multiply-adds of an image, forward", above=0
    )
    parameters: float | None = option("instead of --model: values of its weights", above=0)
    activations: float | None = option(
        "instead of --model: values that a backward pass needs, per image"
    )
    input_bytes: float | None = option("bytes of an image as the model takes it (float32)", above=0)
    optimizer: str = option("the optimizer, for its memory", "momentum", choices=SLOTS)
    precision: str = option("Keras' policy", "float32", choices=PRECISIONS)
    sharded_updates: bool = option("the optimizer's values are divided among the replicas", False)
    tflops: float | None = option("the most a device could do, in TFLOP/s", above=0)
    utilization: float = option("the fraction of it that training attains", 0.33, above=0, most=1)
    step_seconds: float | None = option(
        "a step of one worker, measured, instead of --tflops", above=0
    )
    price: float | None = option("the price of an hour of a device")
    link: str | None = option("the link between workers", choices=LINKS)
    latency: float | None = option("instead of --link: its latency in seconds")
    bandwidth: float | None = option(
        "instead of --link: its bandwidth in bytes/s, one way", above=0
    )
    network: str | None = option(
        "instead of --link: a file of tfdist bench collectives --json", metavar="FILE"
    )
    transport: str | None = option(
        "the transport of that file whose figures are used (ring)", metavar="NAME"
    )
    wire_dtype: str = option("the type in which gradients are sent", FLOAT32, choices=WIRE_BYTES)
    overlap: bool = option("gradients are sent during the backward pass", False)
    servers: int | None = option("parameter servers, instead of an all-reduce")
    workers: list[int] | None = option("the numbers of workers to predict for (1,2,4,...,4096)")
    plot: str | None = option("draw efficiency against workers, as a PNG", metavar="FILE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Size:
    """The size of a model, as `Estimate` has it, and the values its backward pass needs."""

    name: str
    multiply_adds: float
    parameters: float
    trainable: float
    input_bytes: float
    activations: float
    profiled_flop: float | None = None


def is_asked(given: Mapping[str, Any]) -> bool:
    """Returns whether an estimate is asked for.

    Args:
        given: The options of `CostOptions` that are given, by name.

    Raises:
        ConfigError: Options of an estimate are given without a model.
    """
    if "model" in given or "multiply_adds" in given:
        return True
    for name in given:
        reject(
            f"plan({flag(name)})",
            "given without a model; add --model NAME, or --multiply-adds and --parameters",
        )
    return False


def estimate(
    options: CostOptions, *, batch: int, replicas: int, images: int | None, epochs: float | None
) -> Estimate:
    """Returns the estimate that the options ask for.

    Args:
        options: What is known of the model and the machines.
        batch: Images per worker and step.
        replicas: Workers among which updates are sharded.
        images: Images per epoch, if known.
        epochs: Epochs, if known.

    Raises:
        ConfigError: Two options contradict each other, or one that another needs is missing.
    """
    size = _by_hand(options) if options.model is None else _counted(options)
    wire_bytes = WIRE_BYTES[options.wire_dtype] * size.trainable
    device = None if options.tflops is None else Device(options.tflops, options.utilization)
    memory, others = _memory(options, size, batch, replicas)
    given = dataclasses.asdict(size)
    del given["activations"]
    return Estimate(
        **given,
        batch=batch,
        wire_bytes=wire_bytes,
        memory=memory,
        other_memory=others,
        images=images,
        epochs=epochs,
        device=device,
        price=options.price,
        prediction=_prediction(options, size, batch, device, wire_bytes),
        workers=options.workers or powers_of_two(_MOST_WORKERS),
        servers=options.servers or 1,
    )


def _memory(
    options: CostOptions, size: _Size, batch: int, replicas: int
) -> tuple[Memory, dict[str, float]]:
    """Returns the memory of a replica, and its total if something else were chosen, by what."""
    memory_of = functools.partial(
        replica_memory,
        size.parameters,
        trainable=size.trainable,
        activations=size.activations,
        batch=batch,
        optimizer=options.optimizer,
    )
    chosen: dict[str, Any] = {
        "precision": options.precision,
        "shards": replicas if options.sharded_updates else 1,
    }
    others: dict[str, dict[str, Any]] = {
        "float32": {"precision": "float32"},
        "mixed_float16": {"precision": "mixed_float16"},
    }
    if replicas > 1:
        others[f"updates sharded over {replicas}"] = {"shards": replicas}
    totals = {
        name: memory_of(**(chosen | other)).total
        for name, other in others.items()
        if chosen | other != chosen
    }
    return memory_of(**chosen), totals


def _prediction(
    options: CostOptions, size: _Size, batch: int, device: Device | None, wire_bytes: float
) -> Model | None:
    """Returns what steps are predicted by, if a link and the time of a step are known."""
    link, seconds = _link(options), options.step_seconds
    if seconds is None and device is not None:
        seconds = batch * training_flop(size.multiply_adds) / device.flop_per_second
    if link is not None and seconds is not None:
        return Model(
            compute_seconds=seconds,
            wire_bytes=wire_bytes,
            link=link,
            overlap=options.overlap,
            servers=options.servers or 0,
        )
    if options.plot is None and link is None:
        return None
    missing = "a link" if link is None else "the time of a step"
    reject(
        "plan(--link)" if options.plot is None else "plan(--plot)",
        f"given without {missing}; add --tflops or --step-seconds, and --link, --latency and "
        "--bandwidth, or --network",
    )


def _by_hand(options: CostOptions) -> _Size:
    """Returns the size of a model that is described by numbers."""
    if options.parameters is None or options.multiply_adds is None:
        name = "parameters" if options.parameters is None else "multiply_adds"
        reject(f"plan({flag(name)})", "missing; give --multiply-adds and --parameters, or --model")
    sides = options.image_size or _IMAGE_SIZE
    return _Size(
        name="described by --multiply-adds",
        multiply_adds=options.multiply_adds,
        parameters=options.parameters,
        trainable=options.parameters,
        activations=options.activations or 0,
        input_bytes=options.input_bytes or FLOAT32_BYTES * _CHANNELS * sides**2,
    )


def _counted(options: CostOptions) -> _Size:
    """Returns the size of a model that is built and counted; it loads TensorFlow."""
    assert options.model is not None
    for name in ("multiply_adds", "parameters", "activations"):
        if getattr(options, name) is not None:
            reject(f"plan({flag(name)})", "given with --model, which is counted; keep one of them")
    from tfdist.runtime.startup import start_tensorflow

    start_tensorflow()
    from tfdist.models.named import named_model
    from tfdist.models.operations import count_operations

    model = named_model(options.model, options.image_size, options.classes)
    count = count_operations(model)
    shapes = [model.input_shape] if len(model.inputs) == 1 else model.input_shape
    sizes = (" x ".join(str(size) for size in shape[1:]) for shape in shapes)
    name = f"{options.model}, {' and '.join(sizes)}"
    if count.uncounted:
        name += f"; not counted: {', '.join(count.uncounted)}"
    return _Size(
        name=name,
        multiply_adds=count.multiply_adds,
        profiled_flop=count.profiled_flop,
        parameters=count.parameters,
        trainable=count.trainable,
        activations=count.activations,
        input_bytes=options.input_bytes or count.input_bytes,
    )


def _link(options: CostOptions) -> Link | None:
    ways = [name for name in ("link", "latency", "network") if getattr(options, name) is not None]
    if len(ways) > 1:
        reject(f"plan(--{ways[1]})", f"given with --{ways[0]}; keep one of them")
    if (options.latency is None) != (options.bandwidth is None):
        name = "latency" if options.latency is None else "bandwidth"
        reject(f"plan(--{name})", "missing; --latency and --bandwidth go together")
    if options.transport is not None and options.network is None:
        reject("plan(--transport)", "given without --network; add the file")
    if options.network is not None:
        return read_link(options.network, options.transport or "ring")
    if options.latency is not None and options.bandwidth is not None:
        return Link(options.latency, options.bandwidth)
    return None if options.link is None else LINKS[options.link]
