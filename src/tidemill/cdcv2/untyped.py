"""Untyped messages: a stream whose columns are unknown. The data of an update is one text.

Called by programs that inspect a stream without reading it into a table (`tidemill cdcv2 inspect`). Times,
diffs, bounds and counts are those of the codecs. Data is its JSON with sorted names, which suffices to detect
repetitions and to name an update. Digests of content are defined over columns and are not compared; the seal
of a statement is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from io import BytesIO
from typing import Any, BinaryIO, cast

import fastavro

from tidemill.cdcv2.digest import seal_of, signed
from tidemill.cdcv2.json_forms import strict_json
from tidemill.cdcv2.messages import Message, Progress, Updates
from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.wording import Malformed, field, progress_record, sentence
from tidemill.errors import InvalidValue

# Longer data is identified by its beginning and a hash of all of it: the stash keeps these texts.
MAX_TEXT = 400
# A line or a record: more than any transport carries.
MAX_MESSAGE_BYTES = 256 << 20
AVRO_FILE = b"Obj\x01"


def from_json(raw: bytes, origin: str) -> Message:
    """The message of one JSON text. Raises InvalidMessage."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise InvalidMessage(f"a message of more than {MAX_MESSAGE_BYTES} bytes", origin)
    try:
        found = strict_json(raw.decode())
    except (ValueError, RecursionError) as e:
        hint = None
        if raw[:1] == b"\x00":
            hint = "This looks like Avro: name the schema registry, or the file with the schema."
        raise InvalidMessage("not a CDCv2 message in JSON", origin, detail=sentence(e), hint=hint) from None
    return _message(found, origin)


def avro_reader(schema: str) -> Callable[[bytes, str], Message]:
    """Reads single messages that were written with `schema`, the union as JSON text. Raises InvalidValue."""
    try:
        parsed: Any = fastavro.parse_schema(json.loads(schema))
    except Exception as e:
        raise InvalidValue("the schema is no Avro", detail=sentence(e)) from None

    def read(raw: bytes, origin: str) -> Message:
        source = BytesIO(raw)
        try:
            found = fastavro.schemaless_reader(source, parsed, None)
        except Exception as e:  # fastavro raises errors of any type
            raise InvalidMessage("not a CDCv2 message in Avro", origin, detail=sentence(e)) from None
        if source.read(1):
            raise InvalidMessage("bytes behind the end of a CDCv2 message", origin)
        return _message(found, origin)

    return read


def avro_file(source: BinaryIO, name: str) -> Iterator[Message | InvalidMessage]:
    """The messages of an Avro file whose records are the union. If a record's structure is wrong, its error
    takes its place. Bytes that are not Avro end the file, because the start of the next record is unknown."""
    number = 0
    try:
        for number, found in enumerate(fastavro.reader(source), 1):
            try:
                yield _message(found, f"{name}, message {number}")
            except InvalidMessage as e:
                yield e
    except InvalidMessage:
        raise
    except Exception as e:
        yield InvalidMessage(
            "the Avro file cannot be read any further",
            f"{name}, after message {number}" if number else f"{name}, before its first message",
            detail=sentence(e),
        )


def _message(found: Any, origin: str) -> Message:
    try:
        return (
            _updates(cast("list[Any]", found), origin)
            if isinstance(found, list)
            else _progress(found, origin)
        )
    except (Malformed, RecursionError) as e:
        raise InvalidMessage("not a CDCv2 message", origin, detail=sentence(e)) from None


def _updates(rows: list[Any], origin: str) -> Updates:
    said = [[field(row, name, "an update") for name in ("data", "time", "diff")] for row in rows]
    return Updates([(_text(data), _time(time), diff) for data, time, diff in said], origin)


def _progress(found: Any, origin: str) -> Progress:
    record = progress_record(found)
    counts = record["counts"]
    seal = record.get("seal")
    said = Progress(
        [_time(t) for t in record["lower"]],
        [_time(t) for t in record["upper"]],
        [(_time(c["time"]), c["count"]) for c in counts],
        None if seal is None else [c["content"] for c in counts],
        seal,
        origin,
    )
    # The seal was checked; the contents are digests over columns, which are unknown here.
    if seal is not None and _sealed(said):
        return replace(said, contents=None, seal=None)
    return said


def _sealed(said: Progress) -> bool:
    try:
        return seal_of(said) == signed(cast("int", said.seal))
    except Exception:  # numbers that are none: recovery names them
        return False


def _time(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _text(data: Any) -> str:
    text = _dump(data)
    if "-0.0" in text:
        text = _dump(_positive(data))
    if len(text) > MAX_TEXT:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        text = f"{text[:MAX_TEXT]}... {digest}"
    return text


def _dump(data: Any) -> str:
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _positive(value: Any) -> Any:
    """Replaces a negative zero: comparisons of rows ignore the sign of zero."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, list):
        return [_positive(v) for v in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {k: _positive(v) for k, v in cast("dict[str, Any]", value).items()}
    return value
