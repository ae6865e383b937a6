"""Join check of a sink target: do existing messages have the format and the columns of the sink?

Called by the engine at CREATE SINK ... WITH (JOIN), on a worker thread. Two formats or two sets of columns in
one target break every source that reads it. The check cannot prove that the history is the same, only that
both can be read together. It reads the first and the last messages of each partition, or the first and the
last files, and names the one that it refuses. An empty target passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.cdcv2.avro_schema import same_layout
from tidemill.cdcv2.columns import UpdateColumns
from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.wording import words
from tidemill.decode.avro.schema import SchemaError
from tidemill.decode.contract import legible
from tidemill.decode.registry import Registry, RegistryError
from tidemill.decode.stream import FRAME, stream_shape
from tidemill.errors import InvalidValue, TidemillError
from tidemill.sinks.definition import AVRO, Codec
from tidemill.sources.files.form import MAGIC, Broken, avro_header, lines
from tidemill.sources.files.reader import unreadable
from tidemill.sources.files.source import found_in
from tidemill.sources.kafka.consume import Range, Wanted, read_range, settings_of
from tidemill.sources.kafka.metadata import CREATE_SECONDS, Admin

# Files at either end of a folder; messages at either end of a partition, and at the beginning of a JSON file.
# The search ends at the first updates, because statements have no columns.
MAX_FILES = 8
MAX_MESSAGES = 16
# The number of partitions that are read, one after another: a statement waits for this.
MAX_PARTITIONS = 16
# The bytes of a file that are read to find the beginning of its messages.
MAX_BYTES = 1 << 20

_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Wished:
    """The form that the sink would write; `registry` has the schemas of messages that contain schema ids."""

    form: str
    codec: Codec
    registry: Registry | None = None

    @property
    def schema(self) -> str:
        """Of Avro."""
        return str(getattr(self.codec, "avro_schema", ""))


def check_folder(folder: Path, place: str, wished: Wished) -> None:
    """Raises InvalidValue, and the errors of reading the files."""
    names = sorted(name for name, _ in found_in(folder))
    looked = names if len(names) <= 2 * MAX_FILES else [*names[:MAX_FILES], *names[-MAX_FILES:]]
    for name in looked:
        where = f'File "{legible(name)}"'
        try:
            with open(folder / name, "rb") as file:
                is_avro = file.read(len(MAGIC)) == MAGIC
                if is_avro != (wished.form == AVRO):
                    if file.seek(0, 2):
                        raise _another(place, f"{where} is {'Avro' if is_avro else 'no Avro'}", wished)
                elif is_avro:
                    _check_schema(avro_header(file).schema, place, where, wished)
                else:
                    file.seek(0)
                    _check_lines(lines(file, 0, MAX_BYTES), place, where, wished)
        except FileNotFoundError:
            continue  # it went while we looked
        except OSError as e:
            raise unreadable(name, e) from e
        except InvalidValue as e:
            raise e if e.sqlstate == _REFUSED else _another(place, f"{where}: {words(e)}", wished) from None


def check_topic(connection: Mapping[str, Any], topic: str, place: str, wished: Wished) -> None:
    """Raises InvalidValue, and the errors of reading the records."""
    admin = Admin(connection)
    partitions = sorted(admin.identity(topic, CREATE_SECONDS).partitions)[:MAX_PARTITIONS]
    low = admin.starts(topic, tuple(partitions), CREATE_SECONDS)
    high = admin.ends(topic, tuple(partitions), CREATE_SECONDS)
    settings = settings_of(connection, None)
    seen: set[int] = set()
    for p in partitions:
        first = min(high[p], low[p] + MAX_MESSAGES)
        ranges = [(low[p], first), (max(first, high[p] - MAX_MESSAGES), high[p])]
        for lower, upper in ranges:
            for offset, value in _records(settings, Range(topic, p, lower, upper)):
                _check_record(value, place, f"Partition {p}, offset {offset}", wished, seen)


def _records(settings: Mapping[str, str | int], of: Range) -> Iterator[tuple[int, bytes | None]]:
    for lot in read_range(settings, of, Wanted()):
        if lot.messages is not None:
            yield from zip(lot.messages.offsets.tolist(), lot.messages.values.to_pylist(), strict=True)


def _check_record(value: bytes | None, place: str, where: str, wished: Wished, seen: set[int]) -> None:
    """`seen` are the schema ids that were already accepted."""
    if value is None:
        raise _another(place, f"{where} has no value", wished)
    is_framed = len(value) >= FRAME and value[0] == 0
    if is_framed != (wished.form == AVRO):
        found = "Avro" if is_framed else "no Avro in Confluent's framing"
        raise _another(place, f"{where} is {found}", wished)
    if not is_framed:
        _decode(value, place, where, wished)
        return
    number = int.from_bytes(value[1:FRAME], "big")
    if number in seen or wished.registry is None:
        return
    try:
        schema = wished.registry.schema_text(number)
    except SchemaError as e:
        raise _another(place, f"{where} has schema {number}: {words(e)}", wished) from None
    except RegistryError as e:
        if e.status != _NOT_FOUND:
            raise
        raise _another(
            place, f"{where} has schema {number}, which the registry does not know", wished
        ) from None
    _check_schema(schema, place, where, wished)
    seen.add(number)


def _check_lines(found: Iterator[tuple[int, bytes | Broken]], place: str, where: str, wished: Wished) -> None:
    for number, (at, message) in enumerate(found):
        if isinstance(message, Broken):
            raise _another(place, f"{where}, byte {at}: {message.why}", wished)
        if _decode(message, place, f"{where}, byte {at}", wished) or number + 1 >= MAX_MESSAGES:
            return


def _decode(message: bytes, place: str, where: str, wished: Wished) -> bool:
    """Returns whether it had updates, and so the columns to compare."""
    try:
        (said,) = wished.codec.decode([message], [""])
    except InvalidMessage as e:
        why = (e.detail or "").removeprefix("In .").strip().rstrip(".") or e.primary
        raise _another(place, f"{where} is no message of the sink's columns: {_lower(why)}", wished) from None
    if not isinstance(said, UpdateColumns) or not len(said):
        return False
    # Readers of JSON treat a missing column as null; sinks write all of their columns.
    names = list(json.loads(message)[0]["data"])
    if set(names) != set(wished.codec.schema.names):
        raise _another(place, f"{where} has the columns {', '.join(names)}", wished)
    return True


def _check_schema(schema: str, place: str, where: str, wished: Wished) -> None:
    if same_layout(json.loads(schema), json.loads(wished.schema)):
        return
    try:
        columns = _columns(schema)
    except TidemillError as e:
        raise _another(place, f"{where}: {words(e)}", wished) from None
    if columns == _columns(wished.schema):
        raise _another(place, f"{where} has the columns in another layout, or digests", wished)
    raise _another(place, f"{where} has the columns {columns}", wished)


def _columns(schema: str) -> str:
    found = stream_shape({"format": "avro", "schema": schema}).columns
    return ", ".join(f"{c.name} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in found)


# PostgreSQL's object_not_in_prerequisite_state.
_REFUSED = "55000"


def _another(place: str, found: str, wished: Wished) -> InvalidValue:
    form = wished.form.upper() if wished.form != AVRO else "Avro"
    columns = _columns(wished.schema) if wished.form == AVRO else ", ".join(wished.codec.schema.names)
    return InvalidValue(
        f"{place} holds something else than the sink would write",
        detail=f"{found}. The sink writes {form}, with the columns {columns}.",
        hint="Choose another one, or make the sink with the format and the columns that are there: whoever "
        "reads the stream could not read both.",
        sqlstate=_REFUSED,
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
