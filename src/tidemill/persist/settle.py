"""Settled append: an append whose outcome is certain, done or not done.

Used by commit points (`txns`, the catalog), which may neither repeat blindly nor continue while the outcome
of an append is unknown. Appending the same part again settles the outcome, because an entry that names a part
can appear in the log only once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tidemill import failpoints
from tidemill.errors import TidemillError
from tidemill.persist.outcome import CommitFailed, CommitUnknown, Fenced, UpperMismatch
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.types.model import RelationDesc

log = logging.getLogger(__name__)

# Callers get an unknown outcome after this long; the shard itself has retried for three seconds before.
REPORT_UNKNOWN_SECONDS = 5.0
RETRY_SECONDS = 0.5


def append_settled(
    shard: Shard,
    part: Part,
    lower: int,
    upper: int,
    *,
    after_put: str,
    on_unknown: Callable[[CommitUnknown], None] | None = None,
) -> None:
    """Append the part; returns when it is durable, raises (UpperMismatch, Fenced, CommitFailed) when surely
    nothing happened, however long it takes to know. `on_unknown` is called once when that is long.
    `after_put` is the failpoint behind the commit."""
    try:
        shard.compare_and_append([part], lower, upper)
        failpoints.hit(after_put)
    except (CommitUnknown, OSError, failpoints.FailpointError) as cause:
        log.error("the outcome of a commit to shard %s is unknown, waiting for it: %s", shard.id, cause)
        _resolve(shard, part, lower, upper, on_unknown, cause)


def evolve_settled(
    shard: Shard, desc: RelationDesc, parts: Sequence[Part], upper: int, *, after_put: str
) -> None:
    """`Shard.evolve` with a certain outcome: returns when the columns and the parts are committed, raises
    when surely nothing happened."""
    while True:
        try:
            shard.evolve(desc, parts, upper)
            failpoints.hit(after_put)
            return
        except (CommitUnknown, OSError, failpoints.FailpointError) as e:
            # Doing it again settles it: nothing is written when the columns turn out to be there.
            log.error("the outcome of a change of shard %s is unknown, waiting for it: %s", shard.id, e)
        time.sleep(RETRY_SECONDS)


def _resolve(
    shard: Shard,
    part: Part,
    lower: int,
    upper: int,
    on_unknown: Callable[[CommitUnknown], None] | None,
    cause: Exception,
) -> None:
    began = time.monotonic()
    while True:
        try:
            shard.refresh()
            if ever_had(shard, part):
                return
            shard.compare_and_append([part], lower, upper)
            return
        except (UpperMismatch, Fenced) as e:
            # The shard was read again after the refusal: our entry is in the log, or never will be.
            if ever_had(shard, part):
                return
            if isinstance(e, Fenced):
                raise
            raise CommitFailed("could not commit", detail="Another writer came first.") from cause
        except (TidemillError, OSError) as e:
            log.warning("still unknown: %s", e)
        if on_unknown is not None and time.monotonic() - began > REPORT_UNKNOWN_SECONDS:
            on_unknown(
                CommitUnknown(
                    "the transaction may or may not have been committed",
                    detail="The store did not answer.",
                    hint="Check whether its effects are there before trying again.",
                )
            )
            on_unknown = None
        time.sleep(RETRY_SECONDS)


def ever_had(shard: Shard, part: Part) -> bool:
    """Whether an entry of the log has named the part; it may have been compacted away since."""
    with shard.changed:
        return part.path in shard.state.parts or part.path in shard.state.removed


def upper_of(shard: Shard) -> int:
    """The upper of a shard that is never closed."""
    upper = shard.upper
    if upper is None:
        raise CommitFailed(f"shard {shard.id} is closed, nothing more can be written to it")
    return upper
