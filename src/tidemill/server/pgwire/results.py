"""Sends the results of statements: rows, and COPY data to the client.

Called by `message_loop` and `extended`. Promises: more than a few rows are encoded in a worker thread,
once for all clients that receive the same batch. At most one piece is encoded ahead of the client. The
engine's iterator is always closed. A SELECT that exceeds its size limit raises an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pyarrow as pa

from tidemill.engine.api import CopyOut, Rows
from tidemill.errors import Internal, LimitExceeded
from tidemill.server import limits
from tidemill.server.bytecolumns import content
from tidemill.server.copy import CopyEncoder, copy_encoder
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.client_line import ClientLine
from tidemill.server.pgwire.rows import (
    RowEncoder,
    framed,
    is_light,
    pieces,
    result_formats,
    rows_of_a_piece,
)
from tidemill.server.shared import BlockEncoder
from tidemill.types.model import face

# Streams without an end have no size limit.
_UNLIMITED_TAGS = frozenset({"SUBSCRIBE"})


async def close_batches(batches: AsyncIterator[pa.RecordBatch]) -> None:
    """Release the engine's resources for an iterator that may be partly read."""
    aclose = getattr(batches, "aclose", None)
    if aclose is not None:
        await aclose()


async def _block(
    line: ClientLine, batch: pa.RecordBatch, at: int, rows: int, encoder: BlockEncoder, *, shared: bool
) -> memoryview:
    # The last piece of a row limit belongs to this client alone.
    if shared:
        return await line.encodings.block(batch, at, rows, encoder)
    return await line.in_thread(encoder.encode, batch.slice(at, rows))


class RowStream:
    """The rows of one execution, read at once or, by a portal with a row limit, in several calls."""

    __slots__ = (
        "_ahead",
        "_ask",
        "_at",
        "_batch",
        "_encoder",
        "_formats",
        "_growth",
        "_left",
        "_limit",
        "_piece",
        "_resumed",
        "_rows",
        "_sent_bytes",
    )

    def __init__(self, rows: Rows, formats: Sequence[int], limit: Callable[[], int] | None = None) -> None:
        """`formats` as in Bind. `send` raises if they do not match the columns, or if there are more bytes
        than `limit` allows."""
        self._rows = rows
        # No limit is lower. The actual limit is looked up only when more bytes are sent.
        self._limit = limits.LEAST_RESULT_BYTES
        self._ask = limit
        self._formats = formats
        # Created by the first `send`.
        self._encoder: RowEncoder | None = None
        # The batch from the engine, from its row `_at` on. The order is: the rest of the last piece beyond a
        # row limit, then the piece that is being encoded, then this batch.
        self._batch: pa.RecordBatch | None = None
        self._at = 0
        self._ahead: asyncio.Future[pa.Array] | None = None
        self._left: pa.Array | None = None
        # The rows that these columns describe.
        self._piece: pa.RecordBatch | None = None
        # Bytes on the wire per byte in storage, from the last piece; None before the first.
        self._growth: float | None = None
        # Executed again: a client that fetches twice will continue.
        self._resumed = False
        self._sent_bytes = 0

    def tag(self, count: int) -> str:
        return f"{self._rows.tag} {count}" if self._rows.counted else self._rows.tag

    async def send(self, line: ClientLine, max_rows: int = 0) -> tuple[int, bool]:
        """Send up to `max_rows` rows (0 = all). Returns how many, and whether the end was reached."""
        if self._encoder is None:
            encoder = self._encoder = self._encoding(line)
            if self._rows.shared:
                # The first row may take long; the client can prepare for it.
                line.outbox.flush()
        else:
            encoder = self._encoder
            self._resumed = True
        sent = 0
        while True:
            room = max_rows - sent if max_rows else None
            if room == 0:
                return sent, False
            line.check()
            if self._left is None and self._ahead is None and self._batch is None:
                take = self._rows.take
                batch = await anext(self._rows.batches, None) if take is None else take()
                if batch is None:
                    return sent, True
                if self._rows.shared:
                    sent += await self._send_shared(line, encoder, batch, room)
                    # The next rows may take long.
                    del batch
                    continue
                if (room is None or batch.num_rows <= room) and is_light(batch):
                    sent += self._put_few(line, encoder, batch)
                    del batch
                    if line.outbox.stopped:
                        await line.outbox.drain()
                    continue
                if batch.num_rows:
                    self._batch, self._at = batch, 0
                del batch
                if self._batch is None:
                    continue
            sent += await self._send_piece(line, encoder, room)

    def _put_few(self, line: ClientLine, encoder: RowEncoder, batch: pa.RecordBatch) -> int:
        few = encoder.few(batch)
        self._count(len(few))
        line.outbox.put(few)
        if self._rows.take is None:
            line.outbox.flush_soon()
        return batch.num_rows

    async def _send_shared(
        self, line: ClientLine, encoder: RowEncoder, batch: pa.RecordBatch, room: int | None
    ) -> int:
        """Send a batch that is shared with other clients, up to the row limit."""
        whole = room is None or batch.num_rows <= room
        sent = 0
        for at, rows in pieces(batch, room):
            line.check()
            data = await _block(line, batch, at, rows, encoder, shared=whole)
            self._count(len(data))
            line.outbox.put(data)
            line.outbox.flush()
            # Keep none of these rows while waiting for the next ones, which may take long.
            del data
            await line.outbox.drain()
            sent += rows
        if not whole:
            self._batch, self._at = batch, sent
        return sent

    async def _send_piece(self, line: ClientLine, encoder: RowEncoder, room: int | None) -> int:
        """Send the next piece, up to the row limit. The piece after it is encoded meanwhile, even beyond the
        row limit if the client has fetched before: it will fetch again."""
        messages = self._left
        if messages is None:
            self._begin(line, encoder, room)
            ahead, self._ahead = self._ahead, None
            if ahead is None:
                raise Internal("no rows to encode")
            messages = await ahead
        rows = len(messages) if room is None else min(room, len(messages))
        self._left = messages.slice(rows) if rows < len(messages) else None
        data = content(messages.slice(0, rows))
        self._count(len(data))
        # Not earlier: the next rows are read and encoded while the client reads the present ones.
        await line.outbox.drain()
        line.outbox.put(data)
        line.outbox.flush()
        self._begin(line, encoder, None if room is None else room - rows)
        return rows

    def _begin(self, line: ClientLine, encoder: RowEncoder, room: int | None) -> None:
        """Start to encode the next piece, if there are rows for one and none is ahead."""
        batch = self._batch
        if batch is None or self._ahead is not None or self._left is not None:
            return
        rows = batch.num_rows - self._at
        step = rows_of_a_piece(batch, self._growth)
        if room is not None and not self._resumed:
            # Many clients need no more rows than their limit.
            step = min(step, room)
        if not step:
            return
        piece = self._piece = batch.slice(self._at, step)
        self._ahead = line.begin_in_thread(self._encode, encoder, piece)
        self._at += step
        if step >= rows:
            self._batch = None

    def _encode(self, encoder: RowEncoder, piece: pa.RecordBatch) -> pa.Array:
        messages = encoder.messages(piece)
        self._growth = len(content(messages)) / max(1, piece.nbytes)
        return messages

    def _encoding(self, line: ClientLine) -> RowEncoder:
        columns, zone = self._rows.columns, line.timezone
        formats = result_formats(self._formats, len(columns))
        if not self._rows.shared:
            return line.shapes.of(columns, formats, zone).encoder
        types = tuple(face(c.type) for c in columns)
        return line.encodings.common(
            ("rows", types, formats, zone), lambda: RowEncoder(columns, formats, zone)
        )

    def _count(self, size: int) -> None:
        self._sent_bytes += size
        if self._sent_bytes <= self._limit or self._rows.tag in _UNLIMITED_TAGS:
            return
        self._limit = limits.MAX_RESULT_BYTES if self._ask is None else self._ask()
        if self._sent_bytes > self._limit:
            raise LimitExceeded(
                f"result exceeds the limit of {self._limit} bytes",
                hint="Narrow the query, or read it with COPY (...) TO STDOUT.",
            )

    def unsent(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows that are not sent yet, for another reader. The stream cannot be used afterwards."""
        here: list[pa.RecordBatch] = []
        if self._piece is not None and self._left is not None:
            here.append(self._piece.slice(self._piece.num_rows - len(self._left)))
        elif self._piece is not None and self._ahead is not None:
            here.append(self._piece)
        if self._batch is not None:
            here.append(self._batch.slice(self._at))
        self._forget()
        return _Unsent(here, self._rows.batches)

    def _forget(self) -> None:
        if self._ahead is not None:
            # Its error, if any, is not of interest any more.
            self._ahead.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._ahead.cancel()
        self._ahead = self._left = self._batch = self._piece = None

    async def close(self) -> None:
        self._forget()
        await close_batches(self._rows.batches)


class _Unsent:
    """Rows that were read and not sent, followed by those that were not read."""

    def __init__(self, here: list[pa.RecordBatch], batches: AsyncIterator[pa.RecordBatch]) -> None:
        self._here = here
        self._batches = batches

    @property
    def ready(self) -> bool:
        """Whether rows are available, though not yet converted."""
        return bool(self._here) or bool(getattr(self._batches, "ready", False))

    def __aiter__(self) -> _Unsent:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        return self._here.pop(0) if self._here else await anext(self._batches)

    async def aclose(self) -> None:
        self._here.clear()
        await close_batches(self._batches)


class _Framed:
    """COPY rows, each framed as a message."""

    __slots__ = ("__weakref__", "_encoder")

    def __init__(self, encoder: CopyEncoder) -> None:
        self._encoder = encoder

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        return framed(b"d", self._encoder.encode(batch))


async def send_copy(line: ClientLine, copy: CopyOut) -> str:
    """COPY ... TO STDOUT, one row in each CopyData message, as clients expect. Returns the tag."""
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
                # Bytes before the first row are part of its message, and do not concern other clients.
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
