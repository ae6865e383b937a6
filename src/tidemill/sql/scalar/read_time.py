"""to_date and to_timestamp: a text by its template."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.scalar.calendar import days_of_julian, monday_of_week, to_instant
from tidemill.sql.scalar.pictures import WIDTHS, TemplateField, read_picture
from tidemill.sql.scalar.show_time import DAYS, MONTHS, ROMAN
from tidemill.types.wire.calendar import (
    FIRST_DAY,
    FIRST_TIMESTAMP,
    LAST_DAY,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    civil_from_days,
    days_from_civil,
    days_in_month,
)

_INT = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", re.ASCII)
_ISO = frozenset({"IYYY", "IYY", "IY", "I", "IDDD", "IW", "ID"})
_COMMON = frozenset(
    {"YYYY", "YYY", "YY", "Y", "Y,YYY", "DDD", "WW", "W", "MM", "MONTH", "MON", "RM", "DD", "D"}
)
_INT_END = 1 << 31


@dataclass(slots=True)
class _Read:
    """The values read from the text, by field."""

    values: dict[str, int] = field(default_factory=dict)
    twelve: bool = False
    late: bool = False
    before_christ: bool = False
    year_width: int = 0
    iso: bool | None = None
    sign: int = 0  # of the zone


def _error(text: str, detail: str | None = None, sqlstate: str = "22007") -> InvalidValue:
    return InvalidValue(text, detail=detail, sqlstate=sqlstate)


class _Reader:
    def __init__(self, text: str, template: str) -> None:
        self.text = text
        self.pieces = read_picture(template)
        self.at = 0
        self.out = _Read()
        self.fixed = False

    def read(self) -> _Read:
        extra = 0
        for index, piece in enumerate(self.pieces):
            if self.at >= len(self.text):
                break
            if not self.fixed and (piece.name or index == 0):
                extra += self._blanks()
            if not piece.name:
                extra = self._character(piece, extra)
                continue
            self._field(piece, index, extra)
            if not self.fixed:
                extra = self._blanks()
        return self.out

    def _blanks(self) -> int:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in " \t\n\v\f\r":
            self.at += 1
        return self.at - start

    def _character(self, piece: TemplateField, extra: int) -> int:
        if piece.text.isspace() or piece.separates:
            if self.fixed:
                self.at += 1
                return extra
            ch = self.text[self.at : self.at + 1]
            if ch and (ch.isspace() or (ch.isascii() and not ch.isalnum())):
                self.at += 1
                return extra
            return extra - 1
        if not self.fixed and extra > 0:
            return extra - 1
        self.at += 1
        return extra

    # --- numbers

    def _slurps(self, index: int) -> bool:
        """Whether the field takes all available digits: the next field cannot start with a digit."""
        piece = self.pieces[index]
        if piece.fill or piece.ordinal:
            return True
        if index + 1 == len(self.pieces):
            return True
        following = self.pieces[index + 1]
        if following.name:
            return not following.is_digits
        return not following.text.isdigit()

    def _int(self, name: str, index: int, width: int | None = None) -> tuple[int, int]:
        """The number and the count of characters read."""
        written = self.pieces[index].written
        width = WIDTHS[name] if width is None else width
        self._blanks()
        start = self.at
        piece = self.text[start : start + width]
        if self._slurps(index):
            found = _INT.match(self.text, start)
            self.at = found.end() if found else start
        else:
            if len(piece) < width:
                raise _error(
                    f'source string too short for "{written}" formatting field',
                    f"Field requires {width} characters, but only {len(piece)} remain.",
                )
            found = _INT.match(piece)
            used = found.end() if found else 0
            if 0 < used < width:
                raise _error(
                    f'invalid value "{piece}" for "{written}"',
                    f"Field requires {width} characters, but only {used} could be parsed.",
                )
            self.at += used
        if found is None:
            raise _error(f'invalid value "{piece}" for "{written}"', "Value must be an integer.")
        value = int(found[1])
        if not -_INT_END <= value < _INT_END:
            raise _error(f'value for "{written}" in source string is out of range', sqlstate="22008")
        return value, self.at - start

    def _set(self, name: str, value: int, written: str) -> None:
        known = self.out.values.get(name, 0)
        if known not in (0, value):
            raise _error(
                f'conflicting values for "{written}" field in formatting string',
                "This value contradicts a previous setting for the same field type.",
            )
        self.out.values[name] = value

    # --- fields

    def _field(self, piece: TemplateField, index: int, extra: int) -> None:
        name = piece.name
        if name in _ISO or name in _COMMON:
            iso = name in _ISO
            if self.out.iso is not None and self.out.iso is not iso:
                raise InvalidValue(
                    "invalid combination of date conventions",
                    hint="Do not mix Gregorian and ISO week date conventions in a formatting template.",
                    sqlstate="22007",
                )
            self.out.iso = iso
        if name == "FX":
            self.fixed = True
        elif name in ("A.M.", "P.M.", "AM", "PM"):
            words = ("A.M.", "P.M.") if "." in name else ("AM", "PM")
            self.out.twelve, self.out.late = True, bool(self._word(words, piece))
        elif name in ("A.D.", "B.C.", "AD", "BC"):
            words = ("A.D.", "B.C.") if "." in name else ("AD", "BC")
            self.out.before_christ = bool(self._word(words, piece))
        elif name in ("MONTH", "MON", "RM"):
            words = {"MONTH": MONTHS, "MON": [m[:3] for m in MONTHS], "RM": ROMAN[::-1]}[name]
            at = self._word(words, piece)
            self._set("MM", 12 - at if name == "RM" else at + 1, piece.written)
        elif name in ("DAY", "DY"):
            at = self._word(DAYS if name == "DAY" else [d[:3] for d in DAYS], piece)
            self._set("D", at + 1, piece.written)
        elif name in ("TZ", "TZH", "TZM", "OF"):
            self._zone(piece, index, extra)
        else:
            self._digits(piece, index)
        if piece.ordinal:
            self.at += 2

    def _word(self, words: tuple[str, ...] | list[str], piece: TemplateField) -> int:
        rest = self.text[self.at :].lower()
        for i, word in enumerate(words):
            if rest.startswith(word.lower()):
                self.at += len(word)
                return i
        shown = re.split(r"[ \t\n\v\f\r]", self.text[self.at :])[0]
        raise _error(
            f'invalid value "{shown}" for "{piece.written}"',
            "The given value did not match any of the allowed values for this field.",
        )

    def _zone(self, piece: TemplateField, index: int, extra: int) -> None:
        if piece.name == "TZ":
            raise Unsupported(
                "TZ in to_timestamp() is not supported", hint="Use TZH and TZM, or AT TIME ZONE."
            )
        if piece.name == "TZM":
            self.out.values["TZM"] = self._int("MI", index)[0]
            self.out.sign = self.out.sign or 1
            return
        sign = self.text[self.at : self.at + 1]
        if sign and sign in "+- ":
            self.at += 1
        elif extra > 0:
            # A minus that was taken for a separator.
            sign = self.text[self.at - 1]
        self.out.sign = -1 if sign == "-" else 1
        self.out.values["TZH"] = self._int("HH24", index)[0]
        if piece.name == "OF" and self.text[self.at : self.at + 1] == ":":
            self.at += 1
            self.out.values["TZM"] = self._int("MI", index)[0]

    def _digits(self, piece: TemplateField, index: int) -> None:
        name, written = piece.name, piece.written
        if name == "Y,YYY":
            found = re.compile(r"([+-]?\d+),(\d{1,3})").match(self.text, self.at)
            if found is None:
                raise _error(f'invalid value "{self.text[self.at : self.at + 5]}" for "{written}"')
            self._set("YYYY", int(found[1]) * 1000 + int(found[2]), written)
            self.at, self.out.year_width = found.end(), 4
            return
        if name == "MS" or name == "US" or name.startswith("FF"):
            width = 3 if name == "MS" else 6 if name == "US" else int(name[2])
            value, used = self._int(name, index, width)
            self._set(
                "MS" if name == "MS" else "US",
                value * 10 ** max(0, (3 if name == "MS" else 6) - used),
                written,
            )
            return
        value, used = self._int(name, index)
        if name in ("HH", "HH12"):
            self.out.twelve = True
        if name in ("YYY", "YY", "Y", "IYY", "IY", "I"):
            value = _full_year(value) if used < 4 else value
            self.out.year_width = len(name.lstrip("I")) or 1
            name = "YYYY"
        elif name in ("YYYY", "IYYY"):
            self.out.year_width, name = 4, "YYYY"
        elif name == "ID":
            value, name = value % 7 + 1, "D"
        elif name == "Q":
            return
        name = {"HH24": "HH", "HH12": "HH", "SSSSS": "SSSS", "IDDD": "DDD", "IW": "WW"}.get(name, name)
        self._set(name, value, written)


def _full_year(year: int) -> int:
    if year < 70:
        return year + 2000
    if year < 100:
        return year + 1900
    if year < 520:
        return year + 2000
    return year + 1000 if year < 1000 else year


def _finished(text: str, template: str) -> tuple[int, int, _Read]:
    """Days since 1970, microseconds of the day, and the fields read."""
    found = _Reader(text, template).read()
    v = found.values
    overflow = _error(f'date/time field value out of range: "{text}"', sqlstate="22008")
    hour, minute, second = v.get("HH", 0), v.get("MI", 0), v.get("SS", 0)
    if v.get("SSSS"):
        hour, minute, second = v["SSSS"] // 3600, v["SSSS"] // 60 % 60, v["SSSS"] % 60
    if found.twelve:
        if not 1 <= hour <= 12:
            raise InvalidValue(
                f'hour "{hour}" is invalid for the 12-hour clock',
                hint="Use the 24-hour clock, or give an hour between 1 and 12.",
                sqlstate="22007",
            )
        hour = hour % 12 + (12 if found.late else 0)
    micros = v.get("MS", 0) * 1000 + v.get("US", 0)
    days = _days(found, overflow)
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= micros < 1_000_000):
        raise overflow
    return days, (hour * 3600 + minute * 60 + second) * 1_000_000 + micros, found


def _year(found: _Read) -> int | None:
    v = found.values
    year, century = v.get("YYYY", 0), v.get("CC", 0)
    if year:
        if century and found.year_width <= 2:
            century = -century if found.before_christ else century
            part = year % 100
            if not part:
                return century * 100 + (0 if century >= 0 else 1)
            return part + (century - 1) * 100 if century >= 0 else (century + 1) * 100 - part + 1
        year = -year if found.before_christ else year
        return year + 1 if year < 0 else year
    if century:
        century = -century if found.before_christ else century
        return (century - 1) * 100 + 1 if century >= 0 else century * 100 + 1
    return None


def _days(found: _Read, overflow: InvalidValue) -> int:
    v = found.values
    if v.get("J"):
        return days_of_julian(v["J"])
    year = _year(found)
    month, day, of_year = v.get("MM", 0), v.get("DD", 0), v.get("DDD", 0)
    if v.get("WW"):
        if found.iso:
            start = monday_of_week(year or 0, v["WW"])
            # The day of the week counts from Sunday as 1.
            return start + ((v["D"] - 2) % 7 if v.get("D") else 0)
        of_year = (v["WW"] - 1) * 7 + 1
    if v.get("W"):
        day = (v["W"] - 1) * 7 + 1
    if of_year and not (month and day):
        if year is None and not found.before_christ:
            raise _error("cannot calculate day of year without year information")
        if found.iso:
            return monday_of_week(year or 0, 1) + of_year - 1
        first = days_from_civil(year or 0, 1, 1)
        length = days_from_civil((year or 0) + 1, 1, 1) - first
        if not 1 <= of_year <= length:
            raise overflow
        _, from_day_month, from_day = civil_from_days(first + of_year - 1)
        month, day = month or from_day_month, day or from_day
    year, month, day = year or 0, month or 1, day or 1
    if not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month):
        raise overflow
    return days_from_civil(year, month, day)


def to_date(text: str, template: str) -> int:
    days = _finished(text, template)[0]
    if not FIRST_DAY <= days <= LAST_DAY:
        raise InvalidValue(f'date out of range: "{text}"', sqlstate="22008")
    return days


def to_timestamp(text: str, template: str, zone: str) -> int:
    days, micros, found = _finished(text, template)
    local = days * MICROS_PER_DAY + micros
    if found.sign:
        seconds = found.values.get("TZH", 0) * 3600 + found.values.get("TZM", 0) * 60
        stamp = local - found.sign * seconds * 1_000_000
    else:
        stamp = to_instant(local, zone)
    if not FIRST_TIMESTAMP <= stamp <= LAST_TIMESTAMP:
        raise InvalidValue("timestamp out of range", sqlstate="22008")
    return stamp
