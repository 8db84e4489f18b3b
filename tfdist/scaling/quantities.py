"""Writes quantities for people: with SI prefixes, and durations in the unit that fits."""

from __future__ import annotations

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_DURATIONS = ((86_400 * 365.25, "years"), (86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


def si(value: float, unit: str) -> str:
    """Returns four digits with a prefix of powers of 1000.

    Example:
        >>> si(10.50624e18, "FLOP")
        '10.51 EFLOP'
    """
    power = 0
    while abs(value) >= 999.95 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.4g} {_PREFIXES[power]}{unit}"


def duration(seconds: float) -> str:
    """Returns a time in µs, ms, s, min, h, days or years.

    Example:
        >>> duration(0.0437), duration(5400)
        ('43.7 ms', '1.5 h')
    """
    for size, unit in _DURATIONS:
        if seconds >= 2 * size or (unit == "h" and seconds >= size):
            return f"{seconds / size:.3g} {unit}"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{1e3 * seconds:.3g} ms"
    return f"{1e6 * seconds:.3g} µs"
