"""Reads TF_CONFIG, the JSON that names the tasks of the cluster and this task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from tfdist.cluster.spec import Jobs, check_index, check_jobs, check_role
from tfdist.errors import ConfigError
from tfdist.validation import kind, quote, reject

_SHAPE = '{"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}'


def parse_tf_config(config: str | Mapping[str, Any]) -> tuple[Jobs, str, int]:
    """Returns the jobs, and the role and index of this task.

    Keys that TensorFlow does not need, such as the `environment` that TFJob
    adds, are accepted and ignored.

    Raises:
        ConfigError: Something in it is malformed; the message names the field.
    """
    loaded = load_json(config, "TF_CONFIG") if isinstance(config, str) else config
    if not isinstance(loaded, Mapping):
        reject("TF_CONFIG", f"{quote(loaded)} is {kind(loaded)}, not an object; give {_SHAPE}")
    if "cluster" not in loaded:
        reject("TF_CONFIG.cluster", f"is missing{_keys(loaded)}; give {_SHAPE}")
    jobs = check_jobs(loaded["cluster"], "TF_CONFIG.cluster")
    if "task" not in loaded:
        reject("TF_CONFIG.task", f"is missing{_keys(loaded)}; give {_SHAPE}")
    task = loaded["task"]
    if not isinstance(task, Mapping):
        reject("TF_CONFIG.task", f"{quote(task)} is {kind(task)}, not an object; give {_SHAPE}")
    for key in ("type", "index"):
        if key not in task:
            reject(f"TF_CONFIG.task.{key}", f"is missing{_keys(task)}; give {_SHAPE}")
    role = check_role(task["type"], "TF_CONFIG.task.type")
    if role not in jobs and role != "evaluator":
        given = quote(task["type"])
        reject("TF_CONFIG.task.type", f"{given} is not in cluster; it has {', '.join(jobs)}")
    index = task["index"]
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
        index = int(index)  # As TensorFlow does.
    index = check_index(index, role, jobs, "TF_CONFIG.task.index", "cluster")
    return jobs, role, index


def load_json(text: str, where: str) -> Any:
    """Loads JSON by the standard: no NaN, no duplicate keys.

    Raises:
        ConfigError: It is not JSON, or it holds a key twice.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            reject(where, f"the key {quote(twice)} is given twice; keep one of them")
        return result

    def constant(name: str) -> NoReturn:
        reject(where, f"{name} is not JSON; give a finite number")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        reject(where, f"{quote(text)} is not JSON ({error.msg}, {place}); give a JSON object")
    except RecursionError:
        reject(where, "is nested too deeply; give a JSON object")
    except ConfigError:
        raise
    except ValueError:  # The only other one: an integer of thousands of digits.
        reject(where, "holds a number that is too long; give a JSON object")


def _keys(given: Mapping[str, Any]) -> str:
    names = ", ".join(quote(name) for name in list(given)[:4])
    return f" among {names}" if names else ""
