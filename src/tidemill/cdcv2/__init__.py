"""CDCv2: changes written down and read back exactly, whatever the transport repeats, reorders or re-cuts.

Two statements, both true for ever once made: updates (at `time` the number of copies of `data` changes by
`diff`) and progress (how many updates there are at each time of an interval). Called by anyone with
messages in hand: it needs neither the server nor Spark. Promises: each update once, as early as it can be
known, and never a wrong one.
"""

from tidemill.cdcv2.column_recovery import ColumnRecovery, ColumnRelease, recover_columns
from tidemill.cdcv2.columns import UpdateColumns
from tidemill.cdcv2.messages import Message, Progress, Update, Updates
from tidemill.cdcv2.problems import Contradiction, InvalidMessage, Stalled
from tidemill.cdcv2.recovery import Recovery, Release, recover
from tidemill.cdcv2.stalls import Stall, Waits

__all__ = [
    "ColumnRecovery",
    "ColumnRelease",
    "Contradiction",
    "InvalidMessage",
    "Message",
    "Progress",
    "Recovery",
    "Release",
    "Stall",
    "Stalled",
    "Update",
    "UpdateColumns",
    "Updates",
    "Waits",
    "recover",
    "recover_columns",
]
