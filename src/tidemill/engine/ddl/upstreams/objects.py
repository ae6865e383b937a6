"""FORMAT, INCLUDE and ENVELOPE of objects: makes an output of the definition. Shared by FILES and S3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidemill.catalog.items import Source
from tidemill.decode.resolve import MAX_CSV_COLUMNS
from tidemill.engine.ddl.upstreams.described import DescribeContext
from tidemill.engine.ddl.upstreams.formats import Side, resolve_format
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError, UndefinedObject, Unsupported
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.objects.compression import AUTO, COMPRESSIONS, Corrupt, compression_of, expanded
from tidemill.sources.objects.header import csv_names
from tidemill.sources.objects.layout import object_layout
from tidemill.sources.objects.patterns import pattern
from tidemill.sources.objects.store import Store
from tidemill.sources.objects.tables import table_columns
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.none import NoEnvelope
from tidemill.sql.parser.envelopes.upsert import Upsert


@dataclass(frozen=True, slots=True)
class FirstObject:
    """The first object of a source, from which formats take their columns. `find` gives its name, None if
    there is none."""

    store: Store
    compression: str
    find: Callable[[], str | None]

    def sample(self) -> tuple[str, bytes] | None:
        """Its name, and its beginning, decompressed."""
        name = self.find()
        return None if name is None else (name, sampled(self.store, name, self.compression))

    def columns(self, form: str) -> list[list[str]] | None:
        name = self.find()
        if name is None:
            return None
        size = self.store.stat(name).size
        return table_columns(form, name, size, partial(self.store.stream, name, ""))


# What is read of the first object to know its columns.
_SAMPLE_BYTES = 1 << 20
_FORMATS = "Objects can be read with FORMAT TEXT, CSV, JSON, REGEX, BYTES, PARQUET and AVRO."


def check_chosen(matching: str | None, compression: str | None) -> dict[str, Any]:
    """MATCHING and COMPRESSION in the definition. Raises what is wrong with them."""
    if matching is not None:
        pattern(matching)
    chosen = AUTO if compression is None else compression.lower()
    if chosen not in COMPRESSIONS:
        raise InvalidValue(
            f"COMPRESSION cannot be {compression}",
            hint=f"It can be {', '.join(c.upper() for c in COMPRESSIONS)}.",
            sqlstate="22023",
        )
    return {"matching": matching, "compression": chosen}


def describe_object_output(
    name: str, said: ast.Messages, context: DescribeContext, first: FirstObject
) -> tuple[dict[str, Any], OutputDefinition]:
    """The output `name` of a definition. May read the first object."""
    if said.value is None:
        raise Unsupported("objects without FORMAT cannot be read", hint=_FORMATS)
    _refuse(said)
    form = said.value
    try:
        value = _format(form, name, context, first)
    except TidemillError as e:
        e.position = e.position or form.offset + 1
        raise
    spec: dict[str, Any] = {
        "name": name,
        "key": None,
        "value": value,
        "include": [_include(include) for include in said.include],
        "envelope": _envelope(said.envelope),
    }
    try:
        return spec, object_layout(spec).output
    except TidemillError as e:
        e.position = e.position or (said.envelope or form).offset + 1
        raise


def _refuse(said: ast.Messages) -> None:
    if said.key is not None:
        raise Unsupported(
            "KEY FORMAT is not possible for objects",
            detail="Their records have no keys beside their values.",
            hint="ENVELOPE UPSERT (KEY (column, ...)) names columns of the value.",
            position=said.key.offset + 1,
        )
    if said.on_error is not None and said.on_error.dead_letter:
        raise Unsupported(
            "ON ERROR DEAD LETTER is not possible for objects", position=said.on_error.offset + 1
        )


def _include(include: ast.Include) -> dict[str, Any]:
    if include.what not in ("KEY", "OFFSET", "TIMESTAMP"):
        raise Unsupported(
            f"INCLUDE {include.what} is not possible for objects",
            hint="What can be included is KEY (the name of the object), OFFSET and TIMESTAMP.",
            position=include.offset + 1,
        )
    alias = None if include.alias is None else include.alias.value
    return {"what": include.what.lower(), "as": alias}


def _envelope(envelope: ast.Envelope | None) -> dict[str, Any]:
    match envelope:
        case None | NoEnvelope():
            return {"kind": "none"}
        case Upsert(order_by=(), inline_errors=None, key=key) if key:
            return {"kind": "upsert", "key": [column.value for column in key]}
        case Upsert():
            raise SyntaxError_(
                "ENVELOPE UPSERT of objects needs KEY, and nothing else",
                detail="The row of a key is the latest by the object's time of change, its name, and the "
                "place in it.",
                hint="Write ENVELOPE UPSERT (KEY (column, ...)).",
                position=envelope.offset + 1,
            )
        case _:
            raise Unsupported(
                f"ENVELOPE {envelope.kind} is not possible for objects",
                hint="Use ENVELOPE NONE or ENVELOPE UPSERT (KEY (column, ...)).",
                position=envelope.offset + 1,
            )


def _format(form: ast.Format, name: str, context: DescribeContext, first: FirstObject) -> dict[str, Any]:
    match form:
        case ast.Csv(columns=columns, delimiter=delimiter):
            header = not isinstance(columns, int)
            if header and not columns:
                names = _names_of(first, "," if delimiter is None else delimiter)
                form = ast.Csv(tuple(ast.Ident(n, form.offset) for n in names), delimiter, form.offset)
            found = resolve_format(form, Side.VALUE, name, context).format
            return {**found, "header": True} if header else found
        case ast.PlainFormat("JSON" | "TEXT" | "BYTES") | ast.Regex():
            return resolve_format(form, Side.VALUE, name, context).format
        case ast.PlainFormat("PARQUET" | "AVRO"):
            columns = first.columns(form.name.lower())
            if columns is None:
                raise UndefinedObject(
                    "there is no object to take the columns from",
                    hint="Make the source when there is an object.",
                )
            return {"format": form.name.lower(), "columns": columns}
        case _:
            raise Unsupported("objects cannot be read with this format", hint=_FORMATS)


def _names_of(first: FirstObject, delimiter: str) -> list[str]:
    found = first.sample()
    if found is None:
        raise UndefinedObject(
            "there is no object to take the names of the columns from",
            hint="Write CSV WITH HEADER (name, ...), or make the source when there is an object.",
        )
    names = csv_names(found[1], delimiter)
    if not names or len(names) > MAX_CSV_COLUMNS or not all(names):
        raise InvalidValue(
            f'"{found[0]}" does not begin with the names of columns',
            detail=f"Its first line has {len(names)} fields, of which {names.count('')} are empty.",
            hint="Write CSV WITH n COLUMNS for files without a header.",
        )
    return names


def expect_reference(source: Source, statement: ast.CreateTableFromSource, name: str) -> None:
    reference = ".".join(statement.reference.parts)
    if reference != name:
        raise UndefinedObject(
            f'source "{source.name}" has no table "{reference}"',
            hint=f'Write (REFERENCE "{name}").',
            sqlstate="42P01",
            position=statement.reference.offset + 1,
        )


def sampled(store: Store, name: str, compression: str) -> bytes:
    """The beginning of an object, decompressed."""
    size = store.stat(name).size
    chunks = expanded(partial(store.stream, name, "", 0, size), compression_of(compression, name))
    found = b""
    try:
        for data in chunks:
            found += data
            if len(found) >= _SAMPLE_BYTES:
                break
    except Corrupt as e:
        if not found:
            raise TidemillError(f'"{name}" cannot be read', detail=str(e), sqlstate="22P02") from None
    return found
