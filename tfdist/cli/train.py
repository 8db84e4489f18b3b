"""`tfdist train`: train ResNet50 with any strategy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tfdist.cli.arguments import Parser, flag
from tfdist.cluster import Cluster
from tfdist.cluster.documents import load_documents
from tfdist.errors import ConfigError
from tfdist.option_fields import Option, option, options_of
from tfdist.programs.options import CLUSTER, OUTPUT, PLACES, TrainOptions
from tfdist.rendezvous.once import meet
from tfdist.runtime import process_one, sigterm
from tfdist.runtime.lost_output import survive_broken_pipe
from tfdist.runtime.startup import prefer_onednn, start_tensorflow
from tfdist.strategy.kinds import check_parameter_servers
from tfdist.validation import (
    MOST_SECONDS,
    did_you_mean,
    kind,
    plural,
    printable,
    quote,
    reject,
)

_EXAMPLES = (
    "tfdist train --epochs 3 --output-dir runs/digits",
    "tfdist train --model small_cnn --dataset folder:photos --image-size 64 --no-augment",
    "tfdist launch --workers 2 tfdist train --strategy multi_worker_mirrored",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(TrainOptions):
    """The options of a run, and those of the command itself."""

    wait: float | None = option(
        "seconds to wait for the other tasks ($TFDIST_WAIT, or 300)",
        most=MOST_SECONDS,
        group=CLUSTER,
    )
    config: str | None = option("a file of these flags, as a run's config.yaml", group=OUTPUT)


def main(argv: list[str]) -> int:
    """Trains as the flags ask for; returns the exit code.

    Raises:
        ConfigError: A flag or the cluster is wrong; nothing was started.
        PeerError: A task of the cluster is missing or was lost.
    """
    options = parse(argv)
    process_one.continue_in_child()
    survive_broken_pipe()
    sigterm.end_process_one()
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


def parse(argv: list[str]) -> dict[str, Any]:
    """Reads the flags.

    Returns:
        The values of all options of the run by name, and of `wait`.

    Raises:
        ConfigError: A flag is unknown, or its value is not allowed.
    """
    parser = Parser(
        "tfdist train",
        "Train an image classifier with any strategy: by default ResNet50 on the bundled digits.",
        examples=_EXAMPLES,
        usage="tfdist train [FLAGS]",
    )
    options = options_of(_Options)
    parser.add_options(options)
    given = parser.read_options(argv, options)
    path = given.pop("config", None)
    known = {each.name: each for each in options if each.name != "config"}
    if path is not None:
        given = _read_config(path, known) | given
    return {name: given.get(name, each.default) for name, each in known.items()}


def _read_config(path: str, known: Mapping[str, Option]) -> dict[str, Any]:
    """Returns the values of the options that a file gives."""
    try:
        found = [each for each in load_documents(path, "give flags and values") if each is not None]
    except ConfigError as error:
        raise ConfigError(f"train(--config): {error}") from None
    where = f"train(--config): {printable(path)}"
    if len(found) != 1 or not isinstance(found[0], dict):
        holds = kind(found[0]) if len(found) == 1 else plural(len(found), "document")
        raise ConfigError(f"{where} holds {holds}; allowed: flags and their values")
    values = {}
    for key, value in found[0].items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(
                f"{where}: {quote(key)} is not a flag of tfdist train{did_you_mean(name, known)}"
            )
        if value is not None:
            parts = value if isinstance(value, list) else [value]
            text = ",".join(_text(f"{where}: {flag(name)}", part) for part in parts)
            values[name] = known[name].read(f"{where}: {flag(name)}", text)
    return values


def _text(where: str, value: Any) -> str:
    """Returns a value as the command line would have it."""
    if not isinstance(value, (str, int, float)):
        reject(where, f"{kind(value)} is given; allowed: one value, or several for a list")
    return str(value)
