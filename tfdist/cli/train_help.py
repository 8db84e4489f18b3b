"""The help of `tfdist train`: its flags by group, with their defaults."""

from __future__ import annotations

from typing import Any

from absl import flags

from tfdist.cli.arguments import Parser, flag

_EXAMPLES = (
    "tfdist train --epochs 3 --output-dir runs/digits",
    "tfdist train --model small_cnn --dataset folder:photos --image-size 64 --no-augment",
    "tfdist launch --workers 2 tfdist train --strategy multi_worker_mirrored",
)
# By absl's name of a flag's type.
_METAVARS = {"int": "N", "float": "X", "comma separated list of strings": "TEXT,..."}


def print_help(values: flags.FlagValues) -> None:
    """Prints the flags as the other commands print theirs."""
    parser = Parser(
        "tfdist train",
        "Train an image classifier with any strategy: ResNet50 on the bundled digits, if nothing "
        "else is said.",
        examples=_EXAMPLES,
        usage="tfdist train [FLAGS]",
    )
    for name, members in values.flags_by_module_dict().items():
        group = parser.add_argument_group(name)
        for member in members:
            if member.boolean:
                both = f"--[no-]{flag(member.name)[2:]}"
                group.add_argument(both, help=_text(member), action="store_true")
            else:
                group.add_argument(flag(member.name), help=_text(member), metavar=_metavar(member))
    parser.print_help()


def _words(member: Any) -> str:
    return "|".join(getattr(member.parser, "enum_values", ()))


def _metavar(member: Any) -> str:
    words = _words(member)
    return f"{{{words.replace('|', ',')}}}" if words else _METAVARS.get(member.flag_type(), "TEXT")


def _text(member: Any) -> str:
    """Returns what a flag is for, and its default."""
    # absl begins with the words that are allowed, which stand beside the flag already.
    text = str(member.help).removeprefix(f"<{_words(member)}>: ").replace("%", "%%")
    default = member.default
    if default is None:
        return text
    if member.boolean:
        return f"{text} ({'on' if default else 'off'})"
    return f"{text} ({default:g})" if isinstance(default, float) else f"{text} ({default})"
