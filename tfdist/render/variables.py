"""Finds the variables in a command: those to fill in where the job runs, and those to leave."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence

from tfdist.validation import quote, reject

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# $NAME, ${NAME}, and $(NAME) as Kubernetes has it.
_WRITTEN = re.compile(rf"\$(?:({_NAME.pattern})|\{{({_NAME.pattern})\}}|\(({_NAME.pattern})\))")

_SHELLS = ("bash", "dash", "ksh", "sh", "zsh")


def filled_in(
    text: str, names: Sequence[str], variable: Callable[[str], str], literal: Callable[[str], str]
) -> str:
    """Returns a text for a place that fills in variables by its own rules.

    Args:
        text: The text, with variables as `$NAME`, `${NAME}` or `$(NAME)`.
        names: The variables to fill in.
        variable: Writes a variable as the place reads it.
        literal: Writes all else so that the place leaves it as it is.

    Example:
        >>> filled_in("runs/$ID/$X", ["ID"], "<{}>".format, str)
        'runs/<ID>/$X'
    """
    found, start = "", 0
    for match in _WRITTEN.finditer(text):
        if match[match.lastindex or 0] in names:
            before = text[start : match.start()]
            found += literal(before) if before else ""
            found += variable(match[match.lastindex or 0])
            start = match.end()
    rest = text[start:]
    return found + (literal(rest) if rest or not found else "")


def written(texts: Iterable[str]) -> dict[str, str]:
    """Returns the variables in texts by name, as they are written."""
    matches = (match for text in texts for match in _WRITTEN.finditer(text))
    return {match[match.lastindex or 0]: match[0] for match in matches}


def check_expand(names: Sequence[str], texts: Sequence[str]) -> None:
    """Checks the names of variables to fill in.

    Raises:
        ConfigError: One is not a name, or is in none of the texts.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            reject("render(--expand)", f"{quote(name)} is not the name of a variable, such as ID")
        if name not in written(texts):
            reject(
                "render(--expand)",
                f"{quote(name)} is neither in the command nor in a path; write '${name}', in "
                "single quotes, or this shell fills it in",
            )


def left_alone(command: Sequence[str], paths: Iterable[str], names: Sequence[str]) -> str | None:
    """Returns a line about the variables that are not to be filled in; None if there are none."""
    # A shell fills in the words it is given: bash -c 'echo $HOME'.
    words = [] if posixpath.basename(command[0]) in _SHELLS else command
    others = {name: text for name, text in written([*words, *paths]).items() if name not in names}
    if not others:
        return None
    flags = " ".join(f"--expand {name}" for name in others)
    return (
        f"render(--expand): not given for {', '.join(map(quote, others.values()))}, which the "
        f"tasks get as written; to have the job fill that in, add {flags}"
    )
