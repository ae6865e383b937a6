"""to_char of timestamps and intervals."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.scalar.calendar import abbreviation, iso_week, julian_day, local_offset
from tidemill.sql.scalar.pictures import TemplateField, read_picture
from tidemill.sql.scalar.spans import Interval, is_endless, is_infinite
from tidemill.types.wire.calendar import MICROS_PER_DAY, civil_from_days, days_from_civil

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]


@dataclass(slots=True)
class Fields:
    """A time taken apart. `year` 0 is 1 BC. `offset` in seconds east of UTC and `zone`, of a timestamptz."""

    year: int
    month: int
    day: int
    micros: int  # of the day, or of the whole interval
    interval: bool = False
    offset: int | None = None
    zone: str = ""

    @property
    def clock(self) -> tuple[int, int, int, int]:
        """Hours, minutes, seconds, microseconds, each with the sign of the whole."""
        sign = -1 if self.micros < 0 else 1
        seconds, fraction = divmod(abs(self.micros), 1_000_000)
        return sign * (seconds // 3600), sign * (seconds // 60 % 60), sign * (seconds % 60), sign * fraction

    @property
    def days(self) -> int:
        return days_from_civil(self.year, self.month, self.day)

    @property
    def weekday(self) -> int:
        """Sunday is 0."""
        return (self.days + 4) % 7

    @property
    def shown_year(self) -> int:
        return self.year if self.interval or self.year > 0 else 1 - self.year


def timestamp(stamp: int, template: str) -> str | None:
    if not template or is_endless(stamp):
        return None
    days, micros = divmod(stamp, MICROS_PER_DAY)
    return _shown(Fields(*civil_from_days(days), micros), template)


def timestamptz(stamp: int, template: str, zone: str) -> str | None:
    if not template or is_endless(stamp):
        return None
    offset = local_offset(stamp, zone)
    days, micros = divmod(stamp + offset * 1_000_000, MICROS_PER_DAY)
    fields = Fields(*civil_from_days(days), micros, offset=offset, zone=abbreviation(stamp, zone))
    return _shown(fields, template)


def interval(span: Interval, template: str) -> str | None:
    if not template or is_infinite(span):
        return None
    sign = -1 if span[0] < 0 else 1
    years, months = divmod(abs(span[0]), 12)
    return _shown(Fields(sign * years, sign * months, span[1], span[2], interval=True), template)


def _shown(fields: Fields, template: str) -> str:
    return "".join(_piece(fields, p) if p.name else p.text for p in read_picture(template))


def _piece(f: Fields, p: TemplateField) -> str:
    found = _value(f, p)
    if not p.ordinal or not found[-1:].isdigit():
        return found
    return found + ordinal(found, p.ordinal == "th")


def ordinal(digits: str, lower: bool) -> str:
    last = digits[-1]
    suffix = "TH" if digits[-2:-1] == "1" else {"1": "ST", "2": "ND", "3": "RD"}.get(last, "TH")
    return suffix.lower() if lower else suffix


def _value(f: Fields, p: TemplateField) -> str:
    name = p.name
    hour, minute, second, micros = f.clock
    if name in ("A.M.", "P.M.", "AM", "PM"):
        late = hour >= 0 and hour % 24 >= 12
        word = "P.M." if late else "A.M."
        word = word if "." in name else word.replace(".", "")
        return word.lower() if p.written.islower() else word
    if name in ("HH", "HH12"):
        twelve = hour % 12 if hour >= 0 else -(-hour % 12)
        return _number(twelve or 12, 2, p)
    if name in ("HH24", "MI", "SS"):
        return _number({"HH24": hour, "MI": minute, "SS": second}[name], 2, p)
    if name.startswith("FF"):
        places = int(name[2])
        return f"{abs(micros) // 10 ** (6 - places):0{places}d}"
    if name == "MS":
        return f"{int(micros / 1000):03d}"
    if name == "US":
        return f"{micros:06d}"
    if name in ("SSSS", "SSSSS"):
        return str(hour * 3600 + minute * 60 + second)
    if name in ("TZ", "TZH", "TZM", "OF"):
        return _zone(f, p)
    if f.interval:
        _check_interval(f, name)
    if name in ("A.D.", "B.C.", "AD", "BC"):
        word = "B.C." if f.year <= 0 else "A.D."
        word = word if "." in name else word.replace(".", "")
        return word.lower() if p.written.islower() else word
    if name in ("MONTH", "MON", "RM"):
        return _month(f, p)
    if name in ("DAY", "DY"):
        return _padded(
            DAYS[f.weekday] if name == "DAY" else DAYS[f.weekday][:3], p, 9 if name == "DAY" else 0
        )
    if name == "FX":
        return ""
    return _calendar(f, p)


_NO_DATE = frozenset({"A.D.", "B.C.", "AD", "BC", "DAY", "DY", "D", "ID", "MONTH", "MON"})
_OF_DATES = frozenset({"WW", "W", "IW", "IDDD", "IYYY", "IYY", "IY", "I", "J", "RM", "Q", "Y,YYY"})


def _check_interval(f: Fields, name: str) -> None:
    if name in _NO_DATE:
        raise _no_date()
    if name in _OF_DATES:
        raise Unsupported(
            f"to_char() of an interval as {name} is not supported",
            hint="It has years (YYYY), months (MM), days (DD, DDD) and a clock (HH24, MI, SS, MS, US).",
        )


def _no_date() -> InvalidValue:
    return InvalidValue(
        "invalid format specification for an interval value",
        hint="Intervals are not tied to specific calendar dates.",
        sqlstate="22007",
    )


def _calendar(f: Fields, p: TemplateField) -> str:
    name, year = p.name, f.shown_year
    if name == "MM":
        return _number(f.month, 2, p)
    if name == "DDD":
        if f.interval:
            return _number((f.year * 12 + f.month) * 30 + f.day, 3, p)
        return _number(f.days - days_from_civil(f.year, 1, 1) + 1, 3, p)
    if name == "DD":
        return str(f.day) if p.fill else f"{f.day:02d}"
    if name == "D":
        return str(f.weekday + 1)
    if name == "ID":
        return str(f.weekday or 7)
    if name == "WW":
        return _number((f.days - days_from_civil(f.year, 1, 1)) // 7 + 1, 2, p)
    if name == "W":
        return str((f.day - 1) // 7 + 1)
    if name == "Q":
        return str((f.month - 1) // 3 + 1)
    if name == "CC":
        return _century(f, p)
    if name == "J":
        return str(julian_day(f.days))
    if name == "Y,YYY":
        return f"{year // 1000},{year % 1000:03d}"
    if name.startswith("I"):
        return _iso(f, p)
    if name == "YYYY":
        return _number(year, 4, p)
    width = len(name)
    part = abs(year) % 10**width * (1 if year >= 0 else -1)
    return _number(part, width, p)


def _iso(f: Fields, p: TemplateField) -> str:
    iso_year, week, day = iso_week(f.days)
    if p.name == "IW":
        return _number(week, 2, p)
    if p.name == "IDDD":
        return _number((week - 1) * 7 + day, 3, p)
    shown = iso_year if iso_year > 0 else 1 - iso_year
    if p.name == "IYYY":
        return _number(shown, 4, p)
    width = len(p.name)
    return _number(shown % 10**width, width, p)


def _number(value: int, width: int, p: TemplateField) -> str:
    if p.fill:
        return str(value)
    return f"{value:0{width if value >= 0 else width + 1}d}"


def _padded(word: str, p: TemplateField, width: int) -> str:
    if p.written.isupper():
        word = word.upper()
    elif p.written.islower():
        word = word.lower()
    return word if p.fill or p.local else word.ljust(width)


def _month(f: Fields, p: TemplateField) -> str:
    if p.name == "RM":
        word = ROMAN[f.month - 1]
        word = word.lower() if p.written.islower() else word
        return word if p.fill else word.ljust(4)
    word = MONTHS[f.month - 1]
    return _padded(word if p.name == "MONTH" else word[:3], p, 9 if p.name == "MONTH" else 0)


def _century(f: Fields, p: TemplateField) -> str:
    if f.interval:
        value = int(f.year / 100)
    elif f.year > 0:
        value = (f.year - 1) // 100 + 1
    else:
        value = int(f.year / 100) - 1
    return _number(value, 2, p) if -99 <= value <= 99 else str(value)


def _zone(f: Fields, p: TemplateField) -> str:
    if f.interval:
        raise _no_date()
    offset = f.offset or 0
    if p.name == "TZ":
        zone = f.zone
        return zone.lower() if p.written.islower() else zone.upper()
    sign = "-" if offset < 0 else "+"
    hours, minutes = abs(offset) // 3600, abs(offset) // 60 % 60
    if p.name == "TZH":
        return f"{sign}{hours:02d}"
    if p.name == "TZM":
        return f"{minutes:02d}"
    shown = f"{sign}{hours}" if p.fill else f"{sign}{hours:02d}"
    return f"{shown}:{minutes:02d}" if minutes else shown
