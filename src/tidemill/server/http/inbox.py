"""The queue of a WebSocket's incoming messages, filled while statements run.

`conversation` runs `hear` in a separate task. Promises: a cancel takes effect at once; a closed connection
is noticed at once; the queue has a limit, and exceeding it ends the conversation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeAlias

from starlette.websockets import WebSocket

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.server.http.limits import MAX_WAITING_BYTES, MAX_WAITING_MESSAGES
from tidemill.server.http.messages import Cancel, CancelOther, LoginMessage, Queries, parse_first, parse_later
from tidemill.server.http.request import BadRequest

# An invalid message is kept as its error, which is sent in its turn.
Said: TypeAlias = LoginMessage | CancelOther | Queries | TidemillError

# The close code for a client that broke a rule (RFC 6455).
POLICY = 1008

# Messages up to this many characters are parsed on the event loop, in well under a millisecond.
_SHORT = 16_384


class Over(Exception):
    """The conversation ends: the client has disconnected, or receives the reason."""


class Hearing:
    def __init__(self, socket: WebSocket, pool: Executor, cancel: Callable[[], None]) -> None:
        """`cancel` cancels the running statement; the threads of the pool parse long messages."""
        self._socket = socket
        self._pool = pool
        self._cancel = cancel
        self._said: deque[tuple[Said, int]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        # The connection is lost: nothing can be said any more.
        self.gone = False
        # Why it ends although the client is connected: the error, and the close code.
        self.end: tuple[TidemillError, int] | None = None

    async def hear(self) -> None:
        """Receives messages until the connection is closed."""
        parse: Callable[[str], Said | Cancel] = parse_first
        try:
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                text: str | None = message.get("text")
                said = await self._understood(text, parse)
                parse = parse_later
                if isinstance(said, Cancel):
                    self._cancel()
                else:
                    self._keep(said, len(text or ""))
        finally:
            self.lost()

    async def next(self) -> Said:
        """The next message. Raises Over if there are no more."""
        while not self._said:
            self.check()
            self._news.clear()
            await self._news.wait()
        self.check()
        said, size = self._said.popleft()
        self._bytes -= size
        return said

    def check(self) -> None:
        """Raises Over if the conversation has ended."""
        if self.gone or self.end is not None:
            raise Over

    def lost(self) -> None:
        self.gone = True
        self._news.set()

    def finish(self, error: TidemillError, code: int) -> None:
        """Ends the queue and discards its messages."""
        if self.end is None:
            self.end = (error, code)
        self._said.clear()
        self._news.set()
        self._cancel()

    async def _understood(self, text: str | None, parse: Callable[[str], Said | Cancel]) -> Said | Cancel:
        if text is None:
            return BadRequest("a binary message is not understood", hint="Send text.")
        try:
            if len(text) <= _SHORT:
                return parse(text)
            return await asyncio.get_running_loop().run_in_executor(self._pool, parse, text)
        except TidemillError as e:
            return e

    def _keep(self, said: Said, size: int) -> None:
        if self.end is not None:
            return
        self._bytes += size
        if self._bytes > MAX_WAITING_BYTES or len(self._said) >= MAX_WAITING_MESSAGES:
            error = LimitExceeded(
                f"more than {MAX_WAITING_MESSAGES} messages or {MAX_WAITING_BYTES >> 20} MB of them wait",
                hint="Wait for ReadyForQuery before you send more.",
            )
            self.finish(error, POLICY)
            return
        self._said.append((said, size))
        self._news.set()
