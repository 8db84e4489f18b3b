"""Finds a user's function by its name, `package.module:function`, and calls it."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from tfdist.errors import ConfigError
from tfdist.validation import quote

_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def is_function_name(name: str) -> bool:
    """Returns whether a name has the form `package.module:function`."""
    return _NAME.fullmatch(name) is not None


def find_function(where: str, name: str) -> Callable[..., Any]:
    """Imports a function; modules are also looked for in the working directory.

    Args:
        where: What is given, for messages.
        name: `package.module:function`.

    Raises:
        ConfigError: There is none of that name.
    """
    module, _, attribute = name.partition(":")
    # The installed command does not look there by itself, as `python -m` does.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {quote(name)} is not found ({error}); give package.module:function"
        ) from None
    if not callable(found):
        raise ConfigError(f"{where}: {quote(name)} is not a function; give package.module:function")
    function: Callable[..., Any] = found
    return function


def call_function(where: str, name: str, **known: Any) -> Any:
    """Calls the function of a name with those of the arguments for which it has a parameter.

    Args:
        where: What is given, for messages.
        name: `package.module:function`.
        known: The arguments that it can have.

    Raises:
        ConfigError: There is no such function, or it needs other arguments.
    """
    function = find_function(where, name)
    try:
        signature = inspect.signature(function)
        asked = {key: value for key, value in known.items() if key in signature.parameters}
        signature.bind(**asked)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {quote(name)} cannot be called ({error}); allowed parameters without a "
            f"default: {', '.join(known)}"
        ) from None
    return function(**asked)
