"""The receiver: reads the shards of a stream into the spool, ahead of the bindings.

Created by `source` in the server. Kinesis does not say where a shard ends; only its records have numbers. So
the position of the upstream is what was received. A shard is read by one request at a time, by a few threads
for all of them, no faster than the service allows. The children of a shard are read when it was read to its
end.

Records must not be lost between two reads. Behind a restart, an expired iterator or a long silence, reading
begins again with the last record that was received, which must be there. If it has expired, nothing else can
have: everything that arrived before `read_until` was received, and that must be within the retention period.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tidemill.sources.contract import UpstreamError
from tidemill.sources.kinesis.answers import MAX_RECORDS, SEQUENCE, Answer, last_sequence, parse
from tidemill.sources.kinesis.client import KinesisClient
from tidemill.sources.kinesis.failures import Expired, NoStream, Throttled, retention_passed
from tidemill.sources.kinesis.places import Place
from tidemill.sources.kinesis.reader import Start, iterator_at
from tidemill.sources.kinesis.shards import ShardInfo, is_behind, retention_ms
from tidemill.sources.kinesis.spool import Spool

log = logging.getLogger(__name__)

# Requests at one time.
READERS = 8
# Between two reads of a shard: there are five per second, for all of its readers. At the end of a shard it is
# asked less often.
PAUSE_SECONDS, END_SECONDS = 0.21, 0.5
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.25, 5.0
# A refusal for too many reads is told when it has lasted so long.
REFUSED_SECONDS = 10.0
# The least retention period there is: what is younger needs no request for the real one.
LEAST_RETENTION_MS = 24 * 3_600_000
# How often the threads look for work when nothing wakes them.
LOOK_SECONDS = 0.05
CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class ShardState:
    """`place` is how far it was received. `read_until`: what arrived before (milliseconds since 1970) was
    received; None while that is not known."""

    info: ShardInfo
    place: Place
    read_until: int | None
    drained: bool = False
    # It was at its end once.
    caught_up: bool = False
    behind_ms: int = 0
    iterator: str | None = None
    # The iterator begins with the last received record.
    overlaps: bool = False
    # The iterator was made again because too much time had passed.
    made_again: bool = False
    due: float = 0.0
    busy: bool = False
    retry: float = FIRST_RETRY_SECONDS
    error: UpstreamError | None = None
    refused_since: float | None = None


class Receiver:
    """The public methods may be called by any thread."""

    def __init__(self, client: KinesisClient, stream: str, start: Start, spool: Spool) -> None:
        self._client = client
        self._stream = stream
        self._start = start
        self._spool = spool
        self._shards: dict[str, ShardState] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._pool = ThreadPoolExecutor(READERS, "kinesis-reader")
        self._thread = threading.Thread(target=self._run, name="kinesis-receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(self, info: ShardInfo, place: Place, read_until: int | None) -> None:
        """A shard that was found. Its parents must be added before it, as far as they are there."""
        with self._changed:
            if info.id not in self._shards:
                self._shards[info.id] = ShardState(info, place, read_until)
                self._changed.notify_all()

    def forget(self, shard: str) -> None:
        """The upstream has removed a shard that was read to its end."""
        with self._changed:
            self._shards.pop(shard, None)

    def shards(self) -> dict[str, ShardState]:
        with self._changed:
            return dict(self._shards)

    def places(self) -> dict[str, Place]:
        """How far every shard was received."""
        with self._changed:
            return {name: shard.place for name, shard in self._shards.items()}

    def wait_caught_up(self, seconds: float) -> bool:
        """Whether each shard was at its end once, within so much time. Raises UpstreamError."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                self._raise()
                if all(shard.caught_up for shard in self._shards.values()):
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping or self._spool.full:
                    return False
                self._changed.wait(left)

    def check(self) -> None:
        """Raises UpstreamError while a shard cannot be read."""
        with self._changed:
            self._raise()

    def refused(self) -> str | None:
        """The shard whose reads are refused as too many, for a while already."""
        moment = time.monotonic()
        with self._changed:
            return next(
                (
                    name
                    for name, shard in self._shards.items()
                    if shard.refused_since is not None and moment - shard.refused_since > REFUSED_SECONDS
                ),
                None,
            )

    def _raise(self) -> None:
        for shard in self._shards.values():
            if shard.error is not None:
                raise shard.error

    # -- the threads

    def _run(self) -> None:
        with self._changed:
            while not self._stopping:
                moment = time.monotonic()
                for shard in list(self._shards.values()):
                    if self._is_due(shard, moment):
                        shard.busy = True
                        try:
                            self._pool.submit(self._read, shard)
                        except RuntimeError:
                            # The interpreter ends.
                            return
                self._changed.wait(LOOK_SECONDS)

    def _is_due(self, shard: ShardState, moment: float) -> bool:
        if shard.busy or shard.drained or shard.due > moment or self._spool.full:
            return False
        parents = [self._shards[parent] for parent in shard.info.parents if parent in self._shards]
        if not all(parent.drained for parent in parents):
            return False
        if parents and shard.place.count == 0:
            # What came before belongs to the parents.
            known = [parent.read_until for parent in parents if parent.read_until is not None]
            if len(known) == len(parents):
                shard.read_until = max(shard.read_until or 0, min(known))
        return True

    def _read(self, shard: ShardState) -> None:
        pause, error = PAUSE_SECONDS, None
        refused = False
        try:
            began = _now()
            answer = self._ask(shard)
            self._check_retention(shard)
            self._receive(shard, answer, began)
            if answer.records.num_rows < MAX_RECORDS and not answer.behind_ms:
                pause = END_SECONDS
        except Throttled:
            refused = True
        except Expired:
            shard.iterator = None
            refused = True
        except UpstreamError as e:
            shard.iterator, error = None, e
        except OSError as e:
            error = UpstreamError(
                "records received from Kinesis cannot be stored",
                detail=f"{e.strerror or e}: {self._spool.folder}.",
                hint="Make room on the disk of temporary files (TMPDIR).",
                sqlstate="53100",
            )
            shard.iterator = None
        except Exception as e:
            log.exception("reading shard %s failed for an unforeseen reason", shard.info.id)
            shard.iterator, error = None, UpstreamError(f"{type(e).__name__}: {e}")
        with self._changed:
            if error is not None or refused:
                pause = shard.retry
                shard.retry = min(2 * shard.retry, LAST_RETRY_SECONDS)
            else:
                shard.retry = FIRST_RETRY_SECONDS
            if not refused:
                shard.error, shard.refused_since = error, None
            elif shard.refused_since is None:
                shard.refused_since = time.monotonic()
            shard.due = time.monotonic() + pause
            shard.busy = False
            self._changed.notify_all()

    def _ask(self, shard: ShardState) -> Answer:
        if shard.iterator is None:
            self._position(shard)
        request = {"ShardIterator": shard.iterator, "Limit": MAX_RECORDS}
        try:
            return parse(self._client.raw("GetRecords", self._stream, request))
        except NoStream as e:
            # The source finds out whether the stream is gone.
            raise _refused(e) from e

    def _position(self, shard: ShardState) -> None:
        number = shard.place.after
        shard.overlaps = number is not None
        of = self._client, self._stream, shard.info.id, self._start
        try:
            shard.iterator = iterator_at(*of, number, "AT_SEQUENCE_NUMBER")
        except (NoStream, Expired):
            if number is None:
                raise
            # It has expired.
            shard.overlaps = False
            self._prove(shard, "It is refused as a place to begin at.")
            shard.iterator = iterator_at(self._client, self._stream, shard.info.id, Start(), None, "")

    def _receive(self, shard: ShardState, answer: Answer, began: int) -> None:
        records = answer.records
        if shard.overlaps and records.num_rows:
            if records.column(SEQUENCE)[0].as_py() == shard.place.after:
                records = records.slice(1)
            else:
                self._prove(shard, f"Now the first record is {records.column(SEQUENCE)[0]}.")
            shard.overlaps = False
        elif shard.overlaps and (answer.next is None or not answer.behind_ms):
            self._prove(shard, "Now there is no record.")
            shard.overlaps = False
        place = shard.place
        if records.num_rows:
            first = str(records.column(SEQUENCE)[0].as_py())
            if place.after is not None and not is_behind(first, place.after):
                raise UpstreamError(
                    f'shard "{shard.info.id}" of stream "{self._stream}" went back',
                    detail=f"Sequence number {first} came behind {place.after}.",
                )
            self._spool.add(shard.info.id, place.count, records)
            place = Place(place.count + records.num_rows, last_sequence(records))
        with self._changed:
            shard.place, shard.behind_ms = place, answer.behind_ms
            shard.iterator, shard.made_again = answer.next, False
            if answer.next is None:
                # What arrived after the last read may be in its children.
                shard.drained = shard.caught_up = True
                shard.behind_ms = 0
            else:
                shard.read_until = max(shard.read_until or 0, began - answer.behind_ms)
                shard.caught_up |= not answer.behind_ms

    # -- nothing is lost

    def _check_retention(self, shard: ShardState) -> None:
        """Whether records may have expired since the last read: the service then goes on behind them."""
        if shard.overlaps or shard.read_until is None or shard.read_until >= _now() - LEAST_RETENTION_MS:
            return
        if shard.place.after is not None and not shard.made_again:
            shard.made_again = True
            raise Expired("the last record is looked for again")
        self._prove(shard, "Too much time has passed since.")

    def _prove(self, shard: ShardState, found: str) -> None:
        """Raises if records may have expired: the last record is not there (any more)."""
        moment, until = _now(), shard.read_until
        if until is not None and until >= moment - LEAST_RETENTION_MS:
            return
        kept = retention_ms(self._client, self._stream)
        if until is None or until < moment - kept:
            since = "" if until is None else f" It was read last {(moment - until) // 60_000} minutes ago."
            raise retention_passed(
                self._stream,
                shard.info.id,
                f"The last record that was received is {shard.place.after}. {found}{since} The retention "
                f"period is {kept // 3_600_000} hours.",
            )


def _refused(error: UpstreamError) -> UpstreamError:
    error.transient = True
    return error


def _now() -> int:
    return int(time.time() * 1000)
