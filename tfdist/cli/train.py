"""`tfdist train`: train ResNet50 with any strategy."""

from __future__ import annotations

import itertools
import json
from typing import Any

from absl import flags

from tfdist.cli.arguments import flag
from tfdist.cluster import Cluster
from tfdist.collectives.transport_names import TRANSPORTS, WIRE_NAMES
from tfdist.errors import ConfigError
from tfdist.rendezvous.once import meet, wait_seconds
from tfdist.runtime import process_one, sigterm
from tfdist.runtime.lasting_output import outlast_readers
from tfdist.runtime.startup import prefer_onednn, start_tensorflow
from tfdist.scaling.rules import DECAYS, RULES
from tfdist.strategy.kinds import AUTO, NAMES
from tfdist.validation import MOST_SECONDS, did_you_mean, one_of, quote

# The largest number of anything that is counted.
_MOST = 1_000_000_000


def define_flags() -> flags.FlagValues:
    """Defines the trainer's flags; the defaults train ResNet50 on the bundled digits."""
    values = flags.FlagValues()
    string, integer, number = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float
    enum, boolean, listed = flags.DEFINE_enum, flags.DEFINE_boolean, flags.DEFINE_list
    on = {"flag_values": values}
    enum("strategy", AUTO, NAMES, "The tf.distribute strategy.", **on)
    integer("virtual_devices", 0, "Number of devices to split the CPU into; 0: none.", 0, **on)
    string("dataset", "digits", "digits, a TFDS name, folder:PATH or synthetic.", **on)
    string("data_dir", None, "The folder of TFDS's datasets.", **on)
    enum("model", "resnet50", ("resnet50", "small_cnn"), "The model to train.", **on)
    integer("image_size", 32, "Height and width, in pixels.", 8, 100_000, **on)
    boolean("augment", True, "Augment as the dataset's recipe says.", **on)
    integer("per_replica_batch", 32, "Examples per replica and step.", 1, _MOST, **on)
    integer("accumulate_steps", 1, "Batches per update of the weights.", 1, _MOST, **on)
    integer("epochs", 10, "Passes over the training data.", 1, _MOST, **on)
    number("base_learning_rate", 0.08, "The rate for a batch of --base-batch.", 0.0, _MOST, **on)
    integer("base_batch", 256, "The batch --base-learning-rate is for.", 1, _MOST, **on)
    enum("rule", "linear", tuple(RULES), "How the rate is scaled with the global batch.", **on)
    number("warmup_epochs", 1.0, "Epochs of gradual warmup.", 0.0, _MOST, **on)
    enum("decay", "cosine", DECAYS, "The decay of the rate after warmup.", **on)
    enum("optimizer", "sgd", ("sgd", "adam", "adamw"), "The optimizer; sgd has momentum 0.9.", **on)
    boolean("synchronized_batch_norm", False, "Normalise over the global batch.", **on)
    enum(
        "mixed_precision",
        "float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
        "Keras' dtype policy.",
        **on,
    )
    enum("transport", "auto", TRANSPORTS, "What carries tensors between workers.", **on)
    enum("wire_dtype", "auto", WIRE_NAMES, "The type gradients are sent in.", **on)
    integer("local_steps", 1, "Steps between two averages of the workers.", 1, _MOST, **on)
    number("outer_learning_rate", 1.0, "The part of the way to an average.", 0.0, _MOST, **on)
    number("outer_momentum", 0.0, "Nesterov momentum of that way.", 0.0, 1.0, **on)
    integer("seed", 0, "Initial weights, order and augmentation follow from it.", 0, **on)
    string("output_dir", None, "Where the model, plan and history are written.", **on)
    string("checkpoint_dir", None, "Where training is saved, and resumed from.", **on)
    integer("checkpoint_steps", None, "Batches between two checkpoints; else each epoch.", 1, **on)
    string("profile", None, "Record steps A:B, for tfdist profile.", **on)
    listed("profile_tasks", None, "The tasks that do: worker/1,...; all.", **on)
    waiting = "Seconds to wait for the other tasks ($TFDIST_WAIT)."
    number("wait", wait_seconds(), waiting, 0.0, MOST_SECONDS, **on)
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
    process_one.go_on_in_a_child()
    outlast_readers()
    sigterm.end_process_one()
    options = parse(values, argv)
    cluster = Cluster.from_environment()
    meet(cluster, options.pop("wait"), job=_job(options))
    prefer_onednn()
    start_tensorflow()
    from tfdist.programs import evaluator, train

    if cluster.task.type == "evaluator":
        evaluator.evaluate(cluster, train.TrainOptions(**options))
        return 0
    summary = train.train(cluster, train.TrainOptions(**options))
    if summary is not None:
        print(summary, flush=True)
    return 0


# Options that may differ between tasks: the folders of their files.
_OWN = ("output_dir", "data_dir", "checkpoint_dir")


def _job(options: dict[str, Any]) -> str:
    """Returns the options that must be the same in all tasks; folders may differ."""
    return json.dumps({k: v for k, v in options.items() if k not in _OWN})


def parse(values: flags.FlagValues, argv: list[str]) -> dict[str, Any]:
    """Reads the flags.

    Returns:
        Their values by name.

    Raises:
        ConfigError: A flag is unknown, or its value is not allowed.
    """
    own = _spelled(values, argv)
    try:
        rest = values(["tfdist train", *own])[1:]
    except (flags.Error, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"train: {text}; see 'tfdist train --help'") from None
    if rest:
        raise ConfigError(f"train: {rest[0]!r} is not a flag; see 'tfdist train --help'")
    return {name: values[name].value for name in define_flags()}


def _spelled(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Returns the arguments with absl's names of the flags: underscores, and `noaugment`.

    Raises:
        ConfigError: A flag, or the word that it names, is unknown.
    """
    negations = {f"no{name}": name for name in values if values[name].boolean}
    known = {flag(name): name for name in (*values, *negations)}
    known |= {flag(f"no_{name}"): negation for negation, name in negations.items()}
    own: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--" or not word.startswith("-"):
            return [*own, word, *words]
        given, equals, value = word.partition("=")
        name = known.get(flag(given.lstrip("-")))
        if name is None:
            hint = did_you_mean(given, known) or "; see 'tfdist train --help'"
            raise ConfigError(f"train: {quote(given)} is not a flag{hint}")
        alone = equals or name in negations or values[name].boolean
        behind = [] if alone else list(itertools.islice(words, 1))
        choices = getattr(values[negations.get(name, name)].parser, "enum_values", ())
        for choice in ([value] if equals else behind) if choices else ():
            one_of(f"train({flag(name)})", choice, choices)
        own += [f"--{name}{equals}{value}", *behind]
    return own
