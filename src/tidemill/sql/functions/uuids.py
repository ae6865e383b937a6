"""UUIDs: random and time-based generation, and extraction of their parts."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sql.functions.rowwise import by_row
from tidemill.sql.functions.signature import function, not_yet
from tidemill.sql.functions.tree import Tree, call, string
from tidemill.types.model import INT2, TIMESTAMPTZ, UUID

# 15 October 1582, where the clock of the first versions starts, in microseconds before 1970.
_GREGORIAN = 12_219_292_800_000_000


def _random(_args: Sequence[Tree]) -> Tree:
    return call("unhex", call("replace", call("uuid"), string("-")))


def _version(value: bytes) -> int | None:
    """None for variants other than RFC 9562's."""
    return value[6] >> 4 if value[8] & 0xC0 == 0x80 else None


def _timestamp(value: bytes) -> int | None:
    version = _version(value)
    if version == 1:
        high = int.from_bytes(value[6:8]) & 0x0FFF
        ticks = high << 48 | int.from_bytes(value[4:6]) << 32 | int.from_bytes(value[:4])
        return ticks // 10 - _GREGORIAN
    return int.from_bytes(value[:6]) * 1000 if version == 7 else None


def _install() -> None:
    for name in ("gen_random_uuid", "uuidv4"):
        function(name, (), UUID, _random, volatile=True)
    by_row("uuid_extract_version", (UUID,), INT2, _version)
    by_row("uuid_extract_timestamp", (UUID,), TIMESTAMPTZ, _timestamp)
    not_yet("uuidv7")


_install()
