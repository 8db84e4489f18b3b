"""Passes a function call to tasks, and its result or failure back, in files of a private folder.

cloudpickle takes functions and classes of scripts, notebooks and other functions as they are, where
pickle would write their names, which a task cannot import.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from tfdist.errors import TfdistError
from tfdist.files import write_whole
from tfdist.validation import quote, reject


@dataclass(frozen=True)
class Failure:
    """An exception of a task.

    Attributes:
        kind: The name of its class in `tfdist.errors`; "" if it has none there.
        text: Its message, in one line.
        trace: The text of its traceback.
    """

    kind: str
    text: str
    trace: str


class CallFolder:
    """The files of one call.

    Args:
        folder: Where they are; only this user may enter it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send_call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Writes a call for the tasks.

        Raises:
            ConfigError: A part of it cannot be pickled.
            OSError: The file cannot be written.
        """
        call = _pickled({"function": function, "args": tuple(args), "kwargs": dict(kwargs)})
        # The path is to be set before modules of it are needed. A process with TensorFlow has
        # tasks with TensorFlow: they start it as tfdist does, not in the middle of unpickling.
        head = {"path": sys.path, "tensorflow": "tensorflow" in sys.modules, "call": call}
        self._write("call", cloudpickle.dumps(head))

    def read_head(self) -> Mapping[str, Any]:
        """Returns the `path` to set, whether to load `tensorflow`, and the `call`, pickled."""
        head: Mapping[str, Any] = cloudpickle.loads((self._folder / "call").read_bytes())
        return head

    def send_result(self, value: Any) -> None:
        """Writes what the function returned.

        Raises:
            TfdistError: It cannot be pickled.
            OSError: The file cannot be written.
        """
        try:
            data = cloudpickle.dumps(value)
        except Exception as error:  # Any: it is that of the value's own code.
            raise TfdistError(
                f"launch: the result, {quote(value)}, cannot be sent ({_line(error)}); "
                "return something that can be pickled"
            ) from None
        self._write("result", data)

    def result(self) -> Any:
        """Returns what the function returned; None where it did not."""
        path = self._folder / "result"
        return cloudpickle.loads(path.read_bytes()) if path.exists() else None

    def send_failure(self, task: str, error: BaseException) -> None:
        """Writes the exception that ends a task."""
        names = (c.__name__ for c in type(error).__mro__ if c.__module__ == TfdistError.__module__)
        kind = next(names, "")
        trace = "".join(traceback.format_exception(error))
        failure = Failure(kind, str(error) if kind else _line(error), trace)
        self._write(_of(task), json.dumps(asdict(failure)).encode())

    def failure(self, task: str) -> Failure | None:
        """Returns the exception that ended a task, if one did."""
        path = self._folder / _of(task)
        return Failure(**json.loads(path.read_bytes())) if path.exists() else None

    def forget_failure(self, task: str) -> None:
        """Removes that of an earlier run of the task."""
        (self._folder / _of(task)).unlink(missing_ok=True)

    def _write(self, name: str, data: bytes) -> None:
        # A task that is killed while it writes leaves nothing that looks whole.
        with write_whole(self._folder / name) as new:
            new.write_bytes(data)


def load_call(call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Returns function, args and kwargs of a call; imports the modules that they come from."""
    parts = cloudpickle.loads(call)
    return parts["function"], parts["args"], parts["kwargs"]


def _pickled(parts: Mapping[str, Any]) -> bytes:
    try:
        return cloudpickle.dumps(parts)
    except Exception:  # Any: it is that of the values' own code. Which of them is it?
        for name, part in parts.items():
            try:
                cloudpickle.dumps(part)
            except Exception as error:
                given = getattr(part, "__name__", None) or quote(part)
                reject(
                    f"launch({name})",
                    f"{given} cannot be sent to a task ({_line(error)}); "
                    "let the function make or open that itself",
                )
        raise


def _of(task: str) -> str:
    return f"failure-{task.replace('/', '-')}"


def _line(error: BaseException) -> str:
    """Returns the exception as one line: its class, and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
