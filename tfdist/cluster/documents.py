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
_LONGEST_NUMBER = 1000


def load_documents(path: str, wanted: str) -> list[Any]:
    """Returns the documents in a file.

    Args:
        path: A file of one JSON value (`.json`), or of YAML documents.
        wanted: What the user should give, for messages.

    Raises:
        ConfigError: It cannot be read, is too large, or is neither JSON nor YAML.
    """
    text = read_text(path, wanted)
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
    except (AttributeError, LookupError, RecursionError, ValueError):
        # An explicit tag is on what it does not fit, or it is nested too deeply.
        reject(path, f"is not YAML that can be read; {wanted}")


def read_text(path: str, wanted: str, *, most: int = _MOST_BYTES, errors: str = "strict") -> str:
    """Returns the text in a file, which may be a pipe that is being written.

    Args:
        path: The file.
        wanted: What the user should give, for messages.
        most: The most bytes that it may have.
        errors: What to do with bytes that are not UTF-8, as in `bytes.decode`.

    Raises:
        ConfigError: It cannot be read, is too large, or is not text.
    """
    if "\0" in path:
        reject(path, f"is not the name of a file; {wanted}")
    try:
        # Otherwise opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = _read_all(descriptor, path, wanted, most)
        finally:
            os.close(descriptor)
    except OSError as error:
        reject(path, f"cannot be read: {error.strerror or error}; {wanted}")
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError:
        reject(path, f"is not text; {wanted}")


def _read_all(descriptor: int, path: str, wanted: str, most: int) -> bytes:
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
        if len(data) > most:
            reject(path, f"has more than {most >> 20} MB; {wanted}")


@functools.cache
def _loader() -> Any:
    """Returns a loader of YAML that rejects duplicate keys, and what takes endless time."""
    import yaml

    def construct_number(loader: Any, node: Any) -> Any:
        # One as 1:1:1 is to the base of 60, and takes the square of its length.
        if len(node.value) > _LONGEST_NUMBER:
            raise yaml.constructor.ConstructorError(
                None, None, f"has a number of {len(node.value)} characters", node.start_mark
            )
        return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)

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

    for name in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{name}", construct_number)
    return Loader
