"""Proleptic Gregorian calendar and the bounds of PostgreSQL's date types, for single values.

Dates are days and timestamps microseconds since 1970 (the storage form). PostgreSQL's infinities are the ends
of the storage integers, so they compare correctly in every engine that reads the column.
"""

from __future__ import annotations

MICROS_PER_DAY = 86_400_000_000
MICROS_PER_SECOND = 1_000_000

DATE_INFINITY = 2**31 - 1
DATE_MINUS_INFINITY = -(2**31)
TIMESTAMP_INFINITY = 2**63 - 1
TIMESTAMP_MINUS_INFINITY = -(2**63)

# The epoch of PostgreSQL's wire format is 2000-01-01.
POSTGRES_EPOCH_DAYS = 10_957
POSTGRES_EPOCH_MICROS = POSTGRES_EPOCH_DAYS * MICROS_PER_DAY

# 24 November 4714 BC, the start of PostgreSQL's (Julian) day count; dates end with the year 5874897.
FIRST_DAY = -2_440_588
LAST_DAY = 2_145_042_905
FIRST_TIMESTAMP = FIRST_DAY * MICROS_PER_DAY
# PostgreSQL's limit is 294276. Microseconds since 1970 in 64 bits end earlier.
LAST_TIMESTAMP = TIMESTAMP_INFINITY - 1


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01; year 0 is 1 BC."""
    year -= month <= 2
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day."""
    days += 719_468
    era = days // 146_097
    day_of_era = days - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31
