"""Functions of float8: angles in degrees, hyperbolic functions and the error function.

The degree functions are exact where the result is (sind(30) is 0.5).
"""

from __future__ import annotations

import math

from tidemill.errors import InvalidValue

_RADIAN = 0.0174532925199432957692
_SIN_30 = math.sin(30 * _RADIAN)
_ONE_MINUS_COS_60 = 1 - math.cos(60 * _RADIAN)
_ASIN_HALF = math.asin(0.5)
_ACOS_HALF = math.acos(0.5)
_ATAN_1 = math.atan(1.0)


def _outside() -> InvalidValue:
    return InvalidValue("input is out of range", sqlstate="22003")


def _sin_to_30(x: float) -> float:
    return math.sin(x * _RADIAN) / _SIN_30 / 2


def _cos_to_60(x: float) -> float:
    return 1 - (1 - math.cos(x * _RADIAN)) / _ONE_MINUS_COS_60 / 2


def _sin_to_90(x: float) -> float:
    return _sin_to_30(x) if x <= 30 else _cos_to_60(90 - x)


def _cos_to_90(x: float) -> float:
    return _cos_to_60(x) if x <= 60 else _sin_to_30(90 - x)


_TAN_45 = _sin_to_90(45) / _cos_to_90(45)
_COT_45 = _cos_to_90(45) / _sin_to_90(45)


def _turned(x: float) -> float:
    if math.isinf(x):
        raise _outside()
    return math.fmod(x, 360)


def sind(x: float) -> float:
    if math.isnan(x):
        return x
    angle, sign = _turned(x), 1
    if angle < 0:
        angle, sign = -angle, -sign
    if angle > 180:
        angle, sign = 360 - angle, -sign
    if angle > 90:
        angle = 180 - angle
    return sign * _sin_to_90(angle)


def cosd(x: float) -> float:
    if math.isnan(x):
        return x
    angle, sign = abs(_turned(x)), 1
    if angle > 180:
        angle = 360 - angle
    if angle > 90:
        angle, sign = 180 - angle, -sign
    return sign * _cos_to_90(angle)


def _quadrant(x: float) -> tuple[float, int]:
    angle, sign = _turned(x), 1
    if angle < 0:
        angle, sign = -angle, -sign
    if angle > 180:
        angle, sign = 360 - angle, -sign
    if angle > 90:
        angle, sign = 180 - angle, -sign
    return angle, sign


def _divided(a: float, b: float) -> float:
    return a / b if b else math.copysign(math.inf, a) * math.copysign(1, b)


def tand(x: float) -> float:
    if math.isnan(x):
        return x
    angle, sign = _quadrant(x)
    found = sign * (_divided(_sin_to_90(angle), _cos_to_90(angle)) / _TAN_45)
    return found if found else 0.0


def cotd(x: float) -> float:
    if math.isnan(x):
        return x
    angle, sign = _quadrant(x)
    found = sign * (_divided(_cos_to_90(angle), _sin_to_90(angle)) / _COT_45)
    return found if found else 0.0


def _asin_to_1(x: float) -> float:
    return math.asin(x) / _ASIN_HALF * 30 if x <= 0.5 else 90 - math.acos(x) / _ACOS_HALF * 60


def _acos_to_1(x: float) -> float:
    return 90 - math.asin(x) / _ASIN_HALF * 30 if x <= 0.5 else math.acos(x) / _ACOS_HALF * 60


def _check_one(x: float) -> None:
    if abs(x) > 1:
        raise _outside()


def asind(x: float) -> float:
    if math.isnan(x):
        return x
    _check_one(x)
    return _asin_to_1(x) if x >= 0 else -_asin_to_1(-x)


def acosd(x: float) -> float:
    if math.isnan(x):
        return x
    _check_one(x)
    return _acos_to_1(x) if x >= 0 else 90 + _asin_to_1(-x)


def atand(x: float) -> float:
    return x if math.isnan(x) else math.atan(x) / _ATAN_1 * 45


def atan2d(y: float, x: float) -> float:
    return math.atan2(y, x) / _ATAN_1 * 45


def cot(x: float) -> float:
    if math.isinf(x):
        raise _outside()
    return x if math.isnan(x) else _divided(1.0, math.tan(x)) if x else math.copysign(math.inf, x)


def sinh(x: float) -> float:
    try:
        return math.sinh(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def cosh(x: float) -> float:
    try:
        return math.cosh(x)
    except OverflowError:
        return math.inf


def acosh(x: float) -> float:
    if x < 1:
        raise _outside()
    return math.acosh(x)


def atanh(x: float) -> float:
    _check_one(x)
    return math.copysign(math.inf, x) if abs(x) == 1 else math.atanh(x)
