"""The options of `tfdist plan` about operations, memory, network and money."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from tfdist.cli.arguments import METAVARS, Parser, flag
from tfdist.collectives.transport_names import FLOAT32, WIRE_BYTES
from tfdist.errors import ConfigError
from tfdist.scaling.cost import (
    FLOAT32_BYTES,
    PRECISIONS,
    SLOTS,
    Device,
    replica_memory,
    training_flop,
)
from tfdist.scaling.estimate import Estimate
from tfdist.scaling.network import LINKS, Link, read_link
from tfdist.scaling.prediction import Model, powers_of_two
from tfdist.validation import number, reject, whole_number

_MOST = 1e24
_MOST_WORKERS = 4096
_BATCH = 32
_UTILIZATION = 0.33
_IMAGE_SIZE, _CHANNELS = 224, 3
_FLAG: dict[str, Any] = {"action": "store_true", "default": None}
# What asks for an estimate; the other options change it.
_MODELS = ("model", "multiply_adds")


def add_options(parser: Parser) -> list[str]:
    """Adds the options, and returns their names."""
    group = parser.add_argument_group("what it costs", "With --model or --multiply-adds:")

    def add(name: str, text: str, **more: Any) -> None:
        if more.get("type") in METAVARS:
            more["metavar"] = METAVARS[more["type"]]
        group.add_argument(flag(name), help=text, **more)

    add(
        "model",
        "resnet50, small_cnn, of keras.applications, a saved .keras file, or module:function",
        metavar="NAME",
    )
    add("image_size", "height and width of the images (224, or the model's own)", type=int)
    add("classes", "classes of the model (its own)", type=int)
    add("multiply_adds", "instead of --model: multiply-adds of an image, forward", type=float)
    add("parameters", "instead of --model: values of its weights", type=float)
    add(
        "activations", "instead of --model: values that a backward pass needs, an image", type=float
    )
    add("input_bytes", "bytes of an image as the model takes it (float32)", type=float)
    add("optimizer", "the optimizer, for its memory (momentum)", choices=tuple(SLOTS))
    add("precision", "Keras' policy (float32)", choices=tuple(PRECISIONS))
    add("sharded_updates", "the optimizer's values are divided among the replicas", **_FLAG)
    add("tflops", "the most a device could do, in TFLOP/s", type=float)
    add("utilization", "the fraction of it that training attains (0.33)", type=float)
    add("step_seconds", "a step of one worker, measured, instead of --tflops", type=float)
    add("price", "the price of an hour of a device", type=float)
    add("link", "the link between workers", choices=tuple(LINKS))
    add("latency", "instead of --link: its latency in seconds", type=float)
    add("bandwidth", "instead of --link: its bandwidth in bytes/s, one way", type=float)
    add("network", "instead of --link: a file of tfdist bench collectives --json", metavar="FILE")
    add("transport", "whose figures of that file are taken (ring)", metavar="NAME")
    add("wire_dtype", "the type in which gradients are sent", choices=tuple(WIRE_BYTES))
    add("overlap", "gradients are sent while the backward pass goes on", **_FLAG)
    add("servers", "parameter servers, instead of an all-reduce", type=int)
    add(
        "workers",
        "the numbers of workers to predict for (1,2,4,...,4096)",
        type=_counts,
        metavar="N,...",
    )
    add("plot", "draw efficiency against workers, as a PNG", metavar="FILE")
    return [action.dest for action in group._group_actions]


def is_asked(options: dict[str, Any]) -> bool:
    """Returns whether an estimate is asked for.

    Args:
        options: The values of the options, None for those not given.

    Raises:
        ConfigError: Options of an estimate are given without a model.
    """
    if any(options[name] is not None for name in _MODELS):
        return True
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"plan({flag(given[0])}): given without a model; add --model NAME, or "
            "--multiply-adds and --parameters"
        )
    return False


def estimate(options: dict[str, Any], run: dict[str, Any]) -> Estimate:
    """Returns the estimate that the options ask for.

    Args:
        options: The values of the options, None for those not given.
        run: `per_replica_batch`, `num_replicas`, `num_examples`, `steps_per_epoch` and `epochs` of
            `tfdist plan`; None for those not given.

    Raises:
        ConfigError: An option is out of range, or two contradict each other.
    """
    values = {name: _checked(name, value) for name, value in options.items()}
    model = _counted(values) if values["model"] is not None else _by_hand(values)
    given = {"num_replicas": 1, "per_replica_batch": _BATCH}
    given |= {name: run[name] for name in given if run[name] is not None}
    replicas = whole_number("plan(--num-replicas)", given["num_replicas"])
    batch = whole_number("plan(--per-replica-batch)", given["per_replica_batch"])
    images = run["num_examples"]
    if images is None and run["steps_per_epoch"] is not None:
        images = run["steps_per_epoch"] * batch * replicas
    if images is not None:
        images = whole_number("plan(--num-examples)", images)
    if run["epochs"] is not None:
        number("plan(--epochs)", run["epochs"], above=0, most=_MOST)
    device = None
    if values["tflops"] is not None:
        device = Device(values["tflops"], values["utilization"] or _UTILIZATION)
    chosen: dict[str, Any] = {
        "precision": values["precision"] or "float32",
        "shards": replicas if values["sharded_updates"] else 1,
    }
    others: dict[str, dict[str, Any]] = {
        "float32": {"precision": "float32"},
        "mixed_float16": {"precision": "mixed_float16"},
    }
    others |= {f"updates sharded over {replicas}": {"shards": replicas}} if replicas > 1 else {}
    memory_of = functools.partial(
        replica_memory,
        model["parameters"],
        trainable=model["trainable"],
        activations=model.pop("activations"),
        batch=batch,
        optimizer=values["optimizer"] or "momentum",
    )
    wire_bytes = WIRE_BYTES[values["wire_dtype"] or FLOAT32] * model["trainable"]
    link = _link(values)
    seconds = values["step_seconds"]
    if seconds is None and device is not None:
        seconds = batch * training_flop(model["multiply_adds"]) / device.flop_per_second
    prediction = None
    if link is not None and seconds is not None:
        prediction = Model(
            compute_seconds=seconds,
            wire_bytes=wire_bytes,
            link=link,
            overlap=bool(values["overlap"]),
            servers=values["servers"] or 0,
        )
    elif values["plot"] or link is not None:
        missing = "the time of a step" if link is not None else "a link"
        reject(
            "plan(--plot)" if values["plot"] else "plan(--link)",
            f"given without {missing}; add --tflops or --step-seconds, and --link, --latency and "
            "--bandwidth, or --network",
        )
    return Estimate(
        **model,
        batch=batch,
        wire_bytes=wire_bytes,
        memory=memory_of(**chosen),
        other_memory={
            name: memory_of(**(chosen | other)).total
            for name, other in others.items()
            if chosen | other != chosen
        },
        images=images,
        epochs=run["epochs"],
        device=device,
        price=values["price"],
        prediction=prediction,
        workers=values["workers"] or powers_of_two(_MOST_WORKERS),
        servers=values["servers"] or 1,
    )


def _checked(name: str, value: Any) -> Any:
    """Returns the value of an option if it is in its range."""
    where = f"plan({flag(name)})"
    if value is None or isinstance(value, (str, bool)):
        return value
    if name in ("image_size", "classes", "servers"):
        return whole_number(where, value)
    if name == "workers":
        return [whole_number(where, count) for count in value]
    if name == "utilization":
        return number(where, value, above=0, most=1)
    if name in ("price", "latency", "activations"):
        return number(where, value, least=0, most=_MOST)
    return number(where, value, above=0, most=_MOST)


def _by_hand(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the size of a model that is described by numbers."""
    if values["parameters"] is None or values["multiply_adds"] is None:
        name = "parameters" if values["parameters"] is None else "multiply_adds"
        reject(f"plan({flag(name)})", "missing; give --multiply-adds and --parameters, or --model")
    size = values["image_size"] or _IMAGE_SIZE
    return {
        "name": "described by --multiply-adds",
        "multiply_adds": values["multiply_adds"],
        "parameters": values["parameters"],
        "trainable": values["parameters"],
        "activations": values["activations"] or 0,
        "input_bytes": values["input_bytes"] or FLOAT32_BYTES * _CHANNELS * size**2,
    }


def _counted(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the size of a model that is built and counted; it loads TensorFlow."""
    for name in ("multiply_adds", "parameters", "activations"):
        if values[name] is not None:
            reject(f"plan({flag(name)})", "given beside --model, which is counted; keep one")
    from tfdist.runtime.startup import start_tensorflow

    start_tensorflow()
    from tfdist.models.named import named_model
    from tfdist.models.operations import count_operations

    model = named_model(values["model"], values["image_size"], values["classes"])
    count = count_operations(model)
    shapes = [model.input_shape] if len(model.inputs) == 1 else model.input_shape
    sizes = (" x ".join(str(size) for size in shape[1:]) for shape in shapes)
    name = f"{values['model']}, {' and '.join(sizes)}"
    if count.uncounted:
        name += f"; not counted: {', '.join(count.uncounted)}"
    return {
        "name": name,
        "multiply_adds": count.multiply_adds,
        "profiled_flop": count.profiled_flop,
        "parameters": count.parameters,
        "trainable": count.trainable,
        "activations": count.activations,
        "input_bytes": values["input_bytes"] or count.input_bytes,
    }


def _link(values: dict[str, Any]) -> Link | None:
    ways = [name for name in ("link", "latency", "network") if values[name] is not None]
    if len(ways) > 1:
        reject(f"plan(--{ways[1]})", f"given beside --{ways[0]}; keep one of them")
    if (values["latency"] is None) != (values["bandwidth"] is None):
        name = "latency" if values["latency"] is None else "bandwidth"
        reject(f"plan(--{name})", "missing; --latency and --bandwidth go together")
    if values["transport"] is not None and values["network"] is None:
        reject("plan(--transport)", "given without --network; add the file")
    if values["network"] is not None:
        return read_link(values["network"], values["transport"] or "ring")
    if values["latency"] is not None:
        return Link(values["latency"], values["bandwidth"])
    return None if values["link"] is None else LINKS[values["link"]]


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 1,8,256")
    return [int(part) for part in parts]
