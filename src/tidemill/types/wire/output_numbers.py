"""Numbers as PostgreSQL prints them: whole columns of floats and numerics to text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.types.columns import numbers
from tidemill.types.kernels import pc

# From this decimal exponent on PostgreSQL prints an exponent (FLT_DIG and DBL_DIG); and below -4.
_EXPONENT_FROM = {4: 6, 8: 15}
# Arrow prints plain digits from 1e-6 up to here, an exponent elsewhere.
_ARROW_EXPONENT_FROM = 10


def float_text(array: pa.Array) -> pa.Array:
    """float4 and float8: the shortest digits that read back the same, PostgreSQL's choice of exponents."""
    texts = array.cast(pa.string())
    limit = _EXPONENT_FROM[array.type.bit_width // 8]
    size = np.abs(numbers(array, f"f{array.type.bit_width // 8}"))
    with np.errstate(invalid="ignore"):
        plain = ((size >= 1e-4) & (size < 10.0 ** min(limit, _ARROW_EXPONENT_FROM))) | (size == 0)
    odd = ~plain
    if array.null_count:
        odd &= array.is_valid().to_numpy(zero_copy_only=False)
    if not bool(odd.any()):
        return texts
    mask = pa.array(odd)
    return pc.replace_with_mask(texts, mask, _respell(texts.filter(mask), limit))


def _respell(texts: pa.Array, limit: int) -> pa.Array:
    """From Arrow's spelling to PostgreSQL's, for values where they may differ."""
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


def decimal_text(array: pa.Array, *, trim: bool) -> pa.Array:
    """A decimal column; `trim` leaves out zeros behind the last digit of the fraction."""
    scale = array.type.scale
    texts = array.cast(pa.string())
    if scale > 6:
        # Arrow prints values below 1e-6 (and zero at this scale) with an exponent, PostgreSQL never does.
        odd = pc.match_substring(texts, "E")
        if pc.any(odd).as_py():
            texts = pc.replace_with_mask(texts, pc.fill_null(odd, False), _small(array.filter(odd), scale))
    if trim and scale:
        texts = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    return texts


def _small(array: pa.Array, scale: int) -> pa.Array:
    """Decimals below one, all their digits written out."""
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(array), array.buffers(), offset=array.offset)
    digits = pc.ascii_lpad(pc.abs(unscaled).cast(pa.string()), scale, "0")
    sign = pc.if_else(pc.less(unscaled, pa.scalar(0, pa.decimal128(38, 0))), "-0.", "0.")
    return pc.binary_join_element_wise(sign, digits, "")
