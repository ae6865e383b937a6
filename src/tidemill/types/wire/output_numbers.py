"""Text output of numbers, as PostgreSQL prints them: whole columns of floats and numerics."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.types.columns import numbers
from tidemill.types.kernels import pc

# PostgreSQL prints an exponent from this decimal exponent on (FLT_DIG and DBL_DIG), and below -4.
_EXPONENT_FROM = {4: 6, 8: 15}
# Arrow prints plain digits from 1e-6 up to this value, and an exponent otherwise.
_ARROW_EXPONENT_FROM = 10


def float_text(array: pa.Array) -> pa.Array:
    """float4 and float8: the shortest digits that read back as the same value, with an exponent where
    PostgreSQL has one."""
    texts = array.cast(pa.string())
    limit = _EXPONENT_FROM[array.type.bit_width // 8]
    dtype = np.dtype(f"f{array.type.bit_width // 8}")
    size = np.abs(numbers(array, dtype))
    with np.errstate(invalid="ignore"):
        plain = ((size >= 1e-4) & (size < 10.0 ** min(limit, _ARROW_EXPONENT_FROM))) | (size == 0)
    odd = ~plain
    if array.null_count:
        odd &= array.is_valid().to_numpy(zero_copy_only=False)
    if not bool(odd.any()):
        return texts
    mask = pa.array(odd)
    respelt = _respell(texts.filter(mask), limit)
    return pc.replace_with_mask(texts, mask, _off_the_boundary(numbers(array, dtype)[odd], respelt))


def _respell(texts: pa.Array, limit: int) -> pa.Array:
    """Converts Arrow's form to PostgreSQL's, for values for which they may differ."""
    for arrow, postgres in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, arrow), postgres, texts)
    # Small: plain in Arrow, an exponent in PostgreSQL.
    for zeros, exponent in (("0000", 5), ("00000", 6)):
        pattern = rf"^(-?)0\.{zeros}([1-9])([0-9]*)$"
        texts = pc.replace_substring_regex(texts, pattern, rf"\1\2.\3e-0{exponent}")
    # Large: plain in Arrow, an exponent in PostgreSQL (float4 only).
    for exponent in range(limit, _ARROW_EXPONENT_FROM):
        pattern = rf"^(-?)([0-9])([0-9]{{{exponent}}})(?:\.([0-9]*))?$"
        texts = pc.replace_substring_regex(texts, pattern, rf"\1\2.\3\4e+0{exponent}")
    texts = pc.replace_substring_regex(texts, r"(\.[0-9]*[1-9])0+e", r"\1e")
    texts = pc.replace_substring_regex(texts, r"\.0*e", "e")
    # Large: an exponent in Arrow, plain in PostgreSQL (float8 only).
    for exponent in range(_ARROW_EXPONENT_FROM, limit):
        chosen = pc.ends_with(texts, f"e+{exponent}")
        if pc.any(chosen).as_py():
            texts = pc.replace_with_mask(texts, chosen, _plain(texts.filter(chosen), exponent))
    return pc.replace_substring_regex(texts, r"e([+-])([0-9])$", r"e\10\2")


def _plain(texts: pa.Array, exponent: int) -> pa.Array:
    """`d.ddde+X` without its exponent."""
    negative = pc.starts_with(texts, "-")
    digits = pc.replace_substring(pc.replace_substring_regex(texts, r"^-|e.*$", ""), ".", "")
    padded = pc.ascii_rpad(digits, exponent + 1, "0")
    pointed = pc.replace_substring_regex(padded, rf"^([0-9]{{{exponent + 1}}})([0-9]+)$", r"\1.\2")
    return pc.if_else(negative, pc.binary_join_element_wise("-", pointed, ""), pointed)


def _off_the_boundary(values: np.ndarray, texts: pa.Array) -> pa.Array:
    """Digits that are exactly half way to the next float read back by rounding to even. Arrow uses them if
    they are shorter, PostgreSQL does not (1e23 is 9.999999999999999e+22). This affects only integers beyond
    the mantissa."""
    with np.errstate(invalid="ignore"):
        size = np.abs(values)
        if values.dtype == np.float32:
            candidates = np.flatnonzero((size >= 2.0**24) & np.isfinite(values))
        else:
            # A half-way value needs 54 bits and at most 16 digits. It therefore has at most the factor 5**23,
            # and is below 1e40.
            candidates = np.flatnonzero((size >= 2.0**54) & (size < 1e40))
    if not candidates.size:
        return texts
    chosen = values[candidates]
    spellings = texts.take(pa.array(candidates))
    with np.errstate(over="ignore"):
        above, below = np.nextafter(chosen, np.inf), np.nextafter(chosen, -np.inf)
    if values.dtype == np.float32:
        read = numbers(spellings.cast(pa.float64()), np.float64)
        middle = chosen.astype(np.float64)
        half = (read == (middle + above) / 2) | (read == (middle + below) / 2)
    else:
        half = np.array(
            [
                2 * int(Decimal(text)) in (int(v) + int(a), int(v) + int(b))
                for text, v, a, b in zip(
                    spellings.to_pylist(), chosen.tolist(), above.tolist(), below.tolist(), strict=True
                )
            ]
        )
    rows = candidates[half]
    if not rows.size:
        return texts
    mask = np.zeros(len(values), dtype=np.bool_)
    mask[rows] = True
    halfway = spellings.filter(pa.array(half)).to_pylist()
    longer = [_longer(values[row], text) for row, text in zip(rows, halfway, strict=True)]
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(longer, pa.string()))


def _longer(value: Any, text: str) -> str:
    """The shortest digits that read back and differ from `text`, which is half way."""
    digits = len(text.partition("e")[0].lstrip("-").replace(".", ""))
    most = 9 if value.dtype == np.float32 else 17
    for count in range(digits + 1, most + 1):
        mantissa, _, exponent = f"{float(value):.{count - 1}e}".partition("e")
        spelt = f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
        if spelt != text and value.dtype.type(spelt) == value:
            return spelt
    return text


def decimal_text(array: pa.Array, *, least: int | None) -> pa.Array:
    """A decimal column with all digits of its scale, or, with `least`, at least this many and no further
    zeros."""
    scale = array.type.scale
    texts = array.cast(pa.string())
    if scale > 6:
        # Arrow prints values below 1e-6 (and zero at this scale) with an exponent; PostgreSQL never does.
        odd = pc.match_substring(texts, "E")
        if pc.any(odd).as_py():
            texts = pc.replace_with_mask(texts, pc.fill_null(odd, False), _small(array.filter(odd), scale))
    if least is None or least >= scale:
        return texts
    trimmed = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    if not least:
        return trimmed
    cut = pc.utf8_slice_codeunits(texts, 0, least - scale)
    return pc.if_else(pc.greater(pc.utf8_length(cut), pc.utf8_length(trimmed)), cut, trimmed)


def _small(array: pa.Array, scale: int) -> pa.Array:
    """Decimals below one, with all digits written out."""
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(array), array.buffers(), offset=array.offset)
    digits = pc.ascii_lpad(pc.abs(unscaled).cast(pa.string()), scale, "0")
    sign = pc.if_else(pc.less(unscaled, pa.scalar(0, pa.decimal128(38, 0))), "-0.", "0.")
    return pc.binary_join_element_wise(sign, digits, "")
