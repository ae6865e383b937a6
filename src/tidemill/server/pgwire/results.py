"""Sending what a statement returns: rows, and COPY data to the client.

Called by `conduct` and `extended`. Promises: encoding of more than a few rows runs in a worker thread, and
once for all clients that are sent the same batch; the client's pace is the pace (no more than one piece is
made ahead of it); the engine's iterator is closed whatever happens; a SELECT that sends too much is an
error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from tidemill.engine.api import CopyOut, Rows
from tidemill.errors import LimitExceeded
from tidemill.server import limits
from tidemill.server.copy import CopyEncoder, copy_encoder
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.line import Line
from tidemill.server.pgwire.rows import RowEncoder, framed, is_light, pieces, result_formats
from tidemill.server.shared import BlockEncoder
from tidemill.types.model import face

# Streams that have no end have no size either.
_UNLIMITED_TAGS = frozenset({"SUBSCRIBE"})


async def close_batches(batches: AsyncIterator[pa.RecordBatch]) -> None:
    """Release what the engine holds for an iterator that may be half read."""
    aclose = getattr(batches, "aclose", None)
    if aclose is not None:
        await aclose()


async def _block(
    line: Line, batch: pa.RecordBatch, at: int, rows: int, encoder: BlockEncoder, *, shared: bool
) -> memoryview:
    # The last piece of a row limit is nobody else's.
    if shared:
        return await line.encodings.block(batch, at, rows, encoder)
    return await line.in_thread(encoder.encode, batch.slice(at, rows))


class RowStream:
    """The rows of one execution, read in one go or, by a portal with a row limit, in several."""

    __slots__ = ("_encoder", "_formats", "_rest", "_rows", "_sent_bytes")

    def __init__(self, rows: Rows, formats: Sequence[int]) -> None:
        """`formats` as Bind carries them; `send` raises if they do not fit the columns."""
        self._rows = rows
        self._formats = formats
        # Made by the first `send`.
        self._encoder: RowEncoder | None = None
        # Rows that were pulled from the engine and are beyond the last row limit.
        self._rest: pa.RecordBatch | None = None
        self._sent_bytes = 0

    def tag(self, count: int) -> str:
        return f"{self._rows.tag} {count}" if self._rows.counted else self._rows.tag

    async def send(self, line: Line, max_rows: int = 0) -> tuple[int, bool]:
        """Send up to `max_rows` rows (0 = all). Returns how many, and whether the end was reached."""
        if self._encoder is None:
            self._encoder = self._encoding(line)
            if self._rows.shared:
                # The first row may be long in coming; the client can get ready for it.
                line.outbox.flush()
        sent = 0
        take = self._rows.take
        while True:
            room = max_rows - sent if max_rows else None
            if room == 0:
                return sent, False
            line.check()
            batch = await self._pull() if take is None or self._rest is not None else take()
            if batch is None:
                return sent, True
            if not self._rows.shared and (room is None or batch.num_rows <= room) and is_light(batch):
                few = self._encoder.few(batch)
                self._count(len(few))
                line.outbox.put(few)
                if take is None:
                    line.outbox.flush_soon()
                if line.outbox.stopped:
                    await line.outbox.drain()
                sent += batch.num_rows
                continue
            shared = self._rows.shared and (room is None or batch.num_rows <= room)
            for at, rows in pieces(batch, room):
                line.check()
                data = await _block(line, batch, at, rows, self._encoder, shared=shared)
                self._count(len(data))
                line.outbox.put(data)
                line.outbox.flush()
                # Until the next rows come nothing of these is kept: they may be long in coming.
                del data
                await line.outbox.drain()
                sent += rows
            if room is not None and batch.num_rows > room:
                self._rest = batch.slice(room)
            del batch

    def _encoding(self, line: Line) -> RowEncoder:
        columns, zone = self._rows.columns, line.timezone
        formats = result_formats(self._formats, len(columns))
        if not self._rows.shared:
            return line.shapes.of(columns, formats, zone).encoder
        types = tuple(face(c.type) for c in columns)
        return line.encodings.common(
            ("rows", types, formats, zone), lambda: RowEncoder(columns, formats, zone)
        )

    async def _pull(self) -> pa.RecordBatch | None:
        rest, self._rest = self._rest, None
        if rest is not None:
            return rest
        return await anext(self._rows.batches, None)

    def _count(self, size: int) -> None:
        self._sent_bytes += size
        if self._sent_bytes > limits.MAX_RESULT_BYTES and self._rows.tag not in _UNLIMITED_TAGS:
            raise LimitExceeded(
                f"result exceeds the limit of {limits.MAX_RESULT_BYTES} bytes",
                hint="Narrow the query, or read it with COPY (...) TO STDOUT.",
            )

    async def close(self) -> None:
        await close_batches(self._rows.batches)


class _Framed:
    """COPY rows, each in a message of its own."""

    __slots__ = ("__weakref__", "_encoder")

    def __init__(self, encoder: CopyEncoder) -> None:
        self._encoder = encoder

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        return framed(b"d", self._encoder.encode(batch))


async def send_copy(line: Line, copy: CopyOut) -> str:
    """COPY ... TO STDOUT, one row in each CopyData message as clients expect it. Returns the tag."""
    columns, options, zone = copy.columns, copy.options, line.timezone
    encoder = copy_encoder(columns, options, timezone=zone)
    own, common = _Framed(encoder), None
    if copy.shared:
        types = tuple((c.name, face(c.type)) for c in columns)
        common = line.encodings.common(
            ("copy", types, options, zone),
            lambda: _Framed(copy_encoder(columns, options, timezone=zone, begun=True)),
        )
    line.outbox.put(replies.copy_response(b"H", len(columns), binary=options.format == "binary"))
    for row in encoder.start():
        line.outbox.put(replies.copy_data(row))
    if copy.shared:
        line.outbox.flush()
    count = 0
    try:
        async for batch in copy.batches:
            for at, rows in pieces(batch):
                line.check()
                # What goes before the first row is with it, and not the others' affair.
                shared = common if count else None
                data = await _block(line, batch, at, rows, shared or own, shared=shared is not None)
                line.outbox.put(data)
                line.outbox.flush()
                del data
                await line.outbox.drain()
                count += rows
            del batch
    finally:
        await close_batches(copy.batches)
    for row in encoder.end():
        line.outbox.put(replies.copy_data(row))
    line.outbox.put(replies.COPY_DONE)
    return f"COPY {count}"
