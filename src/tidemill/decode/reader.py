"""Byte-by-byte reader of one message; authoritative for its contents and errors.

The decoders of binary formats read whole batches with `cursor`, and read doubtful messages again here, one by
one. This reader is much slower, exact, and reports the position of an error.
"""

from __future__ import annotations


class Unreadable(Exception):
    """A message does not match its schema. Never leaves a decoder: it becomes the error of the message's row.
    `path` names the field with the error."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []

    def within(self, name: str) -> Unreadable:
        self.path.insert(0, name)
        return self

    def __str__(self) -> str:
        return f'{self.why} (in field "{".".join(self.path)}")' if self.path else self.why


class MessageReader:
    """A position in one message."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data)

    @property
    def left(self) -> int:
        return self.end - self.pos

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise Unreadable(
                f"{count} bytes should follow, {self.left} are left"
                if count >= 0
                else f"a length is negative: {count}"
            )
        start = self.pos
        self.pos = start + count
        return self.data[start : self.pos]

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.pos >= self.end:
                raise Unreadable("the message ends within a number")
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise Unreadable("a number is longer than 10 bytes")
        if value >> 64:
            raise Unreadable("a number does not fit 64 bits")
        return value

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)
