"""Positions in PostgreSQL's write-ahead log (LSN), as numbers here and as PostgreSQL writes them in texts."""

from __future__ import annotations


def lsn_text(lsn: int) -> str:
    """As PostgreSQL shows it: 0/17245C0."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def aligned(lsn: int) -> int:
    """The last position of PostgreSQL up to `lsn`. Those in between are ours (`receiver`)."""
    return lsn & ~7


def parse_lsn(text: str) -> int:
    """Raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is no position in the write-ahead log")
    return int(high, 16) << 32 | int(low, 16)
