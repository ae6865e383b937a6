"""The text of one value for a terminal: its lines and their width in columns.

Control characters are escaped (`\\x1B`), because values from a table must not control the terminal.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

_TAB = 8
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def is_plain(text: str) -> bool:
    """True for a single line of characters of width one, which is shown as it is."""
    return text.isascii() and text.isprintable()


def width(text: str) -> int:
    """The width in columns of the screen."""
    return len(text) if text.isascii() else cell_len(text)


def lines(text: str) -> list[str]:
    """The lines of a value, escaped for the screen."""
    if is_plain(text):
        return [text]
    return [_shown(line) for line in text.split("\n")]


def _shown(line: str) -> str:
    line = _CONTROL.sub(_written_out, line)
    if "\t" not in line:
        return line
    head, *parts = line.split("\t")
    for part in parts:
        head += " " * (_TAB - width(head) % _TAB) + part
    return head


def _written_out(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code == 0x0D:
        return "\\r"
    return f"\\x{code:02X}" if code < 0x80 else f"\\u{code:04X}"
