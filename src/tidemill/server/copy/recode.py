"""COPY data in encodings other than UTF-8: recodes bytes before decoding, and rows after encoding.

Supports only single-byte encodings (`sql.parser.copy_options`). The length of a row is then its number of
characters, and whole columns are recoded at once.
"""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.server.bytecolumns import content
from tidemill.server.copy.formats import CopyDecoder, CopyEncoder
from tidemill.types.kernels import pc


class Recoded:
    """Recodes the input of a decoder."""

    def __init__(self, inner: CopyDecoder, encoding: str) -> None:
        self._inner = inner
        self._encoding = encoding

    def feed(self, data: bytes) -> list[pa.RecordBatch]:
        try:
            text, _ = codecs.lookup(self._encoding).decode(data, "strict")
        except UnicodeDecodeError as e:
            raise InvalidValue(
                f'character with byte sequence 0x{data[e.start]:02x} in encoding "{self._encoding}" '
                'has no equivalent in encoding "UTF8"',
                sqlstate="22P05",
            ) from None
        return self._inner.feed(text.encode())

    def finish(self) -> list[pa.RecordBatch]:
        return self._inner.finish()


class Recoding:
    """Recodes the output of an encoder."""

    def __init__(self, inner: CopyEncoder, encoding: str) -> None:
        self._inner = inner
        self._encoding = encoding

    def start(self) -> list[bytes]:
        return [self._recoded(row) for row in self._inner.start()]

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        rows = self._inner.encode(batch)
        ends = np.concatenate([[0], np.cumsum(pc.utf8_length(rows.cast(pa.string())).to_numpy())])
        data = self._recoded(bytes(content(rows)))
        return pa.Array.from_buffers(
            pa.binary(), len(rows), [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        )

    def end(self) -> list[bytes]:
        return [self._recoded(row) for row in self._inner.end()]

    def _recoded(self, data: bytes) -> bytes:
        text = data.decode()
        try:
            return text.encode(self._encoding)
        except UnicodeEncodeError as e:
            raw = " ".join(f"0x{b:02x}" for b in text[e.start].encode())
            raise InvalidValue(
                f'character with byte sequence {raw} in encoding "UTF8" '
                f'has no equivalent in encoding "{self._encoding}"',
                sqlstate="22P05",
            ) from None
