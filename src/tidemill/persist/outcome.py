"""Outcomes of a commit: four cases, as distinct types.

- Done: the call returns.
- Lost the race: `LostRace` (`UpperMismatch`, `Fenced`, ...). Another writer committed first; nothing of ours
  is or becomes visible.
- Failed: `CommitFailed`. Nothing happened; the same call may succeed later.
- Unknown: `CommitUnknown`. The commit may have happened, and all attempts to find out failed. The caller
  checks the upper of the shard once the store answers again (`Shard.refresh`), and never repeats blindly.
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.time.shown import show_time


def show_upper(upper: int | None) -> str:
    """An upper in a message; None is the empty frontier."""
    return "closed" if upper is None else show_time(upper)


class LostRace(TidemillError):
    """Another commit came first and invalidated ours. Determinate: nothing of ours is visible."""

    sqlstate = "40001"
    transient = True


class UpperMismatch(LostRace):
    """The shard's upper is not the lower that was given."""

    def __init__(self, shard_id: str, expected: int | None, actual: int | None) -> None:
        super().__init__(
            f"the upper of shard {shard_id} is not {show_upper(expected)}",
            detail=f"The shard's upper is {show_upper(actual)}.",
            hint="Another writer appended first: read the upper again and go on from there.",
        )
        self.shard_id = shard_id
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[type[UpperMismatch], tuple[str, int | None, int | None]]:
        return (UpperMismatch, (self.shard_id, self.expected, self.actual))


class Fenced(LostRace):
    """The shard belongs to a later epoch: another server has taken over. Permanent for this handle."""

    sqlstate = "57P01"
    transient = False

    def __init__(self, shard_id: str, ours: int, current: int) -> None:
        super().__init__(
            f"shard {shard_id} was taken over by another server",
            detail=f"Our epoch is {ours}, the shard's is {current}.",
            hint="This server must stop; start it again to take the data directory back.",
        )
        self.shard_id = shard_id
        self.ours = ours
        self.current = current

    def __reduce__(self) -> tuple[type[Fenced], tuple[str, int, int]]:
        return (Fenced, (self.shard_id, self.ours, self.current))


class InputsReplaced(LostRace):
    """A compaction's inputs are no longer live: another compaction replaced them first."""


class CommitFailed(TidemillError):
    """Nothing happened; the cause states why. The shard remains usable."""

    sqlstate = "58030"
    transient = True

    @classmethod
    def because(cls, shard_id: str, cause: TidemillError) -> CommitFailed:
        """With the cause's own detail, hint and SQLSTATE (53100 for a full disk)."""
        return cls(
            f"could not write to shard {shard_id}",
            detail=": ".join(filter(None, (cause.primary, cause.detail))),
            hint=cause.hint,
            sqlstate=cause.sqlstate,
        )


class CommitUnknown(TidemillError):
    """The commit may have happened: the store did not answer, not even when checked again."""

    sqlstate = "08007"
    transient = True
