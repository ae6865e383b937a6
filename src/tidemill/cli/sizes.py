"""Sizes for people."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def show_size(value: int) -> str:
    size = float(value)
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"
