"""The corpus of expressions and queries with a real PostgreSQL as judge: how both sides are asked and
compared.

`Oracle` runs SQL on PostgreSQL and gives texts, type OIDs or the error. `Subject` binds the same SQL and
runs it on Spark over the same rows. Rows come from `bind/tables.sql` by way of PostgreSQL, so both sides
hold the same values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from tidemill.errors import TidemillError, UndefinedObject
from tidemill.query.session_slots import Slots
from tidemill.sql.ast import Query
from tidemill.sql.bind import (
    BoundQuery,
    Relation,
    SessionInfo,
    bind_query,
    constant_rows,
    map_spark_error,
)
from tidemill.sql.bind.digits import digits_of
from tidemill.sql.parse import parse
from tidemill.types.arrow import NUMERIC_SCALE, arrow_schema, storage_schema
from tidemill.types.json import canonical_json
from tidemill.types.model import Column, RelationDesc
from tidemill.types.names import physical_names
from tidemill.types.parse_name import parse_type
from tidemill.types.spark import spark_schema
from tidemill.types.wire.oids import oid
from tidemill.types.wire.text import decode_text, encode_text

HERE = Path(__file__).parent / "bind"
DOCS = Path(__file__).resolve().parents[2] / "docs"
SESSION = SessionInfo(now=datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC), mz_now=1_700_000_000_000)

# A numeric keeps 18 digits behind the point; PostgreSQL's quotients have more.
_SCALE = Decimal(1).scaleb(-18)


@dataclass(frozen=True, slots=True)
class Failure:
    sqlstate: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of texts as a client sees them (None for NULL), and the columns' names and types. `values`: the
    columns whose numbers are compared by their values alone, for how many digits they show is not known."""

    names: list[str]
    oids: list[int]
    rows: list[tuple[str | None, ...]]
    values: list[bool]


def lines(name: str) -> list[str]:
    """The lines of a corpus file, without comments."""
    text = (HERE / name).read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line.strip() and not line.startswith("#")]


def groups() -> dict[str, list[str]]:
    """The expressions over the table v, by group: one file each."""
    files = [*HERE.glob("expressions/*.txt"), *HERE.glob("expressions_*.txt")]
    return {path.stem: lines(str(path.relative_to(HERE))) for path in sorted(files)}


def expressions() -> list[str]:
    """All of them, and what the documentation shows; one that two groups have is asked once."""
    corpus = (text for group in groups().values() for text in group)
    return list(dict.fromkeys([*corpus, *(text for text, _ in documented())]))


# The pages whose tables have an example and its result in their last two columns.
DOCUMENTED = ("math", "text", "regex", "datetime", "comparison", "casts")
_ROW = re.compile(r"^\|.*\| `(.*)` \| (NULL|`.*`) \|$", re.MULTILINE)


def documented() -> list[tuple[str, str | None]]:
    """The examples of docs/functions, each with the text that the page shows as its result."""
    found: list[tuple[str, str | None]] = []
    for page in DOCUMENTED:
        for example, shown in _ROW.findall((DOCS / "functions" / f"{page}.md").read_text(encoding="utf-8")):
            found.append((example.replace("\\|", "|"), shown_text(shown)))
    return found


def shown_text(cell: str) -> str | None:
    """A value as a table shows it: in code, in quotes where blanks matter."""
    text = cell.strip("`").replace("\\|", "|")
    if cell == "NULL":
        return None
    inner = text[1:-1]
    return inner if text[:1] == text[-1:] == "'" and inner.strip() != (inner or " ") else text


class Oracle:
    """PostgreSQL with the corpus's tables in a database that compares by bytes."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        for statement in (HERE / "tables.sql").read_text(encoding="utf-8").split(";\n"):
            if statement.strip():
                self._execute(statement)

    def _execute(self, sql: str) -> psycopg.Cursor[Any]:
        # As bytes: psycopg's types want text to be a literal.
        return self.connection.execute(sql.encode())

    def ask(self, sql: str) -> Answer | Failure:
        try:
            cursor = self._execute(sql)
        except psycopg.Error as error:
            primary = error.diag.message_primary or str(error)
            return Failure(error.sqlstate or "?????", primary)
        result = cursor.pgresult
        assert result is not None
        names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
        oids = [result.ftype(i) for i in range(result.nfields)]
        rows = [
            tuple(
                None if (value := result.get_value(r, c)) is None else value.decode()
                for c in range(result.nfields)
            )
            for r in range(result.ntuples)
        ]
        return Answer(names, oids, rows, [False] * len(oids))

    def relation(self, name: str) -> tuple[RelationDesc, pa.Table]:
        """A table's columns and rows in storage form."""
        described = self.connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            (name,),
        ).fetchall()
        desc = RelationDesc(tuple(Column(n, parse_type(t)) for n, t in described))
        answer = self.ask(f"SELECT * FROM {name}")
        assert isinstance(answer, Answer)
        columns = [
            decode_text(pa.array([row[i] for row in answer.rows], pa.string()), column.type)
            for i, column in enumerate(desc.columns)
        ]
        schema = storage_schema(desc)
        return desc, pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in schema]))


# Questions at a time. A question is mostly the driver's work, so more than the cores of a small machine only
# hide where it waits.
ASKERS = 3


class Subject:
    """The binder and Spark over the same tables, in sessions as the server has them for small queries."""

    def __init__(self, session: Any, oracle: Oracle, tables: Sequence[str]) -> None:
        self.info = SESSION
        self._session = session
        self._slots = Slots(session)
        # The columns of a table that a query reads, by the session it reads them in: made once.
        self._frames: dict[tuple[int, str, tuple[str, ...]], Any] = {}
        self.relations: dict[str, Relation] = {}
        for name in tables:
            desc, rows = oracle.relation(name)
            names = physical_names(desc)
            frame = session.createDataFrame(rows, schema=spark_schema(desc, names))
            # For all sessions.
            frame.createOrReplaceGlobalTempView(f"corpus_{name}")
            self.relations[name] = Relation(name, ("public", name), desc, tuple(names))

    def close(self) -> None:
        for name in self.relations:
            self._session.catalog.dropGlobalTempView(f"corpus_{name}")

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        found = self.relations.get(parts[-1])
        if found is None:
            name = ".".join(parts)
            raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01", position=position)
        return found

    def bind(self, sql: str) -> BoundQuery:
        (parsed,) = parse(sql)
        assert isinstance(parsed.statement, Query)
        return bind_query(parsed.statement.tree, self, session=self.info)

    def ask(self, sql: str, *, spark_only: bool = True) -> Answer | Failure:
        """Bind and run. Constant queries too go to Spark unless told otherwise."""
        try:
            bound = self.bind(sql)
            table = None if spark_only else constant_rows(bound)
            rows = table if table is not None else self.run(bound)
            return answer_of(bound.columns, rows, self.info.time_zone)
        except TidemillError as error:
            return Failure(error.sqlstate, error.primary)

    def ask_all(self, questions: Sequence[str]) -> list[Answer | Failure]:
        """Some at a time; the answers are in order."""
        with ThreadPoolExecutor(ASKERS) as pool:
            return list(pool.map(self.ask, questions))

    def run(self, bound: BoundQuery) -> pa.Table:
        try:
            with self._slots.lease(small=True) as slot:
                for placeholder, name in bound.inputs.items():
                    columns = tuple(sorted(bound.used[placeholder]))
                    self._frame(slot.session, name, columns).createOrReplaceTempView(placeholder)
                found = slot.session.sql(bound.sql())
            table: pa.Table = found.toArrow()
        except TidemillError:
            raise
        except Exception as error:
            raise map_spark_error(error) from error
        want = arrow_schema(RelationDesc(bound.columns), [f"c{i}" for i in range(len(bound.columns))])
        for field, expected in zip(table.schema, want, strict=True):
            if not same_storage(field.type, expected.type):
                raise AssertionError(f"{field.name} is {field.type}, not {expected.type}")
        return table

    def _frame(self, session: Any, name: str, columns: tuple[str, ...]) -> Any:
        key = (id(session), name, columns)
        if key not in self._frames:
            table = session.table(f"global_temp.corpus_{name}")
            self._frames[key] = table.select(*(f"`{c}`" for c in columns))
        return self._frames[key]


def same_storage(a: pa.DataType, b: pa.DataType) -> bool:
    """Equal but for the names and nullability that Spark gives to the fields inside."""
    if pa.types.is_list(a) and pa.types.is_list(b):
        return same_storage(a.value_type, b.value_type)
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return [(f.name, f.type) for f in a] == [(f.name, f.type) for f in b]
    return a == b


def answer_of(columns: Sequence[Column], table: pa.Table, zone: str) -> Answer:
    texts = [
        [None if v is None else v.decode() for v in encode_text(column, c.type, timezone=zone).to_pylist()]
        for column, c in zip(table.columns, columns, strict=True)
    ]
    rows = list(zip(*texts, strict=True)) if texts else []
    values = [digits_of(c.type) in (None, NUMERIC_SCALE) for c in columns]
    return Answer([c.name for c in columns], [oid(c.type) for c in columns], rows, values)


def same_text(mine: str | None, theirs: str | None, t: int, *, value: bool = True) -> bool:
    """Equal answers. A numeric whose digits are not known is compared by `value`, to 18 digits behind the
    point; jsonb as we write it, for its numbers lose the zeros at their end."""
    if mine == theirs:
        return True
    if mine is None or theirs is None:
        return False
    if t in (1700, 1231) and value:
        return _rounded(mine) == _rounded(theirs)
    if t == 3802:
        return mine == canonical_json(theirs)
    return False


def _rounded(text: str) -> list[Decimal | None] | str:
    try:
        with localcontext(prec=60):
            parts = text.strip("{}").split(",")
            return [
                None if p == "NULL" else Decimal(p).quantize(_SCALE, ROUND_HALF_UP).normalize() for p in parts
            ]
    except ArithmeticError:
        return text
