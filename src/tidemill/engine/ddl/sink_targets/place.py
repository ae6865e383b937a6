"""Checks of a sink's destination: creates it, checks that it is writable, and checks its existing content.

Called by the sink target modules, on a worker thread. An existing stream must hold the same history. This
is true if another sink of the catalog writes it. It is also true if the statement says JOIN, the content
has the format and columns of the sink (`sinks.presence`), and a progress statement gives the time to
continue from, or AS OF gives the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.errors import InvalidValue, SyntaxError_
from tidemill.sinks import files_target, presence
from tidemill.sinks.files_target import check_writable, is_free
from tidemill.sinks.kafka_topic import last_upper, make_topic
from tidemill.sinks.presence import Wished
from tidemill.sql.parser.sink_targets.kafka import IntoKafka
from tidemill.time.shown import show_time

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state in which a sink would start. `known`: a sink of the catalog writes to the destination; `join`
    and `dated`: the statement has JOIN and AS OF; `since`: the since of the relation."""

    share: tuple[int, int]
    known: bool
    join: bool
    dated: bool
    since: int

    def check(self, place: str, free: bool, last: Callable[[], int | None], look: Callable[[], None]) -> None:
        """`last` is the upper of the last progress statement of the share in the destination. `look` raises
        if the existing content differs from what the sink would write."""
        if free or self.known:
            return
        if not self.join:
            raise InvalidValue(
                f"{place} is not empty",
                detail="A stream is the history of one relation: readers would take what is there for it.",
                hint="Choose another one. If it holds this very history, WITH (JOIN = true) goes on with it.",
                sqlstate="55000",
            )
        look()
        upper = last()
        if upper is None and not self.dated:
            raise InvalidValue(
                f"{place} has no statement that a sink could go on from",
                detail="What was written to it was never counted.",
                hint="Choose another one, or give AS OF the time at which the stream begins.",
                sqlstate="55000",
            )
        if upper is not None and upper - 1 < self.since:
            raise InvalidValue(
                f"{place} ends at {show_time(upper)}, and what changed since then is forgotten",
                detail=f"The relation's history begins at {show_time(self.since)}.",
                hint="Choose another one.",
                sqlstate="55000",
            )


def topic_name(target: IntoKafka) -> str:
    if target.topic is None:
        raise SyntaxError_(
            "a Kafka sink needs the option TOPIC", hint="Write (TOPIC 'name').", position=target.offset + 1
        )
    check_topic_name(target.topic, target.offset)
    for name, number in (
        ("PARTITION COUNT", target.partition_count),
        ("REPLICATION FACTOR", target.replication_factor),
    ):
        if number is not None and number < 1:
            raise InvalidValue(f"{name} cannot be {number}", hint="Give 1 or more.", sqlstate="22023")
    return target.topic


def check_topic_name(name: str, offset: int) -> None:
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise InvalidValue(
            f'"{name[:255]}" is no name of a topic',
            hint="A topic's name has up to 249 letters, digits, dots, underscores and hyphens.",
            sqlstate="22023",
            position=offset + 1,
        )


def check_topic(
    connection: Mapping[str, Any], target: IntoKafka, beginning: Beginning, wished: Wished
) -> None:
    """Creates the topic if it does not exist."""
    topic = topic_name(target)

    def look() -> None:
        place = make_topic(connection, topic, target.partition_count, target.replication_factor)
        named = f'topic "{topic}"'
        beginning.check(
            named,
            place.empty,
            lambda: last_upper(connection, topic, beginning.share, place, lambda: None),
            lambda: presence.check_topic(connection, topic, named, wished),
        )

    asking(look, avoidable=False)


def check_files(folder: Path, path: str, beginning: Beginning, wished: Wished) -> None:
    """Creates the folder if it does not exist."""
    check_writable(folder)
    reached = partial(files_target.last_upper, folder, beginning.share)
    named = f'folder "{path}"'
    beginning.check(named, is_free(folder), reached, lambda: presence.check_folder(folder, named, wished))
