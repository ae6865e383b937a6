"""Clocks after 2037, where Arrow's own table of zones ends: each zone goes on by its last rule."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from tidemill.types.model import TIMESTAMPTZ
from tidemill.types.wire import encode_text


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Australia/Sydney", "America/Sao_Paulo", "Asia/Kolkata"]
)
def test_like_zoneinfo(zone: str) -> None:
    rng = random.Random(zone)
    start = datetime(1990, 1, 1, tzinfo=UTC)
    instants = [start + timedelta(seconds=rng.randrange(300 * 366 * 86_400)) for _ in range(500)]
    texts = encode_text(pa.array(instants, pa.timestamp("us", "UTC")), TIMESTAMPTZ, timezone=zone)
    wanted: list[bytes] = []
    for instant in instants:
        local = instant.astimezone(ZoneInfo(zone))
        hours, minutes = local.strftime("%z")[:3], local.strftime("%z")[3:]
        offset = hours if minutes == "00" else f"{hours}:{minutes}"
        wanted.append(f"{local:%Y-%m-%d %H:%M:%S}{offset}".encode())
    assert texts.to_pylist() == wanted
