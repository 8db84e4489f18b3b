"""Reads the documents of a JSON or YAML file, whatever it holds, in bounded time and memory."""

from __future__ import annotations

import functools
import os
import select
import time
from typing import Any

from tfdist.cluster.tf_config import load_json
from tfdist.validation import quote, reject

_MOST_BYTES = 8 << 20
# The time for a pipe, such as `<(command)`, to be written.
_PIPE_SECONDS = 10.0
# Pairs that merge keys (`<<`) may copy: nested ones multiply.
_MOST_MERGED = 10_000


def load_documents(path: str, wanted: str) -> list[Any]:
    """Returns the documents in a file.

    Args:
        path: A file of one JSON value (`.json`), or of YAML documents.
        wanted: What the user should give, for messages.

    Raises:
        ConfigError: It cannot be read, is too large, or is neither JSON nor YAML.
    """
    text = _read(path, wanted)
    if path.endswith(".json"):
        return [load_json(text, path)]
    import yaml  # Only here: it takes longer to load than the rest of the command.

    try:
        return list(yaml.load_all(text, _loader()))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1} column {mark.column + 1})" if mark else ""
        if isinstance(error, yaml.constructor.ConstructorError) and error.problem:
            reject(path, f"{error.problem}{place}; {wanted}")
        reject(path, f"is not YAML{place}; {wanted}")
    except (RecursionError, ValueError):
        reject(path, f"is not YAML that can be read; {wanted}")


def _read(path: str, wanted: str) -> str:
    if "\0" in path:
        reject(path, f"is not the name of a file; {wanted}")
    try:
        # Otherwise opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = _read_all(descriptor, path, wanted)
        finally:
            os.close(descriptor)
    except OSError as error:
        reject(path, f"cannot be read: {error.strerror or error}; {wanted}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        reject(path, f"is not text; {wanted}")


def _read_all(descriptor: int, path: str, wanted: str) -> bytes:
    data = bytearray()
    until = time.monotonic() + _PIPE_SECONDS
    while True:
        if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            reject(path, f"has not been written to its end in {_PIPE_SECONDS:.0f} s; {wanted}")
        try:
            piece = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            continue
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > _MOST_BYTES:
            reject(path, f"has more than {_MOST_BYTES >> 20} MB; {wanted}")


@functools.cache
def _loader() -> Any:
    """Returns a loader of YAML that rejects duplicate keys and endless merge keys."""
    import yaml

    class Loader(yaml.SafeLoader):
        merged = 0

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"has the key {quote(key.value)} twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
            return node

        def flatten_mapping(self, node: Any) -> None:
            before = len(node.value)
            super().flatten_mapping(node)
            self.merged += max(0, len(node.value) - before)
            if self.merged > _MOST_MERGED:
                raise yaml.constructor.ConstructorError(
                    None, None, "has merge keys that multiply", node.start_mark
                )

    return Loader
