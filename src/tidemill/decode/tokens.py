"""Columnar check of JSON numbers and words: canonical, or canonical after removal of trailing zeros.

Tokens of up to 8 bytes, and integers of up to 16, are checked as 64-bit words with one byte of text per byte.
All others are checked with a regular expression.
"""

from __future__ import annotations

import numpy as np

from tidemill.decode.cursor import Bytes
from tidemill.types.kernels import pc

# Numbers without an exponent and without leading zeros.
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$"
_WORDS = tuple(np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"false", b"null"))


def _each(byte: int) -> np.uint64:
    """The byte repeated in all positions."""
    return np.uint64(byte * 0x0101010101010101)


_HIGH, _LOW, _ZEROS, _DOTS, _ABOVE_NINE = _each(0x80), _each(0x7F), _each(0x30), _each(0x2E), _each(0x76)
_BYTE, _ONE, _EIGHT = np.uint64(0xFF), np.uint64(1), np.uint64(8)
_MINUS, _ZERO, _POINT = ord("-"), ord("0"), ord(".")


def plain_tokens(bytes_: Bytes, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens (at least one byte each) are true, false, null, or a number without exponent; and the end
    of each without the trailing zeros of its fraction, which jsonb omits."""
    length = stop - start
    if int(length.max()) <= 8:
        sound, fraction = _short(bytes_.words[start], length)
    else:
        sound, fraction = _any(bytes_, start, stop)
    octets = bytes_.octets
    zeros = np.flatnonzero(fraction & (octets[stop - 1] == _ZERO))
    if len(zeros):
        stop = stop.copy()
        while len(zeros):
            stop[zeros] -= 1
            zeros = zeros[octets[stop[zeros] - 1] == _ZERO]
        # A point that is now last is removed, too. No other token ends with one.
        stop -= octets[stop - 1] == _POINT
    # A negative zero is not a jsonb number.
    sound &= (stop - start != 2) | (octets[start] != _MINUS) | (octets[start + 1] != _ZERO)
    return sound, stop


def _any(bytes_: Bytes, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = stop - start
    sound = np.zeros(len(start), dtype=np.bool_)
    fraction = np.zeros(len(start), dtype=np.bool_)
    short = np.flatnonzero(length <= 8)
    sound[short], fraction[short] = _short(bytes_.words[start[short]], length[short])
    middle = np.flatnonzero((length > 8) & (length <= 16))
    sound[middle] = _long_integer(bytes_, start[middle], length[middle])
    rest = np.flatnonzero(~sound & (length > 8))
    if len(rest):
        tokens = bytes_.column(start[rest], stop[rest])
        sound[rest] = pc.match_substring_regex(tokens, _NUMBER).to_numpy(zero_copy_only=False)
        fraction[rest] = sound[rest] & pc.match_substring(tokens, ".").to_numpy(zero_copy_only=False)
    return sound, fraction


def _cut(words: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The first bytes of each word, 1 to 8."""
    return words & (~np.uint64(0) >> ((8 - length) << 3).view(np.uint64))


def _others(words: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The high bit of each byte of the token that is not a digit."""
    digits = words ^ _ZEROS
    return _cut((((digits & _LOW) + _ABOVE_NINE) | digits) & _HIGH, length)


def _short(words: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens are valid, and which of them have a fraction."""
    words = _cut(words, length)
    known = (words == _WORDS[0]) | (words == _WORDS[1]) | (words == _WORDS[2])
    if bool(known.all()):
        return known, np.zeros(len(words), dtype=np.bool_)
    negative = (words & _BYTE) == _MINUS
    if negative.any():
        lone = negative & (length == 1)
        words = np.where(negative, words >> _EIGHT, words)
        length = np.maximum(length - negative, 1)
        whole, fraction = _digits(words, length)
        return known | ((whole | fraction) & ~lone), fraction & ~lone
    whole, fraction = _digits(words, length)
    return known | whole | fraction, fraction


def _digits(words: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which are digits, and which are digits with a point among them."""
    others = _others(words, length)
    zero_first = (words & _BYTE) == _ZERO
    whole = (others == 0) & (~zero_first | (length == 1))
    if bool(whole.all()):
        return whole, ~whole
    away = words ^ _DOTS
    points = _cut(~(((away & _LOW) + _LOW) | away) & _HIGH, length)
    last = (length - 1).view(np.uint64) << np.uint64(3)
    fraction = (
        (others != 0)
        & (others == points)
        & ((others & (others - _ONE)) == 0)  # one point
        & ((others & np.uint64(0x80)) == 0)  # not first
        & (others < (np.uint64(0x80) << last))  # nor last
        & (~zero_first | (others == np.uint64(0x8000)))
    )
    return whole, fraction


def _long_integer(bytes_: Bytes, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """For tokens of 9 to 16 bytes."""
    negative = bytes_.octets[start] == _MINUS
    head = bytes_.words[start]
    others = _others(head, np.full(len(start), 8))
    others = np.where(negative, others & ~_BYTE, others)
    first = np.where(negative, (head >> _EIGHT) & _BYTE, head & _BYTE)
    rest = _others(bytes_.words[start + 8], length - 8)
    return (others == 0) & (rest == 0) & (first != _ZERO)
