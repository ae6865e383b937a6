"""Tidemill: streams of changes in, consistent tables out, one tick at a time.

`tidemill.connect(url)` is from the client library (`tidemill.client`), which is imported on the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.client import connect as connect
    from tidemill.client import connect_async as connect_async

_CLIENT = ("connect", "connect_async")


def __getattr__(name: str) -> Any:
    if name in _CLIENT:
        from tidemill import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
