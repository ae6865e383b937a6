"""CDCv2: writes and recovers a history exactly, even if messages are repeated, reordered or re-batched.

There are two statements, and neither ever becomes false: updates (at `time` the number of copies of `data`
changes by `diff`), and progress (the number of updates at each time of an interval). Usable by any program
with messages: it needs neither the server nor Spark. Promises: each update once, as early as it can be known,
and never a wrong one.
"""

from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.column_recovery import ColumnRecovery, ColumnRelease, column_hash, recover_columns
from tidemill.cdcv2.columns import UpdateColumns, coalesced
from tidemill.cdcv2.digest import content_of, python_hash, sealed
from tidemill.cdcv2.json import JsonCodec
from tidemill.cdcv2.messages import Message, Progress, Update, Updates
from tidemill.cdcv2.problems import Contradiction, InvalidMessage, ResumeMismatch, SpillFailed, Stalled
from tidemill.cdcv2.recovery import Recovery, Release, recover
from tidemill.cdcv2.stalls import Stall, Waits
from tidemill.cdcv2.writer import Writer, consolidate, resume_from

__all__ = [
    "AvroCodec",
    "ColumnRecovery",
    "ColumnRelease",
    "Contradiction",
    "InvalidMessage",
    "JsonCodec",
    "Message",
    "Progress",
    "Recovery",
    "Release",
    "ResumeMismatch",
    "SpillFailed",
    "Stall",
    "Stalled",
    "Update",
    "UpdateColumns",
    "Updates",
    "Waits",
    "Writer",
    "coalesced",
    "column_hash",
    "consolidate",
    "content_of",
    "python_hash",
    "recover",
    "recover_columns",
    "resume_from",
    "sealed",
]
