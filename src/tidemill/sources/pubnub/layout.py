"""Layout of an output of PubNub's messages: the columns of its relation, from the format and INCLUDE.

A specification (`spec`, of the definition) has `name`, `value` (the format), `include` (a list of `what` and
`as`), `envelope` (`kind`: none) and `channel` (of tables: only messages of this channel, group or pattern).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.decode.formats import open_decoder
from tidemill.errors import DuplicateObject, Unsupported
from tidemill.sources.contract import Gauge, OutputDefinition
from tidemill.sources.kafka.dead_letters import TWIN, twin_output
from tidemill.types.model import TEXT, TIMESTAMP, UINT4, UINT8, Column, RelationDesc

GAUGE = Gauge(Column("timetoken", UINT8, nullable=False), Column("region", UINT4, nullable=False))
# What INCLUDE can name, with its column.
INCLUDED = {
    "key": Column("channel", TEXT, nullable=False),
    "partition": Column("region", UINT4, nullable=False),
    "offset": Column("timetoken", UINT8, nullable=False),
    "timestamp": Column("published", TIMESTAMP, nullable=False),
}
INCLUDE_HINT = (
    "What can be included is KEY (the channel), PARTITION (the region), OFFSET (the timetoken) and TIMESTAMP "
    "(the timetoken as a time)."
)


@dataclass(frozen=True, slots=True)
class MessageLayout:
    output: OutputDefinition
    included: tuple[str, ...]


def message_layout(spec: Mapping[str, Any]) -> MessageLayout:
    """Raises for an invalid one."""
    include: Sequence[Mapping[str, Any]] = spec["include"]
    columns = [replace(column, nullable=True) for column in open_decoder(spec["value"]).columns]
    for item in include:
        if item["what"] not in INCLUDED:
            raise Unsupported(f"INCLUDE {item['what'].upper()} is not possible for PubNub", hint=INCLUDE_HINT)
        column = INCLUDED[item["what"]]
        columns.append(column if item["as"] is None else replace(column, name=item["as"]))
    names = [column.name for column in columns]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise DuplicateObject(
                f'column "{name}" specified more than once',
                detail="The columns are " + ", ".join(names) + ".",
                hint="AS behind an item of INCLUDE calls its column something else.",
                sqlstate="42701",
            )
    included = tuple(item["what"] for item in include)
    return MessageLayout(OutputDefinition(spec["name"], RelationDesc(tuple(columns))), included)


def output_of(spec: Mapping[str, Any]) -> OutputDefinition:
    return twin_output(spec["name"]) if spec.get(TWIN) else message_layout(spec).output
