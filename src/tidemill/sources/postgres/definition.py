"""PostgreSQL source definition: the tables that are read, as the catalog stores them.

A table is described once, by CREATE SOURCE or CREATE TABLE ... FROM SOURCE (`describe`); what the stream says
of it later is compared with this description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tidemill.sources.contract import Definition, Gauge, OutputDefinition
from tidemill.sources.postgres.table_marks import MarksSpec, TableMarks, read_spec
from tidemill.types.model import UINT8, Column, RelationDesc, SqlType, type_name
from tidemill.types.parse_name import parse_type

# The position in the write-ahead log: the number of its next byte.
GAUGE = Gauge(Column("lsn", UINT8, nullable=False))


# What was learned about the tables since they were described, by the key of their marks.
MARKS = "marks"


def quoted(name: str) -> str:
    """A name in the text of a query, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def shown(*parts: str) -> str:
    """A name with its schema as messages and statements show it: quoted only where necessary."""
    return ".".join(p if p.isascii() and p.isidentifier() and p == p.lower() else quoted(p) for p in parts)


@dataclass(frozen=True, slots=True)
class ReplicatedColumn:
    """`oid` and `typmod` are the type upstream, `attnum` its number in the table there. `text`: its values
    are kept as PostgreSQL writes them (TEXT COLUMNS)."""

    name: str
    type: SqlType
    nullable: bool
    oid: int
    typmod: int
    attnum: int
    text: bool = False


@dataclass(frozen=True)
class ReplicatedTable:
    """A table of the publication. `name` is unique among the outputs of the source: schema and table.
    `filter` is the publication's row filter, as SQL. Without `marks` what they show is not noticed."""

    name: str
    schema: str
    table: str
    relid: int
    columns: tuple[ReplicatedColumn, ...]
    filter: str | None = None
    marks: TableMarks | None = None

    @property
    def partitioned(self) -> bool:
        return self.marks is not None and self.marks.partitioned

    @cached_property
    def desc(self) -> RelationDesc:
        return RelationDesc(tuple(Column(c.name, c.type, c.nullable) for c in self.columns))

    @property
    def output(self) -> OutputDefinition:
        return OutputDefinition(self.name, self.desc)

    @property
    def shown(self) -> str:
        return shown(self.schema, self.table)

    def spec(self) -> Definition:
        """The table in the stored definition."""
        return {
            "name": self.name,
            "schema": self.schema,
            "table": self.table,
            "relid": self.relid,
            "filter": self.filter,
            "marks": None if self.marks is None else self.marks.spec(),
            "columns": [
                {
                    "name": c.name,
                    "type": type_name(c.type),
                    "nullable": c.nullable,
                    "oid": c.oid,
                    "typmod": c.typmod,
                    "attnum": c.attnum,
                    "text": c.text,
                }
                for c in self.columns
            ],
        }


@dataclass(frozen=True, slots=True)
class PostgresDefinition:
    """`system` identifies the database cluster, `lsn` is the position of the slot's snapshot and `timeline`
    the history that it is in. Both are None until the slot exists."""

    connection: Mapping[str, Any]
    publication: str
    slot: str
    system: str
    lsn: int | None
    timeline: int | None
    tables: tuple[ReplicatedTable, ...]
    started: int
    # What was learned, of the tables that are still there.
    marks: Mapping[str, MarksSpec]


def read_table(spec: Mapping[str, Any]) -> ReplicatedTable:
    columns = tuple(
        ReplicatedColumn(
            str(c["name"]),
            parse_type(str(c["type"])),
            bool(c["nullable"]),
            int(c["oid"]),
            int(c["typmod"]),
            int(c["attnum"]),
            bool(c["text"]),
        )
        for c in spec["columns"]
    )
    row_filter, marks = spec.get("filter"), spec.get("marks")
    return ReplicatedTable(
        str(spec["name"]),
        str(spec["schema"]),
        str(spec["table"]),
        int(spec["relid"]),
        columns,
        None if row_filter is None else str(row_filter),
        None if marks is None else read_spec(marks),
    )


def _with_marks(table: ReplicatedTable, learned: Mapping[str, Any]) -> ReplicatedTable:
    """The table with what was learned of it since it was described."""
    if table.marks is None or table.marks.key not in learned:
        return table
    return replace(table, marks=read_spec(learned[table.marks.key]))


def read_definition(definition: Mapping[str, Any]) -> PostgresDefinition:
    """Raises KeyError, TypeError, ValueError or TidemillError for a definition that cannot be read."""
    lsn, timeline = definition.get("lsn"), definition.get("timeline")
    learned: Mapping[str, Any] = definition.get(MARKS) or {}
    tables = tuple(_with_marks(read_table(spec), learned) for spec in definition["outputs"])
    return PostgresDefinition(
        definition["connection"],
        str(definition["publication"]),
        str(definition["slot"]),
        str(definition["system"]),
        None if lsn is None else int(lsn),
        None if timeline is None else int(timeline),
        tables,
        int(definition["started"]),
        {table.marks.key: table.marks.spec() for table in tables if table.marks is not None},
    )
