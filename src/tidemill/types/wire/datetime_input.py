"""Date, time or timestamp input, for single values by PostgreSQL's rules (DateStyle ISO, MDY).

Called by `input_times` for values outside its vectorised path. The text is split into tokens (dates, clocks,
offsets, words, numbers), which fill the fields below in any order that PostgreSQL allows. Words whose meaning
changes with the clock (now, today, ...) are refused: a stored value must not depend on the time of reading.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from decimal import Decimal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill.errors import InvalidValue
from tidemill.types.wire.calendar import MICROS_PER_DAY, MICROS_PER_SECOND, days_from_civil, days_in_month

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+)
    |(?P<clock>\d+:\d+(?::\d+(?:\.\d*)?|\.\d*)?)
    |(?P<date>\d+-\d+-\d+|\d+/\d+/\d+|\d+\.\d+\.\d+)
    |(?P<named>\d+-[a-z]+-\d+|[a-z]{3,9}-\d+-\d+)
    |(?P<offset>[+-]\d+(?::\d+)*)
    |(?P<julian>j\d+)
    |(?P<t>t(?=\d))
    |(?P<number>\d+(?:\.\d*)?)
    |(?P<word>[a-z][a-z_]*(?:/[a-z_+-]+[0-9]*)*\.?)""",
    re.VERBOSE | re.ASCII,
)

_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
MONTH_NUMBERS = {name[:3]: i + 1 for i, name in enumerate(_MONTHS)} | {
    n: i + 1 for i, n in enumerate(_MONTHS)
}
MONTH_NUMBERS["sept"] = 9
_DAYS = frozenset(
    [
        "mon",
        "tue",
        "tues",
        "wed",
        "weds",
        "thu",
        "thur",
        "thurs",
        "fri",
        "sat",
        "sun",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ]
)
# Abbreviations that PostgreSQL knows by default and that are unambiguous, in seconds east.
_ABBREVIATIONS = {
    name: hours * 3600
    for hours, names in (
        (0, "z utc gmt zulu ut wet"),
        (1, "west bst cet met"),
        (2, "cest mest eet"),
        (3, "eest msk"),
        (9, "jst kst"),
        (-4, "edt"),
        (-5, "est cdt"),
        (-6, "cst mdt"),
        (-7, "mst pdt"),
        (-8, "pst akdt"),
        (-9, "akst"),
        (-10, "hst"),
    )
    for name in names.split()
}
# The maximum distance of a time zone from UTC (MAX_TZDISP_HOUR).
_MAX_OFFSET_HOURS = 15

DATE_STYLE_HINT = 'Perhaps you need a different "DateStyle" setting.'


@dataclass(slots=True)
class DateTime:
    """The fields of a text. `special` is epoch, infinity or -infinity; then no other field is set."""

    special: str | None = None
    year: int | None = None  # 0 is 1 BC
    month: int | None = None
    day: int | None = None
    days: int | None = None  # since 1970, once the date is checked
    micros: int | None = None  # since midnight
    offset: int | None = None  # seconds east of UTC
    zone: ZoneInfo | None = None


class _Reader:
    """Fills a DateTime from the tokens of one text."""

    def __init__(self, text: str, type_name: str) -> None:
        self.text = text
        self.type_name = type_name
        self.out = DateTime()
        self.bc = False
        self.half: str | None = None  # am or pm
        self.two_digit_year = False
        self.year_given = False
        self.after_t = False

    def syntax(self) -> InvalidValue:
        return InvalidValue(
            f'invalid input syntax for type {self.type_name}: "{self.text}"', sqlstate="22007"
        )

    def overflow(self, hint: str | None = None) -> InvalidValue:
        return InvalidValue(f'date/time field value out of range: "{self.text}"', hint=hint, sqlstate="22008")

    def read(self) -> DateTime:
        body = self.text.strip(" \t\n\v\f\r").lower()
        if body in ("epoch", "infinity", "-infinity", "+infinity"):
            self.out.special = body.lstrip("+")
            return self.out
        if body in MONTH_NUMBERS or not body or len(body) > 200:
            raise self.syntax()
        at = 0
        while at < len(body):
            match = _TOKEN.match(body, at)
            if match is None or match.end() == at:
                raise self.syntax()
            at = match.end()
            self.token(str(match.lastgroup), match[0])
        self.finish()
        return self.out

    def token(self, kind: str, text: str) -> None:
        if kind == "clock":
            self.clock(text)
        elif kind in ("date", "named"):
            self.date([part for part in re.split(r"[-/.]", text) if part])
        elif kind == "offset":
            self.offset(text)
        elif kind == "julian":
            self.once(self.out.days is None and self.out.month is None)
            self.out.days = int(text[1:]) - 2_440_588
        elif kind == "t":
            self.once((self.has_date() or self.type_name == "time") and self.out.micros is None)
            self.after_t = True
        elif kind == "number":
            self.number(text)
        elif kind == "word":
            self.word(text.rstrip("."))

    def once(self, free: bool) -> None:
        """Set a field, which may be given only once."""
        if not free:
            raise self.syntax()

    def has_date(self) -> bool:
        return self.out.days is not None or (self.out.month is not None and self.out.day is not None)

    def clock(self, text: str) -> None:
        self.once(self.out.micros is None)
        parts = text.split(":")
        if len(parts) == 2 and "." in parts[1]:
            parts = ["0", *parts]  # mm:ss.fff
        seconds = Decimal(parts[2].rstrip(".") or "0") if len(parts) == 3 else Decimal(0)
        self.set_clock(int(parts[0]), int(parts[1]), seconds)

    def set_clock(self, hours: int, minutes: int, seconds: Decimal) -> None:
        micros = int((seconds * MICROS_PER_SECOND).to_integral_value())
        if minutes > 59 or seconds > 60 or hours > 24:
            raise self.overflow()
        total = (hours * 60 + minutes) * 60 * MICROS_PER_SECOND + micros
        if total > MICROS_PER_DAY:
            raise self.overflow()
        self.out.micros = total

    def date(self, parts: list[str]) -> None:
        self.once(not self.has_date() and self.out.month is None and not self.year_given)
        first, second, third = parts
        if len(second) > 2 and second.isdigit():
            raise self.syntax()
        if first.isalpha():
            self.set_date(third, MONTH_NUMBERS.get(first), second)
        elif second.isalpha():
            month = MONTH_NUMBERS.get(second)
            if len(first) >= 3:
                self.set_date(first, month, third)
            else:
                self.set_date(third, month, first)
        elif len(first) >= 3:
            self.set_date(first, int(second), third)
        else:
            self.set_date(third, int(first), second)

    def set_date(self, year: str, month: int | None, day: str) -> None:
        if month is None:
            raise self.syntax()
        self.set_year(year)
        self.out.month = month
        self.out.day = int(day)

    def set_year(self, digits: str) -> None:
        self.once(not self.year_given)
        if len(digits) > 9:
            raise self.overflow()
        self.year_given = True
        self.out.year = int(digits)
        self.two_digit_year = len(digits) <= 2

    def offset(self, text: str) -> None:
        self.once(self.out.micros is not None and self.out.offset is None)
        digits = text[1:]
        if ":" in digits:
            parts = [int(p) for p in digits.split(":")]
        elif len(digits) <= 2:
            parts = [int(digits)]
        elif len(digits) <= 4:
            parts = [int(digits[:-2]), int(digits[-2:])]
        elif len(digits) == 5:
            parts = [int(digits[:3]), int(digits[3:])]
        else:
            parts = [int(digits[:-4]), int(digits[-4:-2]), int(digits[-2:])]
        parts += [0] * (3 - len(parts))
        if len(parts) > 3 or parts[0] > _MAX_OFFSET_HOURS or parts[1] > 59 or parts[2] > 59:
            raise InvalidValue(f'time zone displacement out of range: "{self.text}"', sqlstate="22009")
        seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
        self.out.offset = -seconds if text[0] == "-" else seconds

    def number(self, text: str) -> None:
        whole, _, fraction = text.partition(".")
        if (self.after_t or self.has_date()) and self.out.micros is None and self.year_given:
            if len(whole) == 6:
                seconds = Decimal(f"{whole[4:]}.{fraction or 0}")
                self.set_clock(int(whole[:2]), int(whole[2:4]), seconds)
            elif len(whole) == 4 and not fraction:
                self.set_clock(int(whole[:2]), int(whole[2:]), Decimal(0))
            elif len(whole) == 2 and self.after_t:
                self.set_clock(int(whole), 0, Decimal(0))
            else:
                raise self.syntax()
        elif "." in text:
            raise self.syntax()
        elif len(whole) == 4 and self.type_name == "time" and self.out.micros is None:
            self.set_clock(int(whole[:2]), int(whole[2:]), Decimal(0))
        elif len(whole) == 8 and not self.has_date():
            self.set_date(whole[:4], int(whole[4:6]), whole[6:])
        elif len(whole) == 6 and not self.has_date():
            if self.type_name == "time" and self.out.micros is None:
                self.set_clock(int(whole[:2]), int(whole[2:4]), Decimal(whole[4:]))
            else:
                self.set_date(whole[:2], int(whole[2:4]), whole[4:])
        elif len(whole) >= 3 or self.out.day is not None:
            self.set_year(whole)
        elif self.out.month is None and self.out.day is None:
            # `8 jan 1999` and `1 8 1999` begin like this; the second has the month first.
            self.out.day = int(whole)
        else:
            self.out.day = int(whole)

    def word(self, word: str) -> None:
        if word in MONTH_NUMBERS:
            self.once(self.out.month is None and self.out.days is None)
            self.out.month = MONTH_NUMBERS[word]
        elif word in ("am", "pm"):
            self.once(self.half is None and self.out.micros is not None)
            self.half = word
        elif word in ("bc", "ad"):
            self.bc = word == "bc"
        elif word in _DAYS or word in ("at", "on"):
            return
        elif word in _ABBREVIATIONS:
            self.once(self.out.offset is None)
            self.out.offset = _ABBREVIATIONS[word]
        elif "/" in word:
            self.out.zone = named_zone(word)
        else:
            raise self.syntax()

    def finish(self) -> None:
        out = self.out
        if self.half is not None and out.micros is not None:
            hours, rest = divmod(out.micros, 3600 * MICROS_PER_SECOND)
            if hours > 12:
                raise self.overflow()
            hours = hours % 12 + (12 if self.half == "pm" else 0)
            out.micros = hours * 3600 * MICROS_PER_SECOND + rest
        if out.days is not None:
            return
        if out.month is None and out.day is None and not self.year_given:
            return  # only a time; the caller decides whether that is valid
        if out.year is None or out.month is None or out.day is None:
            raise self.syntax()
        if self.bc:
            if out.year <= 0:
                raise self.overflow()
            out.year = 1 - out.year
        elif self.two_digit_year:
            out.year += 2000 if out.year < 70 else 1900
        elif out.year <= 0:
            raise self.overflow()
        if not 1 <= out.month <= 12 or not 1 <= out.day <= 31:
            raise self.overflow(DATE_STYLE_HINT)
        if out.day > days_in_month(out.year, out.month):
            raise self.overflow()
        out.days = days_from_civil(out.year, out.month, out.day)


def read_datetime(text: str, type_name: str) -> DateTime:
    """The fields of `text`; `type_name` is for the error."""
    return _Reader(text, type_name).read()


def named_zone(name: str) -> ZoneInfo:
    """A zone by its IANA name, in any case; 22023 if it does not exist."""
    spelt = "/".join("_".join(w.capitalize() for w in part.split("_")) for part in name.split("/"))
    for candidate in (name, spelt, name.upper()):
        try:
            return ZoneInfo(candidate)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    raise InvalidValue(f'time zone "{name}" not recognized', sqlstate="22023")


def zone_offset(zone: ZoneInfo, local_micros: int) -> int:
    """Seconds east of UTC at a local time. In a gap, the offset before it is used, and in a repeated hour the
    later one, as in PostgreSQL. Years outside 1 to 9999 use the offset of the nearest year."""
    low, high = -62_135_596_800, 253_402_214_400
    seconds = min(max(local_micros // MICROS_PER_SECOND, low), high)
    local = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    first, second = (local.replace(tzinfo=zone, fold=f).utcoffset() for f in (0, 1))
    if first is None or second is None:
        return 0
    # In a repeated hour, fold 0 has the greater offset; in a gap, fold 0 has the smaller one, that before it.
    return int(min(first, second).total_seconds())
