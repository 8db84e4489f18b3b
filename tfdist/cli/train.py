"""`tfdist train`: train ResNet50 with any strategy."""

from __future__ import annotations

import itertools
import json
from typing import Any

import yaml
from absl import flags

from tfdist.cli.arguments import flag
from tfdist.cli.train_help import print_help
from tfdist.cluster import Cluster
from tfdist.collectives.transport_names import TRANSPORTS, WIRE_TYPES
from tfdist.errors import ConfigError
from tfdist.programs.options import PLACES, TrainOptions
from tfdist.rendezvous.once import meet
from tfdist.runtime import process_one, sigterm
from tfdist.runtime.lost_output import survive_broken_pipe
from tfdist.runtime.startup import prefer_onednn, start_tensorflow
from tfdist.runtime.timeouts import wait_seconds
from tfdist.scaling.plan import DECAYS, RULES
from tfdist.strategy.kinds import AUTO, NAMES, check_parameter_servers
from tfdist.validation import MOST_SECONDS, did_you_mean, kind, one_of, quote

# The largest number of anything that is counted.
_MOST = 1_000_000_000


def define_flags() -> flags.FlagValues:
    """Defines the trainer's flags; the defaults train ResNet50 on the bundled digits.

    absl calls the group that help lists a flag under its module.
    """
    values = flags.FlagValues()
    string, integer, number = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float
    enum, boolean, listed = flags.DEFINE_enum, flags.DEFINE_boolean, flags.DEFINE_list
    on = {"flag_values": values, "module_name": "cluster and strategy"}
    enum("strategy", AUTO, NAMES, "the tf.distribute strategy", **on)
    integer("virtual_devices", 0, "number of devices to split the CPU into; 0: none", 0, **on)
    waiting = "seconds to wait for the other tasks ($TFDIST_WAIT)"
    number("wait", wait_seconds(), waiting, 0.0, MOST_SECONDS, **on)
    on = {"flag_values": values, "module_name": "data"}
    string("dataset", "digits", "digits, of TFDS, folder:PATH, synthetic, or module:f", **on)
    string("data_dir", None, "the folder of TFDS's datasets", **on)
    string("stage_dir", None, "a node's own disk, to copy the data to first", **on)
    number("validation_split", 0.0, "part of a folder's images to test on", 0.0, 1.0, **on)
    integer("image_size", None, "height and width, in pixels; the images' own", 8, 100_000, **on)
    boolean("augment", True, "augment as the dataset's recipe says", **on)
    integer("per_replica_batch", 32, "examples per replica and step", 1, _MOST, **on)
    integer("limit_steps", None, "steps of an epoch, for a part of the data", 1, _MOST, **on)
    on = {"flag_values": values, "module_name": "model"}
    string("model", "resnet50", "resnet50, small_cnn, of keras.applications, or module:f", **on)
    boolean("synchronized_batch_norm", False, "normalise over the global batch", **on)
    integer("seed", 0, "initial weights, order and augmentation follow from it", 0, **on)
    on = {"flag_values": values, "module_name": "optimisation"}
    integer("epochs", 10, "passes over the training data", 1, _MOST, **on)
    number("max_time", None, "seconds after which training ends", 0.0, MOST_SECONDS, **on)
    enum("optimizer", "sgd", ("sgd", "adam", "adamw"), "the optimizer; sgd has momentum 0.9", **on)
    number("base_learning_rate", 0.08, "the rate for a batch of --base-batch", 0.0, _MOST, **on)
    integer("base_batch", 256, "the batch --base-learning-rate is for", 1, _MOST, **on)
    enum("rule", "linear", tuple(RULES), "how the rate is scaled with the global batch", **on)
    number("warmup_epochs", None, "epochs of gradual warmup; 1, or half a run", 0.0, _MOST, **on)
    enum("decay", "cosine", DECAYS, "the decay of the rate after warmup", **on)
    number("weight_decay", 0.0, "decoupled weight decay", 0.0, 1.0, **on)
    number("label_smoothing", 0.0, "the part of a label that all classes share", 0.0, 1.0, **on)
    number("clip_norm", None, "the most that the gradient's norm may be", 0.0, _MOST, **on)
    number("ema", None, "momentum of an average of the weights, as 0.999", 0.0, 1.0, **on)
    integer("accumulate_steps", 1, "batches per update of the weights", 1, _MOST, **on)
    on = {"flag_values": values, "module_name": "checkpoints and output"}
    string("output_dir", None, "the run's folder: model, plan, history, checkpoints", **on)
    boolean("overwrite", False, "remove the run that is in it", **on)
    string("checkpoint_dir", None, "where training is saved, and resumed from", **on)
    integer("checkpoint_steps", None, "batches between two checkpoints; else each epoch", 1, **on)
    number("checkpoint_seconds", None, "seconds between them", 0.0, MOST_SECONDS, **on)
    string("config", None, "a file of these flags, as a run's config.yaml", **on)
    boolean("smoke", False, "try all parts out: 3 steps, a validation, a checkpoint", **on)
    on = {"flag_values": values, "module_name": "speed"}
    enum(
        "mixed_precision",
        "float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
        "Keras' dtype policy",
        **on,
    )
    enum("transport", "auto", TRANSPORTS, "what carries tensors between workers", **on)
    enum("wire_dtype", "auto", WIRE_TYPES, "the type gradients are sent in", **on)
    integer("local_steps", 1, "steps between two averages of the workers", 1, _MOST, **on)
    number("outer_learning_rate", 1.0, "the part of the way to an average", 0.0, _MOST, **on)
    number("outer_momentum", 0.0, "Nesterov momentum of that way", 0.0, 1.0, **on)
    integer("steps_per_call", None, "steps in one call of TensorFlow", 1, _MOST, **on)
    string("profile", None, "record steps A:B, for tfdist profile", **on)
    listed("profile_tasks", None, "the tasks that do: worker/1,...; all", **on)
    return values


def main(argv: list[str]) -> int:
    """Trains as the flags say; returns the exit code.

    Raises:
        ConfigError: A flag or the cluster is wrong; nothing was started.
        PeerError: A task of the cluster is missing or was lost.
    """
    values = define_flags()
    if any(argument in ("-h", "--help", "-help") for argument in argv):
        print_help(values)
        return 0
    process_one.go_on_in_a_child()
    survive_broken_pipe()
    sigterm.end_process_one()
    options = parse(values, argv)
    cluster = Cluster.from_environment()
    if cluster.has_ps:
        check_parameter_servers(cluster)
    meet(cluster, options.pop("wait"), job=_job(options))
    prefer_onednn()
    start_tensorflow()
    from tfdist.programs import evaluator, train

    train_options = TrainOptions(**options)
    if cluster.task.type == "evaluator":
        evaluator.evaluate(cluster, train_options)
        return 0
    summary = train.train(cluster, train_options)
    if summary is not None:
        print(summary, flush=True)
    return 0


def _job(options: dict[str, Any]) -> str:
    """Returns the options that must be the same in all tasks; folders may differ."""
    return json.dumps({k: v for k, v in options.items() if k not in PLACES})


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
    if values["config"].value is not None:
        _read_config(values)
    return {name: values[name].value for name in define_flags() if name != "config"}


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


def _read_config(values: flags.FlagValues) -> None:
    """Takes from a file what the command line does not say."""
    where = f"train(--config): {quote(values['config'].value)}"
    try:
        with open(values["config"].value, encoding="utf-8") as file:
            told = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{where} cannot be read ({reason})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(told, dict):
        raise ConfigError(f"{where} holds {kind(told)}; allowed: flags and their values")
    for name, value in told.items():
        flag = str(name).replace("-", "_")
        if flag not in values or flag == "config":
            known = [each for each in values if each != "config"]
            raise ConfigError(
                f"{where}: {quote(name)} is no flag of tfdist train{did_you_mean(flag, known)}"
            )
        if values[flag].present or value is None:
            continue
        given = ",".join(map(str, value)) if isinstance(value, list) else value
        try:
            values[flag].parse(str(given).lower() if isinstance(given, bool) else str(given))
        except flags.Error as error:
            raise ConfigError(f"{where}: {' '.join(str(error).split())}") from None
