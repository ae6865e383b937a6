"""Decoder contract: the duties of a decoder, and how it reports undecodable messages.

A task opens a decoder from a format (a plain dictionary of the source definition, `formats`), and the worker
keeps it. A decoder takes a column of messages and returns columns. The contents of a message never raise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.types.model import Column

# Avro, JSON and Protobuf: a longer message is an error. Reading a message one by one can take some 50 times
# its size in memory.
MAX_MESSAGE_BYTES = 32 << 20

# Excerpt of an undecodable message in its error: enough to recognise it, independent of its size.
MAX_SHOWN_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Decoded:
    """As many rows as messages, in the storage types of the decoder's columns. `errors` (text) has a value
    for each message that could not be decoded; its columns are null. None without errors. A null message
    gives nulls and no error."""

    columns: Sequence[pa.Array]
    errors: pa.Array | None


class Decoder(Protocol):
    @property
    def columns(self) -> tuple[Column, ...]: ...

    def decode(self, messages: pa.Array) -> Decoded:
        """`messages`: binary. Raises only errors that stall the source: the registry is unreachable, or does
        not have the schema."""
        ...


# Control characters of terminals and of the writing direction, and all kinds of line ends.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def legible(text: str) -> str:
    """The text with invisible and layout characters escaped: it appears in errors and logs, on one line."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str) -> str:
    """Shorten a text that quotes a message, in the middle: the end names the field."""
    if len(text) <= MAX_SHOWN_BYTES:
        return text
    end = MAX_SHOWN_BYTES // 4
    return f"{text[: MAX_SHOWN_BYTES - end]}...{text[-end:]}"


def with_original(error: str, message: bytes) -> str:
    """A decoder's error with its message, in the form that clients match."""
    shown = message[:MAX_SHOWN_BYTES]
    cut = "..." if len(message) > MAX_SHOWN_BYTES else ""
    text = shown.decode("utf-8", errors="replace")
    return legible(f'{shortened(error)} (original text: {text}{cut}, original bytes: "{shown.hex()}{cut}")')
