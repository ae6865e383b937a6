"""The verdict of a unit: how far the history is complete, from everything that its tasks found.

A pure function. It is called on the driver between the two halves of a large unit, and in the one task of a
small unit. It is `cdcv2.tally` with a unit in place of a message: the order of arrival within a unit has no
meaning.
"""

from __future__ import annotations

from tidemill.cdcv2.digest import signed
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.problems import Contradiction, InvalidMessage
from tidemill.cdcv2.stalls import Stall
from tidemill.cdcv2.tally import Tally
from tidemill.cdcv2.times import Time, least, shown
from tidemill.errors import LimitExceeded, TidemillError
from tidemill.ingest.recovery.values import FoundUpdates, Place, Recover, Settled, Tallied
from tidemill.sources.contract import StreamSpec

# Updates that wait in one relation's stash. Each takes about a hundred bytes in the shard and in the state on
# the workers' disks: about ten gigabytes, half of the limit of states.
MAX_STASHED = 100_000_000
# Errors of one unit that the relation shows. One is enough to stop its readers.
MAX_ERRORS = 100
# The number of partitions that are named, if updates came from many.
MAX_NAMED = 3

# Texts that clients match.
ENVELOPE_ERROR = "Envelope error: Materialize: "
DECODE_ERROR = "Decode error: "


def opened(tallied: Tallied, stream: StreamSpec) -> Tally:
    """The stored tally, opened."""
    contents = tallied.contents
    tally = Tally(None, content=lambda time: signed(contents.get(time, 0)))
    if tallied.known is not None:
        tally.load(tallied.known)
    else:
        tally.agree((least(stream.kind),), "the definition")
    return tally


def settle(recover: Recover, found: FoundUpdates, max_stashed: int = MAX_STASHED) -> Settled:
    """The verdict of a unit. Raises LimitExceeded."""
    stream = recover.stream
    # Set before the tally needs any of them.
    contents = dict(recover.tallied.contents)
    tally = opened(Tallied(recover.tallied.known, contents), stream)
    before = tally.reported
    stashed = {time for time, have, _, _ in tally.unreported() if have}
    for time, kind, first, second in sorted(found.wrong, key=_text):
        tally.poison(time, kind, first, second)
    _observe(tally, found, contents, stream)
    errors: list[str] = []
    for place, said in sorted(found.stated, key=_place):
        if isinstance(said, Progress):
            try:
                tally.declare(said, stream.place(*place))
            except InvalidMessage as e:
                errors.append(decode_error(e))
        else:
            errors.append(said)
    passed = tally.advance()
    # Statements whose times were all reported before have no effect.
    errors += [_contradiction(c) for c in tally.take_found() if c.time is not None]
    tally.check_limits()
    left = {time: have for time, have, _, _ in tally.unreported()}
    if sum(left.values()) > max_stashed:
        raise LimitExceeded(
            f"more than {max_stashed} stashed updates",
            detail=f"The stream is complete up to {shown(tally.reported)}. {told(tally.stalls())}".rstrip(),
            hint="Find out why the earlier times do not complete: tidemill cdcv2 inspect draws the stream.",
        )
    return Settled(
        Tallied(tally.dump(), {time: sum_ for time, sum_ in contents.items() if time in left}),
        before,
        tally.reported,
        any(time in stashed for time in passed),
        tuple(errors[:MAX_ERRORS]),
    )


def _observe(tally: Tally, found: FoundUpdates, contents: dict[Time, int], stream: StreamSpec) -> None:
    times = list(found.counts)
    wanted = [t for t, keep in zip(times, tally.news(times), strict=True) if keep]
    for time in wanted:
        contents[time] = contents.get(time, 0) + found.contents.get(time, 0)
    if wanted:
        tally.observe([(t, found.counts[t]) for t in wanted], _spans(found, stream))


def _spans(found: FoundUpdates, stream: StreamSpec) -> str:
    """The positions that the unit's updates came from."""
    told_ = [f"{stream.place(p, first)} to {last}" for p, (first, last) in sorted(found.spans.items())]
    more = f" and {len(told_) - MAX_NAMED} more" if len(told_) > MAX_NAMED else ""
    return "; ".join(told_[:MAX_NAMED]) + more or "several messages"


def decode_error(error: TidemillError) -> str:
    """A record that cannot be read, as the relation's error: the reason, and on a separate line the
    position."""
    return f"{DECODE_ERROR}{error.primary}\n{error.detail or ''}".rstrip()


def _contradiction(found: Contradiction) -> str:
    return f"{ENVELOPE_ERROR}{found.primary}\n{found.detail}"


def told(stalls: list[Stall]) -> str:
    return " ".join(f"{stall.describe()}." for stall in stalls)


def _place(item: tuple[Place, object]) -> Place:
    return item[0]


def _text(item: tuple[Time, str, str, str | None]) -> str:
    return str(item)
