"""Rows of the txns shard: one per committed part not yet known to be in its data shard, one mark per shard.

A row (shard, part) with diff +1 at T states that the part belongs to the transactions at T. It is retracted
at a later time, when the log of the data shard names the part, or the shard was dropped. A recovery applies
the rows that remain at the latest time. A mark (`marks`) uses the same columns; its text distinguishes it
from a part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Protocol, cast

import pyarrow as pa

from tidemill.errors import DataCorrupted
from tidemill.persist.part import Part
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import TEXT, Column, RelationDesc

TXNS_SHARD = "txns"
TXNS_DESC = RelationDesc((Column("shard", TEXT, nullable=False), Column("part", TEXT, nullable=False)))

_FIELDS = tuple(field.name for field in fields(Part))
_MARK = '{"reached":'


class Row(Protocol):
    """Contents of a row."""

    @property
    def shard_id(self) -> str: ...

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Unapplied:
    """A part of the transactions at `time`, for one shard. Every update in it is at `time`."""

    shard_id: str
    part: Part
    # The text of the part in its row. A row is retracted by value, and an earlier version of Tidemill may
    # have written the text differently.
    text: str

    @staticmethod
    def of(shard_id: str, part: Part) -> Unapplied:
        """For a part that was just written."""
        return Unapplied(shard_id, part, _encode(part))

    @property
    def time(self) -> int:
        return self.part.max_time


@dataclass(frozen=True, slots=True)
class TxnMark:
    """The shard's log had reached `version`."""

    shard_id: str
    version: int
    text: str

    @staticmethod
    def of(shard_id: str, version: int) -> TxnMark:
        return TxnMark(shard_id, version, f"{_MARK}{version}}}")


def rows(added: Iterable[Row], retracted: Iterable[Row], time: int) -> pa.Table:
    """The updates of one txns entry."""
    both = [(r, 1) for r in added] + [(r, -1) for r in retracted]
    return pa.table(
        {
            "shard": pa.array([r.shard_id for r, _ in both], pa.string()),
            "part": pa.array([r.text for r, _ in both], pa.string()),
            TIME_COLUMN: pa.array([time] * len(both), pa.int64()),
            DIFF_COLUMN: pa.array([d for _, d in both], pa.int64()),
        }
    )


def unapplied(snapshot: pa.Table) -> list[Unapplied]:
    """The remaining work in a snapshot of the txns shard, in time order."""
    found = [Unapplied(s, _decode(text), text) for s, text in _once(snapshot) if not text.startswith(_MARK)]
    found.sort(key=lambda u: u.time)
    return found


def marks(snapshot: pa.Table) -> dict[str, TxnMark]:
    """The marks in a snapshot of the txns shard, by shard."""
    found: dict[str, TxnMark] = {}
    for shard_id, text in _once(snapshot):
        if not text.startswith(_MARK):
            continue
        number = text.removeprefix(_MARK).removesuffix("}").strip()
        if not number.isdigit() or shard_id in found:
            raise DataCorrupted("a mark of the txns shard cannot be read", detail=f"{shard_id}: {text[:200]}")
        found[shard_id] = TxnMark(shard_id, int(number), text)
    return found


def _once(snapshot: pa.Table) -> list[tuple[str, str]]:
    shards, texts, diffs = (snapshot.column(n).to_pylist() for n in ("shard", "part", DIFF_COLUMN))
    for shard_id, text, diff in zip(shards, texts, diffs, strict=True):
        if diff != 1:
            raise DataCorrupted(
                "the txns shard has a row other than once",
                detail=f"{text[:200]} of shard {shard_id}: {diff} times.",
            )
    return list(zip(shards, texts, strict=True))


def _encode(part: Part) -> str:
    return json.dumps({name: getattr(part, name) for name in _FIELDS}, separators=(",", ":"))


def _decode(text: str) -> Part:
    try:
        part = Part(**cast("dict[str, Any]", json.loads(text)))
    except (ValueError, TypeError) as e:
        raise DataCorrupted("a row of the txns shard cannot be read", detail=f"{text[:200]}: {e}") from e
    if part.min_time != part.max_time:
        raise DataCorrupted("a part in the txns shard has more than one time", detail=text[:200])
    return part
