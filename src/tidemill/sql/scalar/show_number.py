"""to_char of numbers.

It processes the template position by position as PostgreSQL does: no simpler set of rules reproduces
PostgreSQL's signs, blanks and points.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.scalar.number_picture import NumberPicture, read_number_picture
from tidemill.sql.scalar.show_time import ordinal

_EXACT = Context(prec=100, rounding=ROUND_HALF_UP)
# The reliable digits of float8 and float4.
_DOUBLE_DIGITS, _SINGLE_DIGITS = 15, 6


def whole(value: int, template: str, bits: int = 64) -> str:
    """to_char of int4 and int8."""
    picture = read_number_picture(template)
    if picture.times:
        shifted = value * 10**picture.shift
        if bits == 64 and not -(1 << 63) <= shifted < 1 << 63:
            raise InvalidValue("bigint out of range", sqlstate="22003")
        if bits == 32:
            # PostgreSQL multiplies without a range check.
            wrapped = (shifted + (1 << 31)) % (1 << 32) - (1 << 31)
            return numeric(Decimal(wrapped).scaleb(-picture.shift, _EXACT), template)
    if picture.science:
        return f"{float(value): .{picture.behind}e}"
    if picture.roman:
        return _roman(value, picture)
    return numeric(Decimal(value), template)


def numeric(value: Decimal, template: str) -> str:
    picture = read_number_picture(template)
    if picture.roman:
        return _roman(int(value.quantize(Decimal(1), context=_EXACT)), picture)
    if picture.science:
        return _science(value, picture)
    before = picture.before
    if picture.times:
        value = value.scaleb(picture.shift, _EXACT)
        before += picture.shift
    rounded = value.quantize(Decimal(1).scaleb(-picture.behind), context=_EXACT)
    text = format(abs(rounded), "f")
    sign = "-" if rounded < 0 else "+"
    return _Walk(picture, text, sign, before, picture.behind).run()


def double(value: float, template: str) -> str:
    return _float(value, template, _DOUBLE_DIGITS)


def single(value: float, template: str) -> str:
    return _float(value, template, _SINGLE_DIGITS)


def _float(value: float, template: str, digits: int) -> str:
    picture = read_number_picture(template)
    if not math.isfinite(value):
        if picture.science or picture.roman:
            raise Unsupported("to_char() of NaN or infinity with EEEE or RN is not supported")
        text = "NaN" if math.isnan(value) else "Infinity"
        before = picture.before + (picture.shift if picture.times else 0)
        behind = _behind(len(text), picture.behind, digits)
        return _Walk(picture, text, "-" if value < 0 else "+", before, behind).run()
    if picture.roman:
        return _roman(round(value), picture)
    if picture.science:
        return f"{value: .{picture.behind}e}"
    before, behind = picture.before, picture.behind
    if picture.times:
        value *= 10.0**picture.shift
        before += picture.shift
    behind = _behind(len(f"{abs(value):.0f}"), behind, digits)
    # The multiplication by V can overflow to infinity.
    text = f"{value:.{behind}f}".replace("inf", "Infinity")
    sign = "-" if text.startswith("-") else "+"
    return _Walk(picture, text.lstrip("-"), sign, before, behind).run()


def _behind(length: int, behind: int, digits: int) -> int:
    """The fractional digits to show: at most as many as a float has."""
    return 0 if length >= digits else min(behind, digits - length)


def _science(value: Decimal, picture: NumberPicture) -> str:
    if value == 0:
        mantissa, exponent = Decimal(0), 0
    else:
        exponent = value.adjusted()
        unit = Decimal(1).scaleb(-picture.behind)
        # Rounding may make it 10.0: PostgreSQL leaves it so.
        mantissa = value.scaleb(-exponent, _EXACT).quantize(unit, context=_EXACT)
    lead = "" if mantissa < 0 else " "
    return f"{lead}{mantissa:.{picture.behind}f}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


_NUMERALS = (
    *((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L")),
    *((40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")),
)


def _roman(value: int, picture: NumberPicture) -> str:
    if not 1 <= value <= 3999:
        text = "#" * 15
    else:
        text = ""
        for size, letters in _NUMERALS:
            count, value = divmod(value, size)
            text += letters * count
    lower = any(word == "rn" for word, _ in picture.pieces)
    text = text.lower() if lower else text
    return text if picture.fill else text.rjust(15)


class _Walk:
    """The formatting of one number with one template."""

    def __init__(self, picture: NumberPicture, text: str, sign: str, before: int, behind: int) -> None:
        self.p = picture
        self.sign = sign
        length = len(text.split(".")[0])
        self.spaces = max(0, before - length)
        if length > before:
            text = "#" * before + "." + "#" * behind
        self.text = text
        self.before, self.behind = before, behind
        self.bracket = picture.bracket
        self.locale_sign = picture.sign
        self.out: list[str] = []
        self.at = 0  # in the number
        self.place = 0  # in the template's digits
        self.within = False  # digits were written
        self.last: int | None = None  # the last digit that FM leaves
        self.signed = self._start()
        self.count = behind + before - 1 + (not self.signed and self.spaces == 0)

    def _start(self) -> bool:
        """Whether the sign is written separately from the digits."""
        p = self.p
        if p.plus or p.minus:
            signed = p.minus or not p.plus
        else:
            if self.sign != "-" and p.fill:
                self.bracket = False
            signed = self.sign == "+" and p.fill and not p.sign
            if p.sign == "pre" and self.before == p.sign_place:
                self.locale_sign = "post"
        if p.fill and p.decimal and "." in self.text:
            self._last_relevant()
        return signed

    def _last_relevant(self) -> None:
        point = self.text.index(".")
        last = len(self.text) - 1
        while last > point and self.text[last] == "0":
            last -= 1
        if self.p.zero_end > self.spaces:
            last = max(last, min(len(self.text) - 1, self.p.zero_end - self.spaces))
        self.last = last

    def run(self) -> str:
        for word, ch in self.p.pieces:
            if not word:
                self.out.append(ch)
            elif word in ("9", "0", ".", "D"):
                self._part(word)
            else:
                self._word(word)
        # Where PostgreSQL writes a place that the number has no digit for, its text ends.
        return "".join(self.out).partition("\0")[0]

    def _word(self, word: str) -> None:
        fill = self.p.fill
        if word in (",", "G"):
            if self.within:
                self.out.append(",")
            elif not fill:
                self.out.append(" ")
        elif word == "L":
            self.out.append(" ")
        elif word in ("TH", "th"):
            if not (self.text.startswith("#") or self.sign == "-" or self.p.decimal):
                self.out.append(ordinal(self.text, word == "th"))
        elif word in ("MI", "PL"):
            mark = "-" if word == "MI" else "+"
            if self.sign == mark:
                self.out.append(mark)
            elif not fill:
                self.out.append(" ")
        elif word == "SG":
            self.out.append(self.sign)

    def _blank_before_point(self) -> bool:
        return not self.p.zeros and self.at == 0 and self.text[:1] == "0" and self.p.behind != 0

    def _point_is_last(self) -> bool:
        return self.last is not None and self.text[self.last] == "."

    def _part(self, word: str) -> None:
        p = self.p
        self.within = False
        starts = self.place >= self.spaces or (p.zeros and p.zero_start == self.place)
        if not self.signed and starts and (not self._blank_before_point() or self._point_is_last()):
            self._sign()
        if self.place < self.spaces and (p.zero_start > self.place or not p.zeros):
            if not p.fill:
                self.out.append(" ")
        elif p.zeros and self.place < self.spaces and p.zero_start <= self.place:
            self.out.append("0")
            self.within = True
        else:
            self._digit(word)
        end = self.count + (1 if self.spaces else 0) + (1 if p.decimal else 0)
        if self.last is not None and self.last == self.at:
            end = self.place
        if self.place + 1 == end:
            if self.signed and self.bracket:
                self.out.append(" " if self.sign == "+" else ">")
            elif p.sign and self.locale_sign == "post":
                self.out.append(self.sign)
        self.place += 1

    def _sign(self) -> None:
        if self.p.sign:
            if self.locale_sign == "pre":
                self.out.append(self.sign)
                self.signed = True
        elif self.bracket:
            self.out.append(" " if self.sign == "+" else "<")
            self.signed = True
        elif self.sign == "+":
            if not self.p.fill:
                self.out.append(" ")
            self.signed = True
        else:
            self.out.append("-")
            self.signed = True

    def _digit(self, word: str) -> None:
        ch = self.text[self.at : self.at + 1]
        if ch == ".":
            self.out.append(".")
        elif self.last is not None and self.at > self.last and word != "0":
            pass
        elif self._blank_before_point():
            if not self.p.fill:
                self.out.append(" ")
            elif self._point_is_last():
                self.out.append("0")
        else:
            self.out.append(ch or "\0")
            self.within = True
        if ch:
            self.at += 1
