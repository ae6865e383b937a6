"""Errors of a replication slot and of the server behind it: what is wrong, and what to do.

Raised by `replication`, `receiver`, `exporter` and `source`. Errors of one table are rows of it
(`row_changes`, `table_watch`).
"""

from __future__ import annotations

from tidemill.sources.contract import UpstreamError, UpstreamLost
from tidemill.sources.postgres.lsn import lsn_text

_AGAIN = "Drop the source and create it again to read the tables as they are now."


class SlotActive(UpstreamError):
    """Another process reads from the slot; maybe our own connection, whose end the server has not noticed."""

    sqlstate = "55006"
    transient = True


class SlotLost(UpstreamLost):
    """The slot is gone, or no longer has what is needed."""

    sqlstate = "55000"


class NotPublished(UpstreamError):
    sqlstate = "42704"


class StreamEnded(UpstreamError):
    """The connection ended."""

    sqlstate = "08006"
    transient = True


def silent() -> StreamEnded:
    return StreamEnded(
        "PostgreSQL does not answer",
        detail="The connection is there, but nothing comes.",
        hint="It is opened again, and continues where it was.",
    )


class NotYet(UpstreamError):
    """Something upstream takes its time; nothing is wrong."""

    sqlstate = "57P03"
    transient = True


def slot_active(slot: str, pid: object) -> SlotActive:
    return SlotActive(
        f'replication slot "{slot}" is in use',
        detail=f"The process {pid} of the server reads from it.",
        hint="It is free within wal_sender_timeout if that was this source; else end the other reader.",
    )


def slot_missing(slot: str) -> SlotLost:
    return SlotLost(
        f'replication slot "{slot}" does not exist any more',
        detail="It was dropped upstream. Changes since then are lost.",
        hint=_AGAIN,
    )


def slot_stays(slot: str, why: UpstreamError) -> UpstreamError:
    return UpstreamError(
        f'replication slot "{slot}" could not be dropped',
        detail=f"{why.primary}: {why.detail or 'no detail'} The slot keeps write-ahead log at the server.",
        hint=f"This is tried again, also after a restart. Or run at the server: SELECT "
        f"pg_drop_replication_slot('{slot}');",
        sqlstate=why.sqlstate,
    )


def slot_invalidated(slot: str, reason: str | None) -> SlotLost:
    """`reason` as in pg_replication_slots.invalidation_reason."""
    if reason in (None, "wal_removed"):
        detail = "The server has removed write-ahead log that the slot needs (max_slot_wal_keep_size)."
        hint = f"{_AGAIN} Raise max_slot_wal_keep_size if the source may be away for long."
    elif reason == "idle_timeout":
        detail = "It was not read for longer than idle_replication_slot_timeout."
        hint = f"{_AGAIN} Raise idle_replication_slot_timeout if the source may be away for long."
    else:
        detail = f"The server gives the reason {reason}."
        hint = _AGAIN
    return SlotLost(f'replication slot "{slot}" has lost changes', detail=detail, hint=hint)


def slot_moved(slot: str, confirmed: int, needed: int) -> SlotLost:
    return SlotLost(
        f'replication slot "{slot}" was moved by another reader',
        detail=f"It is confirmed up to {lsn_text(confirmed)}; Tidemill has read up to {lsn_text(needed)}.",
        hint=f"{_AGAIN} Only Tidemill may use its replication slot.",
    )


def other_system(expected: str, found: str) -> UpstreamLost:
    return UpstreamLost(
        "another PostgreSQL server answers than the one that was read",
        detail=f"Its system identifier was {expected}; now it is {found}.",
        hint="Let the connection lead to the former server, or drop the source and create it again.",
    )


def other_timeline(expected: int, found: int) -> UpstreamLost:
    return UpstreamLost(
        "the PostgreSQL server has begun another timeline",
        detail=f"It was on timeline {expected}; now it is on timeline {found}. A standby was promoted, or a "
        "backup restored: what was read may not have happened there.",
        hint=_AGAIN,
    )


def went_back(position: int, read: int) -> UpstreamLost:
    return UpstreamLost(
        "the PostgreSQL server's log went back",
        detail=f"It ends at {lsn_text(position)}; Tidemill has read up to {lsn_text(read)}. A backup was "
        "restored, or a crash lost commits (fsync or synchronous_commit is off).",
        hint=_AGAIN,
    )


def wal_level(found: str) -> UpstreamError:
    return UpstreamError(
        f"the PostgreSQL server has wal_level {found}",
        detail="Logical replication needs wal_level logical.",
        hint="Run ALTER SYSTEM SET wal_level = logical on the server and restart it.",
        sqlstate="55000",
    )


def no_publication(publication: str) -> NotPublished:
    return NotPublished(
        f'publication "{publication}" does not exist upstream',
        detail="It was dropped, renamed, or is in another database. What changes meanwhile is not in the "
        "stream, so the tables are errors even if it is created again.",
        hint="Drop the source and create it again with another publication.",
    )


def of_start(error: UpstreamError, slot: str, publication: str) -> UpstreamError:
    """A refused START_REPLICATION, or an error in the stream, with what can be done about it."""
    if type(error) is not UpstreamError:
        # It is not as the server says it, but ours.
        return error
    text = f"{error.detail or ''}"
    if error.sqlstate == "55006":
        return SlotActive(
            f'replication slot "{slot}" is in use',
            detail=text,
            hint="It is free within wal_sender_timeout if that was this source; else end the other reader.",
        )
    if error.sqlstate == "42704":
        return no_publication(publication) if "publication" in text else slot_missing(slot)
    if error.sqlstate == "55000" and "wal_level" not in text:
        reason = "wal_removed" if "maximum reserved size" in text or "removed" in text else None
        return slot_invalidated(slot, reason)
    return error
