"""Has TensorFlow start without remarks where a script imports it, or Keras, behind tfdist."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "tensorflow"


class _Finder(MetaPathFinder):
    """Finds TensorFlow as it is found otherwise, once, and has it loaded quietly."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module of the name, where that is TensorFlow."""
        if name != _NAME:
            return None
        forget_import()
        spec = importlib.util.find_spec(_NAME)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_quietly(module: ModuleType) -> None:
            from tfdist.runtime.remarks import loading

            with loading():
                load(module)

        spec.loader.exec_module = load_quietly  # type: ignore[method-assign]
        return spec


def await_import() -> None:
    """Makes TensorFlow's first import quiet; does nothing where it is imported already."""
    if _NAME not in sys.modules and not _waiting():
        sys.meta_path.insert(0, _Finder())


def forget_import() -> None:
    """Leaves the import to who imports it."""
    for finder in _waiting():
        sys.meta_path.remove(finder)


def _waiting() -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
