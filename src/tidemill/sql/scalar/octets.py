"""Functions of bytea."""

from __future__ import annotations

import base64
import zlib

from tidemill.errors import InvalidValue
from tidemill.types.wire.input_strings import parse_hex

_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
# PostgreSQL's names of encodings, without blanks, dashes and underscores.
_ENCODINGS = {
    "utf8": "utf-8",
    "unicode": "utf-8",
    "latin1": "latin-1",
    "iso88591": "latin-1",
    "latin2": "iso8859-2",
    "iso88592": "iso8859-2",
    "latin9": "iso8859-15",
    "win1250": "cp1250",
    "win1251": "cp1251",
    "win1252": "cp1252",
    "windows1252": "cp1252",
    "koi8r": "koi8-r",
    "sjis": "shift_jis",
    "eucjp": "euc_jp",
    # Bytes without interpretation.
    "sqlascii": "utf-8",
}


def _index(at: int, count: int, what: str = "index") -> None:
    if not 0 <= at < count:
        raise InvalidValue(f"{what} {at} out of valid range, 0..{count - 1}", sqlstate="2202E")


def get_byte(data: bytes, at: int) -> int:
    _index(at, len(data))
    return data[at]


def set_byte(data: bytes, at: int, value: int) -> bytes:
    _index(at, len(data))
    return data[:at] + bytes([value & 0xFF]) + data[at + 1 :]


def get_bit(data: bytes, at: int) -> int:
    _index(at, len(data) * 8)
    return data[at // 8] >> (at % 8) & 1


def set_bit(data: bytes, at: int, value: int) -> bytes:
    _index(at, len(data) * 8)
    if value not in (0, 1):
        raise InvalidValue("new bit must be 0 or 1", sqlstate="22023")
    mask = 1 << (at % 8)
    byte = data[at // 8] | mask if value else data[at // 8] & ~mask
    return data[: at // 8] + bytes([byte]) + data[at // 8 + 1 :]


def bit_count(data: bytes) -> int:
    return int.from_bytes(data).bit_count()


def overlay(data: bytes, new: bytes, start: int, length: int | None = None) -> bytes:
    count = len(new) if length is None else length
    if start < 1:
        raise InvalidValue("negative substring length not allowed", sqlstate="22011")
    if not -(1 << 31) <= start + count < 1 << 31:
        raise InvalidValue("integer out of range", sqlstate="22003")
    return data[: start - 1] + new + data[max(start - 1 + count, 0) :]


def position(part: bytes, data: bytes) -> int:
    return data.find(part) + 1


def trim(data: bytes, unwanted: bytes) -> bytes:
    return data.strip(unwanted) if unwanted else data


def trim_left(data: bytes, unwanted: bytes) -> bytes:
    return data.lstrip(unwanted) if unwanted else data


def trim_right(data: bytes, unwanted: bytes) -> bytes:
    return data.rstrip(unwanted) if unwanted else data


def reverse(data: bytes) -> bytes:
    return data[::-1]


def crc32(data: bytes) -> int:
    return zlib.crc32(data)


def _castagnoli() -> list[int]:
    table: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CASTAGNOLI = _castagnoli()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _CASTAGNOLI[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


# --- texts of bytes


def encode(data: bytes, form: str) -> str:
    name = form.lower()
    if name == "hex":
        return data.hex()
    if name == "base64":
        text = base64.b64encode(data).decode()
        return "\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    if name == "escape":
        return "".join(_escaped(b) for b in data)
    raise InvalidValue(f'unrecognized encoding: "{form}"', sqlstate="22023")


def _escaped(byte: int) -> str:
    if byte == 0x5C:
        return "\\\\"
    return f"\\{byte:03o}" if byte == 0 or byte >= 0x80 else chr(byte)


def decode(text: str, form: str) -> bytes:
    name = form.lower()
    if name == "hex":
        return parse_hex(text)
    if name == "base64":
        return _from_base64(text)
    if name == "escape":
        return _from_escape(text)
    raise InvalidValue(f'unrecognized encoding: "{form}"', sqlstate="22023")


def _from_base64(text: str) -> bytes:
    symbols = [ch for ch in text if ch not in " \n\t\r"]
    ended = 0
    for i, ch in enumerate(symbols):
        if ch == "=":
            if not ended and i % 4 < 2:
                raise InvalidValue('unexpected "=" while decoding base64 sequence', sqlstate="22023")
            ended += 1
        elif not ch.isascii() or ord(ch) not in _BASE64 or ended:
            raise InvalidValue(
                f'invalid symbol "{ch}" found while decoding base64 sequence', sqlstate="22023"
            )
    if len(symbols) % 4 or ended > 2:
        raise InvalidValue("invalid base64 end sequence", sqlstate="22023")
    return base64.b64decode("".join(symbols))


def _from_escape(text: str) -> bytes:
    data = text.encode()
    out = bytearray()
    at = 0
    while at < len(data):
        if data[at] != 0x5C:
            out.append(data[at])
            at += 1
        elif data[at + 1 : at + 2] == b"\\":
            out.append(0x5C)
            at += 2
        else:
            digits = data[at + 1 : at + 4]
            octal = len(digits) == 3 and all(48 <= d < 56 for d in digits) and digits[0] < 52
            if not octal:
                raise InvalidValue("invalid input syntax for type bytea")
            out.append(int(digits, 8))
            at += 4
    return bytes(out)


def _codec(name: str, which: str) -> str:
    found = _ENCODINGS.get(name.lower().replace("-", "").replace("_", "").replace(" ", ""))
    if found is None:
        raise InvalidValue(f'invalid {which} encoding name "{name}"', sqlstate="22023")
    return found


def convert_from(data: bytes, source: str) -> str:
    codec = _codec(source, "source")
    if b"\0" in data and _is_bytes(source):
        raise _not_in(b"\0", source)
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as error:
        shown = "UTF8" if codec == "utf-8" else source
        raise _not_in(data[error.start : error.start + 1], shown) from None
    if "\0" in text:
        raise _not_in(b"\0", source)
    return text


def _is_bytes(name: str) -> bool:
    return name.lower().replace("_", "").replace("-", "") == "sqlascii"


def _not_in(data: bytes, name: str) -> InvalidValue:
    shown = " ".join(f"0x{b:02x}" for b in data)
    return InvalidValue(f'invalid byte sequence for encoding "{name.upper()}": {shown}', sqlstate="22021")


def convert_to(text: str, target: str) -> bytes:
    try:
        return text.encode(_codec(target, "destination"))
    except UnicodeEncodeError as error:
        shown = " ".join(f"0x{b:02x}" for b in text[error.start].encode())
        raise InvalidValue(
            f'character with byte sequence {shown} in encoding "UTF8" has no equivalent in encoding '
            f'"{target.upper()}"',
            sqlstate="22P05",
        ) from None


def length_in(data: bytes, source: str) -> int:
    if _is_bytes(source) and b"\0" not in data:
        return len(data)
    return len(convert_from(data, source))


def to_int(data: bytes, width: int, name: str) -> int:
    """An integer from its big-endian bytes."""
    if len(data) > width:
        raise InvalidValue(f"{name} out of range", sqlstate="22003")
    if not data:
        return 0
    value = int.from_bytes(data)
    if len(data) == width and value >= 1 << (width * 8 - 1):
        value -= 1 << (width * 8)
    return value
