"""Angles in degrees, hyperbolic functions and the error function, of float8."""

from __future__ import annotations

import math

from tidemill.sql.functions.rowwise import by_row
from tidemill.sql.functions.signature import not_yet
from tidemill.sql.scalar import degrees
from tidemill.types.model import FLOAT8


def _install() -> None:
    for name, run in {
        "sind": degrees.sind,
        "cosd": degrees.cosd,
        "tand": degrees.tand,
        "cotd": degrees.cotd,
        "asind": degrees.asind,
        "acosd": degrees.acosd,
        "atand": degrees.atand,
        "cot": degrees.cot,
        "sinh": degrees.sinh,
        "cosh": degrees.cosh,
        "tanh": math.tanh,
        "asinh": math.asinh,
        "acosh": degrees.acosh,
        "atanh": degrees.atanh,
        "erf": math.erf,
        "erfc": math.erfc,
    }.items():
        by_row(name, (FLOAT8,), FLOAT8, run)
    by_row("atan2d", (FLOAT8, FLOAT8), FLOAT8, degrees.atan2d)
    not_yet("gamma lgamma")


_install()
