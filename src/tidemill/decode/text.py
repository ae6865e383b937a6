"""TEXT and BYTES decoders: a message is one value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoded
from tidemill.decode.utf8 import texts, why_no_text
from tidemill.types.model import BYTEA, TEXT, Column

PREFIX = "text deserialization error: "


def text_errors(messages: pa.Array, wrong: np.ndarray | None, prefix: str) -> pa.Array | None:
    """The errors of messages that are not text."""
    if wrong is None:
        return None
    errors: list[str | None] = [None] * len(messages)
    for row in np.flatnonzero(wrong).tolist():
        errors[row] = prefix + str(why_no_text(messages[row].as_py()))
    return pa.array(errors, pa.string())


class TextMessageDecoder:
    columns = (Column("text", TEXT),)

    def decode(self, messages: pa.Array) -> Decoded:
        values, wrong = texts(messages)
        return Decoded([values], text_errors(messages, wrong, PREFIX))


class BytesDecoder:
    columns = (Column("data", BYTEA),)

    def decode(self, messages: pa.Array) -> Decoded:
        return Decoded([messages], None)
