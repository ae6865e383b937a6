"""Ledgers of tests that kill: files of lines, of which the last may be cut."""

from __future__ import annotations

import os


def whole_lines(path: str) -> list[str]:
    """The lines of the file. A kill may cut a write where a page ends (seen once in some ten thousand): what
    is left of it is taken away, so that the next line does not join it. What it said is as if it had never
    been said."""
    if not os.path.exists(path):
        return []
    with open(path, "rb+") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            file.truncate(end)
    return data[:end].decode().splitlines()
