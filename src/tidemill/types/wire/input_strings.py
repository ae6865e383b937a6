"""Text input of text, bytes, uuid and jsonb: PostgreSQL's input rules and error texts."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import bytes_of_rows, fixed_rows, spans, valid_mask, validity_buffer
from tidemill.types.json import canonical_json
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType, type_name
from tidemill.types.wire.columns import InvalidField, decode_rows

KINDS = {
    Kind.TEXT,
    Kind.VARCHAR,
    Kind.CHAR,
    Kind.NAME,
    Kind.QCHAR,
    Kind.UNKNOWN,
    Kind.JSONB,
    Kind.BYTEA,
    Kind.UUID,
}

# 255 marks a character that is not a hexadecimal digit.
_NIBBLES = np.full(256, 255, dtype=np.uint8)
for _i, _c in enumerate(b"0123456789abcdef"):
    _NIBBLES[_c] = _i
for _i, _c in enumerate(b"ABCDEF"):
    _NIBBLES[_c] = 10 + _i

_UUID_DIGITS = np.flatnonzero(
    np.frombuffer(b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", dtype=np.uint8) == ord("x")
)
_UUID_DASHES = np.array([8, 13, 18, 23])
# A hyphen is accepted after any group of four digits.
_UUID = re.compile(r"(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}", re.ASCII)
_BYTEA_ESCAPE = re.compile(rb"\\(\\|[0-3][0-7]{2})|\\")


def decode(texts: pa.Array, t: SqlType) -> pa.Array:
    """A column of texts in storage form."""
    if t.kind is Kind.JSONB:
        rows = np.flatnonzero(valid_mask(texts))
        return _scattered(texts, rows, decode_rows(texts, rows, canonical_json, pa.string()))
    if t.kind is Kind.BYTEA:
        return _decode_bytea(texts)
    if t.kind is Kind.UUID:
        return _decode_uuid(texts)
    return fit_length(texts, t)


def _scattered(texts: pa.Array, rows: np.ndarray, values: pa.Array) -> pa.Array:
    if len(rows) == len(texts):
        return values
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(pa.nulls(len(texts), values.type), pa.array(mask), values)


def fit_length(texts: pa.Array, t: SqlType) -> pa.Array:
    """varchar(n) and char(n): blanks beyond n are removed, and other characters there are an error; char(n)
    is padded with blanks. Lengths count characters. Also used for computed texts."""
    if t.length is None:
        return texts
    if pc.any(pc.greater(pc.utf8_length(texts), t.length)).as_py():
        kept = pc.utf8_slice_codeunits(texts, 0, t.length)
        rest = pc.utf8_slice_codeunits(texts, t.length)
        row = int(pc.index(pc.match_substring_regex(rest, "[^ ]"), True).as_py())
        if row >= 0:
            bad = InvalidValue(f"value too long for type {type_name(t)}", sqlstate="22001")
            raise InvalidField(bad, row)
        texts = kept
    return pc.utf8_rpad(texts, t.length, " ") if t.kind is Kind.CHAR else texts


def _decode_uuid(texts: pa.Array) -> pa.Array:
    valid = valid_mask(texts)
    rows = fixed_rows(texts, 36)
    if rows is not None and bool((rows[valid][:, _UUID_DASHES] == ord("-")).all()):
        nibbles = _NIBBLES[rows[:, _UUID_DIGITS]]
        if int(nibbles[valid].max(initial=0)) < 16:
            return bytes_of_rows((nibbles[:, 0::2] << 4) | (nibbles[:, 1::2] & 15), valid)
    chosen = np.flatnonzero(valid)
    return _scattered(texts, chosen, decode_rows(texts, chosen, parse_uuid, arrow_type(SqlType(Kind.UUID))))


def parse_uuid(text: str) -> bytes:
    """Any of PostgreSQL's spellings: braces, upper case, hyphens after any four digits."""
    body = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    if not _UUID.fullmatch(body):
        raise InvalidValue(f'invalid input syntax for type uuid: "{text}"')
    return bytes.fromhex(body.replace("-", ""))


def _decode_bytea(texts: pa.Array) -> pa.Array:
    """With a table if all values are hexadecimal without blanks, else one by one."""
    valid = valid_mask(texts)
    if len(texts) and pc.all(pc.starts_with(texts, "\\x")).as_py() is not False:
        body = pc.utf8_slice_codeunits(pc.fill_null(texts, "\\x"), 2)
        offsets, data = spans(body)
        nibbles = _NIBBLES[data[offsets[0] : offsets[-1]]]
        relative = offsets.astype(np.int64) - int(offsets[0])
        if int(nibbles.max(initial=0)) < 16 and not bool((np.diff(relative) % 2).any()):
            raw = (nibbles[0::2] << 4) | nibbles[1::2]
            halves = (relative // 2).astype(np.int32)
            buffers = [validity_buffer(valid), pa.py_buffer(halves), pa.py_buffer(raw)]
            return pa.Array.from_buffers(pa.binary(), len(texts), buffers)
    rows = np.flatnonzero(valid)
    return _scattered(texts, rows, decode_rows(texts, rows, parse_bytea, pa.binary()))


def parse_bytea(text: str) -> bytes:
    """Hexadecimal after `\\x` (with blanks between pairs), else the older escape format."""
    if text.startswith("\\x"):
        return parse_hex(text[2:])
    raw = text.encode()
    pieces: list[bytes] = []
    at = 0
    for match in _BYTEA_ESCAPE.finditer(raw):
        if match[1] is None:
            raise InvalidValue("invalid input syntax for type bytea")
        pieces.append(raw[at : match.start()])
        pieces.append(b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)]))
        at = match.end()
    pieces.append(raw[at:])
    return b"".join(pieces)


def parse_hex(digits: str) -> bytes:
    """Blanks may be between bytes, but not within one."""
    result = bytearray()
    at = 0
    while at < len(digits):
        if digits[at] in " \n\t\r":
            at += 1
            continue
        for ch in digits[at : at + 2]:
            if ch not in "0123456789abcdefABCDEF":
                raise InvalidValue(f'invalid hexadecimal digit: "{ch}"', sqlstate="22023")
        if at + 1 >= len(digits):
            raise InvalidValue("invalid hexadecimal data: odd number of digits", sqlstate="22023")
        result.append(int(digits[at : at + 2], 16))
        at += 2
    return bytes(result)
