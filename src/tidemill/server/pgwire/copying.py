"""COPY ... FROM STDIN on the wire: passes the client's CopyData messages to the engine's sink.

Called by `message_loop` and `extended`. Promises: decoding runs in a worker thread. At most one block
waits to be decoded. The sink receives exactly one of `finish` and `fail`.
"""

from __future__ import annotations

from tidemill.engine.api import CopyIn
from tidemill.errors import QueryCanceled, TidemillError
from tidemill.server import limits
from tidemill.server.copy import CopyDecoder, copy_decoder
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.client_line import ClientLine, ConnectionEnds
from tidemill.server.pgwire.protocol import Conversation, Event, ProtocolFailure


async def receive_copy(line: ClientLine, conversation: Conversation, copy: CopyIn) -> str:
    """Receive data until the client finishes or fails. Returns the tag."""
    decoder = copy_decoder(
        copy.columns, copy.options, relation=copy.relation, timezone=line.timezone, defaults=copy.defaults
    )
    try:
        line.outbox.put(
            replies.copy_response(b"G", len(copy.columns), binary=copy.options.format == "binary")
        )
        line.outbox.flush()
        conversation.copy_started()
        await _pump(line, conversation, copy, decoder)
        conversation.copy_ended()
        return await copy.sink.finish()
    except BaseException as e:
        conversation.copy_ended()
        await copy.sink.fail(e.primary if isinstance(e, TidemillError) else "the connection ended")
        raise


async def _pump(line: ClientLine, conversation: Conversation, copy: CopyIn, decoder: CopyDecoder) -> None:
    block: list[bytes] = []
    size = 0
    while True:
        line.check()
        message = await next_message(line, conversation)
        match message:
            case None:
                continue
            case m.CopyData():
                block.append(message.data)
                size += len(message.data)
                if size < limits.COPY_BLOCK_BYTES:
                    continue
            case m.CopyFail():
                # An error in the data before it is reported first.
                await line.in_thread(decoder.feed, b"".join(block))
                raise QueryCanceled(f"COPY from stdin failed: {message.reason}")
            case m.CopyDone():
                pass
            case _:
                raise ConnectionEnds(None)
        for batch in await line.in_thread(decoder.feed, b"".join(block)):
            await copy.sink.write(batch)
        block, size = [], 0
        if isinstance(message, m.CopyDone):
            for batch in await line.in_thread(decoder.finish):
                await copy.sink.write(batch)
            return


# Built once, because every message is compared with it.
_STARTUP_PACKETS = (m.SslRequest, m.GssRequest, m.CancelRequest, m.Startup)


async def next_message(line: ClientLine, conversation: Conversation) -> m.Message | None:
    """The next valid message; None for one that is skipped. Raises ConnectionEnds."""
    return admitted(await line.inbox.get(), conversation)


def admitted(event: Event, conversation: Conversation) -> m.Message | None:
    """The same for an event that was already read."""
    if isinstance(event, ProtocolFailure):
        raise ConnectionEnds(event.error)
    if isinstance(event, _STARTUP_PACKETS):
        raise ConnectionEnds(m.MalformedMessage("startup packet on an open connection"))
    try:
        return event if conversation.admit(event) else None
    except m.MalformedMessage as e:
        raise ConnectionEnds(e) from None
