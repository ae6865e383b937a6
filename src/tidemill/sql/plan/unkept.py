"""The exception for queries that are not maintained at the cost of what changed."""

from __future__ import annotations


class NotIncremental(Exception):
    """`because` in the words of EXPLAIN; `instead`: what to write, if something helps."""

    def __init__(self, because: str, instead: str | None = None) -> None:
        self.because = because
        self.instead = instead


class NotReproducible(NotIncremental):
    """Of a plan whose answer over some rows is not the same each time, but one of those that SQL allows."""
