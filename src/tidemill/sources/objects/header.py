"""The names of columns in the first line of a CSV file, where CREATE SOURCE does not give them."""

from __future__ import annotations

from tidemill.decode.csv import split
from tidemill.decode.reader import Unreadable


def csv_names(data: bytes, delimiter: str) -> list[str]:
    """`data` is the beginning of the file. No names if it cannot be read."""
    line = data.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].rstrip(b"\r")
    try:
        return split(line.decode(), delimiter)
    except (UnicodeDecodeError, Unreadable):
        return []
