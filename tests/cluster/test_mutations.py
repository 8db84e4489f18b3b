"""Whatever becomes of a TF_CONFIG, it is read, or rejected in one line that names a field."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError

GOOD: dict[str, Any] = {
    "cluster": {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"], "evaluator": ["e:1"]},
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=80)
    | st.sampled_from(["worker", "ps", "a:1", "a", ":", "[::1]:5", "w:1\n", "w:99999"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a nested value, but the root and what is ignored."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = [key for key in value if key != "environment"]
    elif isinstance(value, list):
        keys = list(range(len(value)))
    return [p for key in keys for p in [(*path, key), *places(value[key], (*path, key))]]


def change(path: tuple[Any, ...], action: str, new: Any) -> Any:
    config = copy.deepcopy(GOOD)
    target = config
    for key in path[:-1]:
        target = target[key]
    if action == "replace":
        target[path[-1]] = new
    elif action == "delete":
        del target[path[-1]]
    elif isinstance(target, list):
        target.append(target[path[-1]])
    else:
        target[str(new)] = target[path[-1]]
    return config


def read(config: Any) -> None:
    try:
        cluster = Cluster.from_tf_config(config)
    except ConfigError as error:
        message = str(error)
        assert message.startswith("TF_CONFIG")
        assert len(message.splitlines()) == 1 and len(message) < 400
    else:  # What was accepted has to be a cluster.
        assert Cluster.from_tf_config(cluster.to_tf_config()) == cluster
        assert len(set(cluster.addresses)) == len(cluster.addresses)
        assert cluster.task.index >= 0


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(places(GOOD)),
    st.sampled_from(["replace", "delete", "double"]),
    values,
)
def test_a_changed_value(path: tuple[Any, ...], action: str, new: Any) -> None:
    config = change(path, action, new)
    read(config)
    read(json.dumps(config))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(json.dumps(GOOD))), st.integers(0, 5), st.text(max_size=3))
def test_changed_text(at: int, cut: int, new: str) -> None:
    text = json.dumps(GOOD)
    read(text[:at] + new + text[at + cut :])


@settings(max_examples=100, deadline=None)
@given(values)
def test_any_value(value: Any) -> None:
    read(value)
