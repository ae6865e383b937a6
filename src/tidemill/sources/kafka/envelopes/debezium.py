"""ENVELOPE DEBEZIUM: a Debezium change takes its `before` away and adds its `after`.

No row is remembered by its key, so what takes the old row away must be in the change itself. The columns are
those of ENVELOPE DEBEZIUM UPSERT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from tidemill.decode.debezium.narrow_schema import Wanted
from tidemill.decode.debezium.positions import CONNECTORS, UNFIT
from tidemill.errors import DatatypeMismatch, SyntaxError_, TidemillError, Unsupported
from tidemill.sources.kafka.dead_letters import ASIDE
from tidemill.sources.kafka.envelopes.debezium_upsert import DebeziumUpsertLayout
from tidemill.sources.kafka.layout import IncludedColumn, Layout
from tidemill.types.model import Column, Kind

_INSTEAD = "ENVELOPE DEBEZIUM UPSERT"
# Of `source`, beside the fields that make a position.
_SAID = ("connector", "name", "db", "snapshot", "gtid", "ts_us", "ts_ms")
_POSITIONS = {name: None for connector in CONNECTORS.values() for name in connector.fields}
_CONNECTOR = re.compile(r"io\.debezium\.connector\.(\w+)\.Source")


class DebeziumLayout(DebeziumUpsertLayout):
    name: ClassVar[str] = "debezium"
    wanted: ClassVar[Wanted] = {
        "before": None,
        "after": None,
        "op": None,
        "source": {**dict.fromkeys(_SAID), **_POSITIONS},
    }

    def check(self, spec: Mapping[str, Any], include: Sequence[IncludedColumn]) -> None:
        super().check(spec, include)
        if spec["key"]["format"] != spec["value"]["format"]:
            raise SyntaxError_(
                "ENVELOPE DEBEZIUM requires that KEY FORMAT and VALUE FORMAT are the same",
                detail=f"They are {spec['key']['format'].upper()} and {spec['value']['format'].upper()}.",
                hint="Debezium writes both as Avro, or both as JSON.",
            )
        if include:
            raise SyntaxError_(
                f"Cannot use INCLUDE {include[0].what.upper()} with ENVELOPE DEBEZIUM",
                detail="A change takes the old row away, and has no metadata of that row's record.",
                hint=f"{_INSTEAD} can include it: it remembers the row of each key.",
            )
        if spec.get(ASIDE):
            raise SyntaxError_(
                "ON ERROR DEAD LETTER is not possible with ENVELOPE DEBEZIUM",
                detail="Each change builds on those before it: without one of them the later are wrong.",
                hint=f"{_INSTEAD} can leave changes out: each has the whole row of its key.",
            )

    def layout(
        self,
        spec: Mapping[str, Any],
        key_columns: Sequence[Column],
        value_columns: Sequence[Column],
        include: Sequence[IncludedColumn],
    ) -> Layout:
        layout = super().layout(spec, key_columns, value_columns, include)
        if not key_columns:
            raise DatatypeMismatch(
                "ENVELOPE DEBEZIUM requires a key with columns",
                hint="Give the table a primary key, or set message.key.columns in Debezium.",
            )
        if spec["value"]["format"] == "avro":
            _check_fields({column.name: column for column in value_columns})
            _check_source(json.loads(spec["value"]["schema"]), value_columns)
        return replace(layout, output=replace(layout.output, changes=True))


def _check_fields(columns: Mapping[str, Column]) -> None:
    kinds = {"before": Kind.RECORD, "op": Kind.TEXT, "source": Kind.RECORD}
    for name, kind in kinds.items():
        if name not in columns or columns[name].type.kind is not kind:
            raise DatatypeMismatch(
                f"'{name}' column missing from debezium input",
                hint=f"ENVELOPE DEBEZIUM reads before, after, op and source; {_INSTEAD} after and op alone.",
            )
    if columns["before"].type != columns["after"].type:
        raise DatatypeMismatch(
            "'before' and 'after' of debezium input are different records",
            detail=f"They are {columns['before'].type} and {columns['after'].type}.",
            hint="In the schemas that Debezium registers they are one record.",
        )


def _check_source(schema: Any, columns: Sequence[Column]) -> None:
    """Whether changes of this connector have positions, as far as the schema tells."""
    fields = next(column.type.fields for column in columns if column.name == "source")
    names = {field.name for field in fields}
    told = _connector(schema)
    if told is not None and told not in CONNECTORS:
        raise unknown_connector(told)
    # A schema with another name may be of any of them.
    choices = [CONNECTORS[told]] if told is not None else list(CONNECTORS.values())
    needed = [{"connector", "snapshot", "name", *each.fields} for each in choices]
    missing = min((each - names for each in needed), key=len)
    if missing:
        raise DatatypeMismatch(
            "'source' of debezium input lacks the position of a change",
            detail=f"It has no {', '.join(sorted(missing))}.",
            hint=f"{choices[0].since} and later write what is needed.",
        )


def _connector(schema: Any) -> str | None:
    """Which connector a schema of changes is of, by the name of the record `source`."""
    of = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    source = next((field["type"] for field in of.get("fields", ()) if field["name"] == "source"), None)
    for branch in cast("list[Any]", source) if isinstance(source, list) else [source]:
        kind = cast("dict[str, Any]", branch) if isinstance(branch, dict) else {"name": branch}
        found = _CONNECTOR.fullmatch(f"{kind.get('namespace', '')}.{kind.get('name')}".lstrip("."))
        found = found or _CONNECTOR.fullmatch(str(kind.get("connect.name", kind.get("name"))))
        if found is not None:
            return found[1]
    return None


def unknown_connector(name: str | None) -> TidemillError:
    if name in UNFIT:
        return Unsupported(
            "ENVELOPE DEBEZIUM cannot read changes of SQL Server",
            detail=f"Here {UNFIT[name]}.",
            hint=f"{_INSTEAD} reads them.",
        )
    return Unsupported(
        "ENVELOPE DEBEZIUM does not know the positions of this connector",
        detail=f'The connector is "{name}"; known are {", ".join(CONNECTORS)}.',
        hint=f"{_INSTEAD} reads changes of any connector.",
    )
