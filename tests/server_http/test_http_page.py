"""docs/http.md follows the code."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.server.http import limits

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
MB = 1 << 20


def test_the_limits_are_as_documented() -> None:
    table = PAGE[PAGE.index("## Limits") :]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", table, flags=re.MULTILINE))
    assert limits.MAX_MESSAGE_BYTES == limits.MAX_BODY_BYTES
    assert rows["body of a request, message to a WebSocket"] == f"{limits.MAX_BODY_BYTES // MB} MB"
    answer = f"{limits.MAX_RESULT_BYTES // MB} MB, {limits.MAX_HELD_BYTES // MB} MB for all together"
    assert rows["answer of `POST /api/sql`"] == answer
    assert rows["parameters of `GET /api/subscribe`"].startswith(f"{limits.MAX_PARAMETERS},")
    waiting = f"{limits.MAX_WAITING_MESSAGES:,}, {limits.MAX_WAITING_BYTES // MB} MB in all"
    assert rows["messages to a WebSocket that wait"] == waiting
    connections = f"{limits.MAX_CONNECTIONS:,}; {limits.MAX_STREAMS:,}"
    assert rows["connections; WebSockets and streams of events among them"] == connections
    assert limits.HEAD_SECONDS == limits.LOGIN_SECONDS
    assert (
        rows["time to send a request's head; a WebSocket's first message"] == f"{limits.HEAD_SECONDS:.0f} s"
    )
    assert rows["a client that takes not one byte of what waits for it"] == f"{limits.STALLED_SECONDS:.0f} s"
    pinged = f"answer to a ping (every {limits.PING_SECONDS:.0f} s) of a WebSocket"
    assert rows[pinged] == f"{limits.PONG_SECONDS:.0f} s"
    assert f"more than {limits.MAX_FRAGMENTS:,} frames" in PAGE
    assert f"retry: {limits.RETRY_MS}" in PAGE
    assert f"After {limits.HEARTBEAT_SECONDS:.0f} seconds\nwithout" in PAGE
