"""The contenders of each comparison, and what runs each of them; free of TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.peers.slow_link import LinkSpeed


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to do the work of a comparison.

    Attributes:
        name: For the table.
        program: The function that runs it, of `work`, or of `torch_ddp` or `horovod_tape`.
        tasks: How many tasks of each role, each on a core of its own; a ps shares the chief's.
        environment: The Python environment it runs in: "own", or one of `environments`.
        options: Arguments for `tfdist.Trainer`.
    """

    name: str
    program: str
    tasks: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"worker": 1})
    environment: str = "own"
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Contenders for the same work; ratios are to the first.

    Attributes:
        name: Its name for `--only`.
        title: For the table.
        model: "resnet50", "resnet50_synchronized" (its BatchNormalization) or "small".
        optimizer: "sgd" or "adamw".
        unit: What is counted a second.
        contenders: The contenders.
        units: How many of them a step has.
        link: The link between two hosts, of which each has a worker; None for loopback.
    """

    name: str
    title: str
    model: str
    optimizer: str
    unit: str
    contenders: tuple[Contender, ...]
    units: int = 1
    link: LinkSpeed | None = None


_TWO = {"worker": 2}
_SERVERS = {"chief": 1, "worker": 2, "ps": 1}
_RESNET50 = "ResNet50, 32 x 32 pixels, 32 images a worker and step"
_SMALL = "one hidden layer of 64 units, 32 rows a worker and step"


def _one_device(name: str, model: str, optimizer: str, what: str) -> Comparison:
    rule = {"sgd": "SGD with momentum", "adamw": "AdamW"}[optimizer]
    contenders = [
        Contender("Keras fit", "keras_fit"),
        Contender("tfdist", "tfdist_fit"),
    ]
    if model == "small":
        many = {"steps_per_call": 20}
        contenders.append(Contender("tfdist, 20 steps a call", "tfdist_fit", options=many))
    else:
        faster = {"compile_update": True}
        contenders.append(Contender("tfdist, compiled update", "tfdist_fit", options=faster))
    return Comparison(
        name, f"one device: {what}, {rule}", model, optimizer, "steps", tuple(contenders)
    )


def _over_tcp(name: str, **options: object) -> Contender:
    """Two workers that do not use the memory of the host they share."""
    return Contender(name, "tfdist_fit", _TWO, options={"transport": "ring", **options})


def _servers(name: str, model: str, what: str) -> Comparison:
    contenders = (
        Contender("plain coordinator loop", "coordinator_loop", _SERVERS),
        Contender("tfdist", "tfdist_fit", _SERVERS),
    )
    return Comparison(name, f"1 ps, 2 workers: {what}", model, "sgd", "steps", contenders)


COMPARISONS = (
    Comparison(
        "two_workers",
        f"two workers: {_RESNET50}, SGD with momentum",
        "resnet50",
        "sgd",
        "images",
        (
            Contender("plain MWMS loop", "mwms_loop", _TWO),
            Contender("tf-keras fit", "tf_keras_fit", _TWO, "tf_keras"),
            Contender("PyTorch DDP", "torch_ddp", _TWO, "torch"),
            Contender("Horovod", "tape", _TWO, "horovod"),
            Contender("tfdist", "tfdist_fit", _TWO),
            _over_tcp("tfdist over TCP"),
            Contender("tfdist without communication", "tfdist_alone", _TWO),
        ),
        units=64,
    ),
    Comparison(
        "sending_less",
        f"two workers that send less: {_RESNET50}, SGD with momentum",
        "resnet50",
        "sgd",
        "images",
        (
            Contender("tfdist", "tfdist_fit", _TWO),
            Contender(
                "tfdist, 4 batches an update", "tfdist_fit", _TWO, options={"accumulate_steps": 4}
            ),
            Contender("tfdist, 8 local steps", "tfdist_fit", _TWO, options={"local_steps": 8}),
        ),
        units=64,
    ),
    Comparison(
        "all_reduce",
        "sum over two workers of ResNet50's gradients, 94 MB of float32",
        "resnet50",
        "sgd",
        "sums",
        (
            Contender("TensorFlow's collectives", "tensorflow_sum", _TWO),
            Contender("gloo (PyTorch)", "gloo", _TWO, "torch"),
            Contender("tfdist over TCP", "ring_sum", _TWO),
            Contender("tfdist in one host's memory", "memory_sum", _TWO),
        ),
    ),
    Comparison(
        "synchronized_batch_norm",
        f"two workers, synchronized BatchNormalization: {_RESNET50}, SGD with momentum",
        "resnet50_synchronized",
        "sgd",
        "images",
        (
            Contender("plain MWMS loop", "mwms_loop", _TWO),
            Contender("tfdist", "tfdist_fit", _TWO),
        ),
        units=64,
    ),
    _one_device("one_device", "resnet50", "sgd", _RESNET50),
    _one_device("one_device_adamw", "resnet50", "adamw", _RESNET50),
    _one_device("one_device_small", "small", "sgd", _SMALL),
    Comparison(
        "mirrored",
        f"two replicas on virtual CPUs: {_RESNET50}, SGD with momentum",
        "resnet50",
        "sgd",
        "images",
        (
            Contender("Keras fit", "keras_mirrored", {"worker": 1}),
            Contender("tfdist", "tfdist_mirrored", {"worker": 1}),
            Contender("tfdist without communication", "tfdist_alone", _TWO),
        ),
        units=64,
    ),
    Comparison(
        "slow_link",
        f"two workers, 1 Gbit/s and 1 ms between them: {_RESNET50}, SGD with momentum",
        "resnet50",
        "sgd",
        "images",
        (
            Contender("plain MWMS loop", "mwms_loop", _TWO),
            Contender("PyTorch DDP", "torch_ddp", _TWO, "torch"),
            _over_tcp("tfdist"),
            dataclasses.replace(
                _over_tcp("tfdist, sent after the backward pass"), program="tfdist_in_turn"
            ),
            _over_tcp("tfdist, bfloat16 wire", wire_dtype="bfloat16"),
            _over_tcp("tfdist, 4 batches an update", accumulate_steps=4),
            _over_tcp("tfdist, 8 local steps", local_steps=8),
            Contender("tfdist without communication", "tfdist_alone", _TWO),
        ),
        units=64,
        link=LinkSpeed("1gbit", "1ms"),
    ),
    _servers("parameter_server", "resnet50", _RESNET50),
    _servers("parameter_server_small", "small", _SMALL),
)
