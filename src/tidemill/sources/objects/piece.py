"""The range of an object that a task reads."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import Internal
from tidemill.sources.contract import SourcePiece


@dataclass(frozen=True, slots=True)
class ObjectPiece(SourcePiece):
    """With what is known of the object: its size and its time of change when it was bound, and the print of
    its contents."""

    size: int
    modified: int
    print: str


def expect_key(piece: SourcePiece) -> str:
    if not isinstance(piece.partition, str):
        raise Internal(f"there is no object {piece.partition!r}")
    return piece.partition
