"""Requests to the server of a connection while a statement waits: on a worker thread, with deadlines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidemill.decode.registry import RegistryError
from tidemill.engine.ddl.connection_kinds import CONNECTION_KINDS
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka import metadata
from tidemill.sources.kafka.metadata import TopicInfo

T = TypeVar("T")

# Said of sources that run; a statement is not tried again.
_AGAIN = re.compile(r" ?(It is tried again by itself|Reading goes on by itself when it [a-z ]+)\.")
_UNSEEN = "WITH (VALIDATE = false) does without asking."


def check_reachable(kind: str, options: Mapping[str, Any]) -> None:
    """Raises if the server is not reachable."""
    asking(lambda: CONNECTION_KINDS[kind].reach(options))


def topic_info(connection: Mapping[str, Any], topic: str) -> TopicInfo:
    """Raises UndefinedObject if the topic does not exist."""
    return asking(lambda: metadata.describe_topic(connection, topic))


def is_compacted(connection: Mapping[str, Any], topic: str) -> bool:
    return asking(lambda: metadata.is_compacted(connection, topic))


def offsets_for_time(connection: Mapping[str, Any], topic: str, ms: int) -> dict[int, int]:
    return asking(lambda: metadata.offsets_for_time(connection, topic, ms))


def asking(ask: Callable[[], T], *, avoidable: bool = True) -> T:
    """Runs the request. Adapts the hint of an error to the statement; `avoidable`: the statement also works
    without the request."""
    try:
        return ask()
    except (UpstreamError, RegistryError) as e:
        said = _AGAIN.sub("", e.hint or "").replace("If it never has: check", "Check").strip()
        e.hint = f"{said} {_UNSEEN}".strip() if avoidable else said or None
        raise
