"""Drops what TensorFlow's C++ code logs about this machine while TensorFlow is imported.

It imports no TensorFlow itself: `import tfdist` uses it to filter an import that comes later.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "tensorflow"

# These lines come before TensorFlow reads its own log level: "I0000 00:00:17...  file.cc:1] text".
_LOG_LINE = re.compile(
    rb"^([IWE]0000 .*|WARNING: All log messages before absl.*|To enable the .*)\n?"
)


def filter_first_import() -> None:
    """Filters TensorFlow's first import, by a script or by Keras.

    Does nothing where TensorFlow is imported already.
    """
    if _NAME not in sys.modules and not _finders():
        sys.meta_path.insert(0, _Finder())


def forget_first_import() -> None:
    """Undoes `filter_first_import`."""
    for finder in _finders():
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def filtered_import() -> Iterator[None]:
    """Drops TensorFlow's log lines in a block that imports it, unless the user wants them."""
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
    else:
        with filtered_stderr():
            yield


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Holds back what is written to standard error in a block, and then passes on the rest."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    except OSError:  # Nothing can be written here, as in a container with a read-only disk.
        yield
        return
    sys.stderr.flush()
    with file as held_back:
        terminal = os.dup(2)
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            held_back.seek(0)
            for line in held_back:
                if not _LOG_LINE.match(line):
                    os.write(terminal, line)
            os.close(terminal)


def quiet_tensorflow() -> None:
    """Drops what TensorFlow's Python code logs below warnings, unless the user has set its level.

    Nobody sees it by default; but `absl.app` shows records of all levels from INFO on.
    """
    logger = logging.getLogger(_NAME)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


class _Finder(MetaPathFinder):
    """Finds TensorFlow as it is found otherwise, once, and filters its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module of the name, where that is TensorFlow."""
        if name != _NAME:
            return None
        forget_first_import()
        spec = importlib.util.find_spec(_NAME)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_filtered(module: ModuleType) -> None:
            with filtered_import():
                load(module)

        spec.loader.exec_module = load_filtered  # type: ignore[method-assign]
        return spec


def _finders() -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
