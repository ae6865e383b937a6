"""Functions of numeric and of integers.

PostgreSQL's numeric functions return at least 16 significant digits, with as many fractional digits as that
takes. This module uses the same scales, so it returns the same digits.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal

from tidemill.errors import InvalidValue
from tidemill.types.arrow import NUMERIC_SCALE

_DIGITS = 16
# Far more than any answer shows.
EXACT = Context(prec=100, rounding=ROUND_HALF_UP, Emax=10**6, Emin=-(10**6))
# Beyond this many digits no result fits 38.
_TOO_LARGE = 45
_LOG10_E = 0.434294481903252
_LN_10 = 2.302585092994046
_NBASE_DIGITS = 4


def _overflow() -> InvalidValue:
    return InvalidValue("value overflows numeric format", sqlstate="22003")


def _plain(value: Decimal) -> Decimal:
    return value.normalize(EXACT)


def _scale(value: Decimal) -> int:
    """The number of fractional digits, without trailing zeros."""
    exponent = _plain(value).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _shown(value: Decimal) -> int:
    """The number of fractional digits as PostgreSQL counts them. Stored values have the full scale of the
    storage: only the digits that are needed count.
    """
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) and exponent > -NUMERIC_SCALE else _scale(value)


def _weight(value: Decimal) -> int:
    """The weight of the first base-10000 digit."""
    return value.adjusted() // _NBASE_DIGITS


def _rounded(value: Decimal, scale: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-max(scale, 0)), context=EXACT)


def _groups(value: Decimal) -> list[int]:
    """The first base-10000 digits."""
    weight = _weight(value)
    scaled = abs(value).scaleb(-(weight - 1) * _NBASE_DIGITS, context=EXACT)
    whole = int(scaled)
    first, second = divmod(whole, 10_000)
    more = scaled != first * 10_000
    return [first, second] if more else [first]


def quotient(value: Decimal, divisor: Decimal, digits: int) -> Decimal:
    """The quotient with at least 16 significant digits (by an estimate of its size) and at least `digits`
    fractional digits.
    """
    if divisor == 0:
        raise InvalidValue("division by zero", sqlstate="22012")
    if value == 0:
        first, weight = 0, 0
    else:
        first, weight = _groups(value)[0], _weight(value)
    below = _groups(divisor)[0]
    weight -= _weight(divisor) + (first <= below)
    return _rounded(EXACT.divide(value, divisor), max(_DIGITS - weight * _NBASE_DIGITS, digits))


def sqrt(value: Decimal) -> Decimal:
    if value < 0:
        raise InvalidValue("cannot take square root of a negative number", sqlstate="2201F")
    size = 0 if value == 0 else _weight(value)
    weight = int((size + 1) * _NBASE_DIGITS / 2) - 1
    return _rounded(EXACT.sqrt(value), max(_DIGITS - weight, _shown(value)))


def exp(value: Decimal) -> Decimal:
    estimate = float(value) * _LOG10_E
    if estimate > _TOO_LARGE:
        raise _overflow()
    if estimate < -1000:
        return Decimal(0)
    return _rounded(EXACT.exp(value), max(_DIGITS - int(estimate), _shown(value)))


def _log_weight(value: Decimal) -> int:
    """The position of the first digit of the logarithm."""
    if Decimal("0.9") <= value <= Decimal("1.1"):
        rest = value - 1
        if rest == 0:
            return 0
        return _weight(rest) * _NBASE_DIGITS + int(math.log10(_groups(rest)[0]))
    groups = _groups(value)
    digits, weight = groups[0], _weight(value) * _NBASE_DIGITS
    if len(groups) > 1:
        digits, weight = digits * 10_000 + groups[1], weight - _NBASE_DIGITS
    log = math.log(digits) + weight * _LN_10
    return int(math.log10(abs(log))) if log else 0


def _check_log(value: Decimal) -> None:
    if value == 0:
        raise InvalidValue("cannot take logarithm of zero", sqlstate="2201E")
    if value < 0:
        raise InvalidValue("cannot take logarithm of a negative number", sqlstate="2201E")


def ln(value: Decimal) -> Decimal:
    _check_log(value)
    return _rounded(EXACT.ln(value), max(_DIGITS - _log_weight(value), _shown(value)))


def log(base: Decimal, value: Decimal) -> Decimal:
    _check_log(base)
    _check_log(value)
    scale = max(_DIGITS - (_log_weight(value) - _log_weight(base)), _shown(base), _shown(value))
    below = EXACT.ln(base)
    if below == 0:
        raise InvalidValue("division by zero", sqlstate="22012")
    return _rounded(EXACT.divide(EXACT.ln(value), below), scale)


def log10(value: Decimal) -> Decimal:
    return log(Decimal(10), value)


def power(base: Decimal, exponent: Decimal) -> Decimal:
    whole = exponent == exponent.to_integral_value()
    if base == 0 and exponent < 0:
        raise InvalidValue("zero raised to a negative power is undefined", sqlstate="2201F")
    if base < 0 and not whole:
        raise InvalidValue(
            "a negative number raised to a non-integer power yields a complex result", sqlstate="2201F"
        )
    if base == 0 or exponent == 0:
        return _rounded(Decimal(exponent == 0), _DIGITS)
    size = abs(base)
    estimate = float(exponent) * float(EXACT.log10(size))
    if estimate > _TOO_LARGE:
        raise _overflow()
    if estimate < -1000:
        return Decimal(0)
    found = EXACT.power(size, exponent)
    if base < 0 and int(exponent) % 2:
        found = -found
    return _rounded(found, max(_DIGITS - int(estimate), _shown(base), _shown(exponent)))


def round_to(value: Decimal, scale: int) -> Decimal:
    return _at_scale(value, scale, ROUND_HALF_UP)


def trunc_to(value: Decimal, scale: int) -> Decimal:
    return _at_scale(value, scale, ROUND_DOWN)


def _at_scale(value: Decimal, scale: int, rounding: str) -> Decimal:
    if scale < -_TOO_LARGE:
        return Decimal(0)
    if scale > _TOO_LARGE:
        return value
    return value.quantize(Decimal(1).scaleb(-scale), rounding, context=EXACT).quantize(
        Decimal(1).scaleb(-max(scale, 0)), context=EXACT
    )


def min_scale(value: Decimal) -> int:
    return _scale(value)


def factorial(value: int) -> Decimal:
    if value < 0:
        raise InvalidValue("factorial of a negative number is undefined", sqlstate="22003")
    if value > 40:
        raise _overflow()
    return Decimal(math.factorial(value))


def _fits(value: int, bits: int, name: str) -> int:
    if value >= 1 << bits:
        raise InvalidValue(f"{name} out of range", sqlstate="22003")
    return value


def gcd4(a: int, b: int) -> int:
    return _fits(math.gcd(a, b), 31, "integer")


def gcd8(a: int, b: int) -> int:
    return _fits(math.gcd(a, b), 63, "bigint")


def lcm4(a: int, b: int) -> int:
    return _fits(math.lcm(a, b), 31, "integer")


def lcm8(a: int, b: int) -> int:
    return _fits(math.lcm(a, b), 63, "bigint")


def _together(a: Decimal, b: Decimal) -> tuple[int, int, int]:
    """Both as multiples of one unit."""
    scale = max(_scale(a), _scale(b))
    return int(a.scaleb(scale, EXACT)), int(b.scaleb(scale, EXACT)), scale


def gcd_numeric(a: Decimal, b: Decimal) -> Decimal:
    x, y, scale = _together(a, b)
    return Decimal(math.gcd(x, y)).scaleb(-scale, EXACT)


def lcm_numeric(a: Decimal, b: Decimal) -> Decimal:
    x, y, scale = _together(a, b)
    return Decimal(math.lcm(x, y)).scaleb(-scale, EXACT)


def _check_buckets(low: object, high: object, count: int) -> None:
    if count <= 0:
        raise InvalidValue("count must be greater than zero", sqlstate="2201G")
    if low == high:
        raise InvalidValue("lower bound cannot equal upper bound", sqlstate="2201G")


def _bucket(below: bool, above: bool, inside: int, count: int) -> int:
    if below:
        return 0
    if above:
        return _fits(count + 1, 31, "integer")
    return min(inside, count - 1) + 1


def width_bucket_float(value: float, low: float, high: float, count: int) -> int:
    if math.isnan(value) or math.isnan(low) or math.isnan(high):
        raise InvalidValue("operand, lower bound, and upper bound cannot be NaN", sqlstate="2201G")
    if math.isinf(low) or math.isinf(high):
        raise InvalidValue("lower and upper bounds must be finite", sqlstate="2201G")
    _check_buckets(low, high, count)
    if low < high:
        below, above = value < low, value >= high
    else:
        below, above = value > low, value <= high
    if below or above:
        return _bucket(below, above, 0, count)
    span = high - low
    share = (value / 2 - low / 2) / (high / 2 - low / 2) if math.isinf(span) else (value - low) / span
    return _bucket(below, above, int(count * share), count)


def width_bucket_numeric(value: Decimal, low: Decimal, high: Decimal, count: int) -> int:
    _check_buckets(low, high, count)
    if low < high:
        below, above = value < low, value >= high
    else:
        below, above = value > low, value <= high
    inside = (
        0
        if below or above
        else int(EXACT.divide_int(EXACT.multiply(EXACT.subtract(value, low), Decimal(count)), high - low))
    )
    return _bucket(below, above, inside, count)
