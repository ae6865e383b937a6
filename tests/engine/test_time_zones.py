"""SET timezone: what PostgreSQL takes a text for, or an error; never another zone."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tidemill.engine.session.variables import Variables
from tidemill.errors import TidemillError

SUMMER = datetime(2024, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "hours"),
    [
        # A number is east of Greenwich.
        *(("5", 5), ("+5", 5), ("-3", -3), ("13", 13), ("0", 0), ("14", 14), ("5.0", 5)),
        # POSIX counts to the west.
        *(("UTC+3", -3), ("GMT-05:00", 5), ("+05:00", -5), ("-05:00", 5), ("<+05>-05", 5), ("EST5", -5)),
        *(("Etc/GMT+3", -3), ("europe/berlin", 2), ("EST5EDT", -4), ("PST8PDT", -7), ("utc", 0)),
    ],
)
def test_what_is_meant(written: str, hours: int) -> None:
    variables = Variables({})
    variables.set("timezone", written)
    offset = SUMMER.astimezone(ZoneInfo(variables.get("timezone"))).utcoffset()
    assert offset is not None and offset.total_seconds() == hours * 3600


@pytest.mark.parametrize(
    "written",
    # Half hours have no zone of their own; the rest is nothing to PostgreSQL either.
    [
        "5.5",
        "+05:30",
        "UTC-05:30",
        "24",
        "-13",
        "nope",
        "",
        "posix/UTC",
        "+",
        "5:3",
        "UTC+",
        "../UTC",
        "1000",
    ],
)
def test_what_is_refused(written: str) -> None:
    with pytest.raises(TidemillError) as caught:
        Variables({}).set("timezone", written)
    assert caught.value.sqlstate == "22023"
