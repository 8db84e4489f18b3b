"""`tfdist train`: the ResNet50 trainer, on any strategy."""

from __future__ import annotations

import json
import sys
from typing import Any

from absl import flags

from tfdist.cluster import Cluster
from tfdist.cluster.meeting import meet, wait_seconds
from tfdist.errors import ConfigError
from tfdist.quiet import start_tensorflow
from tfdist.scaling import DECAYS, RULES

# Named here as well as in tfdist.strategy, which imports TensorFlow.
_STRATEGIES = (
    "auto",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "central_storage",
    "parameter_server",
)


def define_flags() -> flags.FlagValues:
    """The trainer's flags, with the defaults that train ResNet50 on the bundled digits."""
    values = flags.FlagValues()
    string, integer, number = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float
    enum, boolean = flags.DEFINE_enum, flags.DEFINE_boolean
    on = {"flag_values": values}
    enum("strategy", "auto", _STRATEGIES, "How replicas are laid out and step.", **on)
    integer("virtual_devices", 0, "Split the CPU into so many devices; 0: do not.", 0, **on)
    string("dataset", "digits", "digits, a TFDS name, folder:PATH or synthetic.", **on)
    string("data_dir", None, "Where TFDS keeps datasets.", **on)
    enum("model", "resnet50", ("resnet50", "small_cnn"), "What to train.", **on)
    integer("image_size", 32, "Height and width, in pixels.", 8, **on)
    boolean("augment", True, "Augment as the dataset's recipe says.", **on)
    integer("per_replica_batch", 32, "Examples a replica takes at a time.", 1, **on)
    integer("accumulate_steps", 1, "Batches an update of the weights.", 1, **on)
    integer("epochs", 10, "Passes over the training data.", 1, **on)
    number("base_learning_rate", 0.08, "The rate for a batch of --base_batch.", 0.0, **on)
    integer("base_batch", 256, "The batch --base_learning_rate is for.", 1, **on)
    enum("rule", "linear", RULES, "How the rate follows the global batch.", **on)
    number("warmup_epochs", 1.0, "Epochs of gradual warmup.", 0.0, **on)
    enum("decay", "cosine", DECAYS, "What the rate does after warmup.", **on)
    enum("optimizer", "sgd", ("sgd", "adam", "adamw"), "SGD is with momentum 0.9.", **on)
    boolean("synchronized_batch_norm", False, "Normalise over the global batch.", **on)
    enum(
        "mixed_precision",
        "float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
        "Keras' dtype policy.",
        **on,
    )
    integer("seed", 0, "Initial weights, order and augmentation follow from it.", 0, **on)
    string("output_dir", None, "Where the model, plan and history are written.", **on)
    string("checkpoint_dir", None, "Where training is saved, and resumed from.", **on)
    integer("checkpoint_steps", None, "Batches between two checkpoints; else each epoch.", 1, **on)
    number("wait", wait_seconds(), "Seconds to wait for the other tasks ($TFDIST_WAIT).", 0.0, **on)
    return values


def main(argv: list[str]) -> int:
    """Trains as the flags say; returns the exit code.

    Raises:
        ConfigError: A flag or the cluster is wrong; nothing was started.
        PeerError: A task of the cluster is missing or was lost.
    """
    values = define_flags()
    if any(argument in ("-h", "--help", "-help") for argument in argv):
        print("usage: tfdist train [--flag=value ...]\n")
        print(values.get_help())
        return 0
    options = parse(values, argv)
    cluster = Cluster.from_environment()
    meet(cluster, options.pop("wait"), job=_job(options))
    start_tensorflow()
    from tfdist.training import run

    summary = run.train(cluster, run.Options(**options))
    if summary is not None:
        print(summary, flush=True)
    sys.stdout.flush()
    return 0


# A task's own affair: where it keeps its files.
_OWN = ("output_dir", "data_dir", "checkpoint_dir")


def _job(options: dict[str, Any]) -> str:
    """What all tasks must have been told alike; where they keep files may differ."""
    return json.dumps({k: v for k, v in options.items() if k not in _OWN})


def parse(values: flags.FlagValues, argv: list[str]) -> dict[str, Any]:
    """Reads the flags.

    Returns:
        Their values by name.

    Raises:
        ConfigError: A flag is unknown, or its value is not allowed.
    """
    try:
        rest = values(["tfdist train", *argv])[1:]
    except flags.Error as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"train: {text}; see 'tfdist train --help'") from None
    if rest:
        raise ConfigError(f"train: {rest[0]!r} is not a flag; see 'tfdist train --help'")
    return {name: values[name].value for name in define_flags()}
