"""Odd input is told in words for people: no name of Python's, no number of the system's, whatever came in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest

from tidemill.cdcv2 import (
    AvroCodec,
    ColumnRecovery,
    InvalidMessage,
    JsonCodec,
    Progress,
    Recovery,
    ResumeMismatch,
    SpillFailed,
    UpdateColumns,
    Updates,
    Writer,
    recover,
    resume_from,
)
from tidemill.cdcv2.survey import StreamReport, Survey
from tidemill.cdcv2.untyped import avro_file, avro_reader, from_json
from tidemill.decode.stream import open_stream_decoder
from tidemill.errors import InvalidValue, TidemillError

SCHEMA = pa.schema([("name", pa.string()), ("price", pa.int64())])
RAW = re.compile(
    r"\b[A-Z]\w*(Error|Exception)\b|Errno|NoneType|'\w+' object|subscript|unhashable|out of range$"
)

ODD = [
    "",
    "3",
    '"x"',
    "null",
    "[3]",
    "[null]",
    "{}",
    '[{"data":{}}]',
    '[{"data":3,"time":1,"diff":1}]',
    '[{"data":{"name":3},"time":1,"diff":1}]',
    '[{"data":{"price":"x"},"time":1,"diff":1}]',
    '[{"data":{"price":9999999999999999999999},"time":1,"diff":1}]',
    '[{"data":{},"time":"x","diff":1}]',
    '[{"data":{},"time":1,"diff":null}]',
    '[{"data":{},"time":[1,"a"],"diff":1}]',
    '{"lower":[0],"upper":[3]}',
    '{"lower":3,"upper":[],"counts":[]}',
    '{"lower":[0],"upper":[3],"counts":{}}',
    '{"lower":[0],"upper":[3],"counts":[3]}',
    '{"lower":[0],"upper":[3],"counts":[{"time":1}]}',
    '{"lower":[0],"upper":[3],"counts":[{"time":1,"count":"a"}]}',
    '{"lower":[0],"upper":[3],"counts":[{"time":1,"count":1}],"seal":5}',
    '{"lower":[0],"upper":[3],"counts":[{"time":1,"count":1,"content":"x"}],"seal":"y"}',
    '{"lower":[null],"upper":[3],"counts":[]}',
    '{"lower":[0],"upper":[3',
    '{"a":1,"a":2}',
    "[NaN]",
    f"[{'9' * 5000}]",
    "[" * 100_000,
    '"unterminated',
    "\0\0\0\0\1abc",
]


def told(error: object) -> str:
    """The error's text, which a person can read."""
    assert isinstance(error, TidemillError), repr(error)
    assert RAW.search(str(error)) is None, str(error)
    return str(error)


@pytest.mark.parametrize("text", [*(t.encode() for t in ODD), b"\xff", b'[{"data":"\xff"}]'])
def test_json_that_is_no_message(text: bytes) -> None:
    recovery = Recovery()
    try:
        recovery.push(from_json(text, "line 7"))
    except TidemillError as e:
        assert "line 7" in told(e)
    for kind in (0, 2):
        for digests in (False, True):
            errors: list[InvalidMessage] = []
            JsonCodec(SCHEMA, kind, digests=digests).decode([text], ["line 7"], errors)
            # Who does not ask for digests does not look at them.
            assert len(errors) == 1 or (b"seal" in text and not digests)
            assert all("In line 7." in told(e) for e in errors)
        form: dict[str, Any] = {"format": "json"} | ({"components": kind} if kind else {})
        (said,) = open_stream_decoder(form).decode([text], ["line 7"])
        if isinstance(said, InvalidMessage):
            told(said)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidMessage) as caught:
        from_json(b'{"lower":[0],"upper":[3]}', "line 1")
    assert caught.value.detail == 'In line 1. Progress has no "counts".'
    (said,) = open_stream_decoder({"format": "json"}).decode([b'[{"data":1,"time":2}]'], ["offset 5"])
    assert isinstance(said, InvalidMessage)
    assert said.detail == "In offset 5. An update has data, time and diff, not data, time."
    with pytest.raises(InvalidMessage, match="not a CDCv2 message in JSON") as caught:
        JsonCodec(SCHEMA).decode([b'[{"data":{"price":"x"},"time":1,"diff":1}]'])
    assert caught.value.detail == 'In message 0. Not a value of column "price", which is int64: "x".'


def test_avro_that_is_no_message() -> None:
    rng = Random(3)
    codec = AvroCodec(SCHEMA)
    rows = pa.RecordBatch.from_pylist([{"name": "pear", "price": 7}] * 3, schema=SCHEMA)
    messages = [
        *codec.encode(UpdateColumns.of(rows, [1, 2, 3])),
        *codec.encode(Progress([0], [5], [(1, 3)])),
    ]
    read = avro_reader(codec.avro_schema)
    server = open_stream_decoder({"format": "avro", "schema": codec.avro_schema, "framed": False})
    for _ in range(400):
        mangled = bytearray(rng.choice(messages))
        at = rng.randrange(len(mangled))
        if rng.randrange(2):
            mangled[at] ^= 1 << rng.randrange(8)
        else:
            del mangled[at:]
        for decode in (lambda m: codec.decode([m]), lambda m: read(m, "here")):
            try:
                decode(bytes(mangled))
            except TidemillError as e:
                told(e)
        (said,) = server.decode([bytes(mangled)], ["here"])
        if isinstance(said, InvalidMessage):
            told(said)


def test_avro_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "stream.avro"
    union: Any = json.loads(AvroCodec(SCHEMA).avro_schema)
    update = {"data": {"name": "pear", "price": 3}, "time": 1, "diff": 1}
    with open(path, "wb") as file:
        fastavro.writer(file, union, [[update]], codec="deflate")
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with open(path, "rb") as file:
            for said in avro_file(file, "f"):
                if isinstance(said, InvalidMessage):
                    told(said)
    with open(path, "wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": []}, [{}])
    with open(path, "rb") as file:
        (said,) = avro_file(file, "f")
    assert isinstance(said, InvalidMessage) and 'Progress has no "lower"' in told(said)


@pytest.mark.parametrize(
    "schema", ["", "{", '{"type":"nonsense"}', '"nonsense"', "3", '{"type":"record"}', "[]"]
)
def test_schemas_that_are_none(schema: str) -> None:
    for make in (avro_reader, lambda s: AvroCodec(SCHEMA, writer=s), lambda s: AvroCodec(SCHEMA, reader=s)):
        try:
            make(schema)
        except InvalidValue as e:
            assert "the schema is no Avro" in told(e)
    for form in ({"format": "avro", "schema": schema, "framed": False}, {"format": "nonsense"}):
        with pytest.raises(TidemillError) as caught:
            open_stream_decoder(form)
        told(caught.value)


def test_values_that_a_program_must_not_give() -> None:
    """Each is refused by name, where it is given."""
    recovery, columns = Recovery(), ColumnRecovery(SCHEMA)
    odd: list[Any] = [None, 3, "x", b"x", [], {}, object()]
    rows = pa.RecordBatch.from_pylist([{"name": "a", "price": 1}], schema=SCHEMA)
    others = pa.RecordBatch.from_pylist([{"price": 1}])
    for value in odd:
        for call in (
            lambda v: recovery.push(v),
            lambda v: columns.push(v),
            lambda v: recovery.push(Updates([v])),
            lambda v: recovery.push(Updates([("a", v, 1)]) if v != 3 else cast("Any", v)),
            lambda v: recovery.push(Updates([("a", 1, v)]) if v != 3 else cast("Any", v)),
            lambda v: recovery.push(Progress([v], []) if v != 3 else cast("Any", v)),
            lambda v: recovery.push(Progress([0], [9], [v])),
            lambda v: UpdateColumns.of(v, [1]),
            lambda v: UpdateColumns.of(rows, v),
            lambda v: JsonCodec(SCHEMA).encode(v),
            lambda v: AvroCodec(SCHEMA).encode(v),
            lambda v: JsonCodec(SCHEMA).decode([v]),
            lambda v: AvroCodec(SCHEMA).decode([v]),
        ):
            with pytest.raises(TidemillError) as caught:
                call(value)
            told(caught.value)
    for value in (3, "x", [None], [-1], [2**63], [(1, "a")], [()]):
        for call in (
            lambda v: Recovery(resume_from=v),
            lambda v: list(recover([], resume_from=v)),
            lambda v: Writer(SCHEMA, lower=v),
            lambda v: Writer(SCHEMA, lower=[0]).state(v),
            lambda v: resume_from([], v),
            lambda v: AvroCodec(SCHEMA).encode(Progress(v, [])),
            lambda v: JsonCodec(SCHEMA).encode(Progress([0], v)),
        ):
            with pytest.raises(TidemillError) as caught:
                call(value)
            told(caught.value)
    for codec in (AvroCodec(SCHEMA), JsonCodec(SCHEMA)):
        for said in (UpdateColumns.of(others, [1]), Progress([(0, 0)], [])):
            with pytest.raises(InvalidMessage) as caught:
                codec.encode(said)
            told(caught.value)


def test_a_disk_that_fails_is_told_without_numbers() -> None:
    told(SpillFailed.of(OSError(28, "No space left on device")))
    recovery = Recovery(max_stashed=1, spill_folder="/nonexistent/folder")
    with pytest.raises(SpillFailed) as caught:
        recovery.push(Updates([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
    assert caught.value.detail == "No such file or directory." and told(caught.value)


def test_resuming_from_times_of_another_kind() -> None:
    """It is the reader that was told something wrong, not the stream."""
    for start, said, names in (
        ([(1, 2)], Progress([0], [9]), "resume_from has products of 2 integers, and the stream has integers"),
        (
            [7],
            Updates([("a", (1, 2), 1)]),
            "resume_from has integers, and the stream has products of 2 integers",
        ),
    ):
        with pytest.raises(ResumeMismatch, match=names) as caught:
            list(recover([said], resume_from=cast("Any", start)))
        assert caught.value.hint == "Give the frontier of a snapshot of this stream." and told(caught.value)
    # Once the stream has confirmed it, a message of another kind is a bad message.
    recovery = Recovery(resume_from=[7])
    recovery.push(Progress([0], [9]))
    with pytest.raises(InvalidMessage, match="times of two kinds") as kinds:
        recovery.push(Progress([(0, 0)], []))
    assert not isinstance(kinds.value, ResumeMismatch)


def test_a_survey_that_resumes_from_times_of_another_kind() -> None:
    survey = Survey([(1, 2)])
    survey.take(StreamReport(Progress([0], [9])))
    with pytest.raises(ResumeMismatch):
        survey.findings()
    # It does not read a long stream to its end for that.
    with pytest.raises(ResumeMismatch):
        for n in range(200):
            survey.take(StreamReport(Progress([n], [n + 1])))
    # One such message among others is a bad message.
    survey = Survey([(1, 2)])
    for lower in (0, (0, 0)):
        survey.take(StreamReport(Progress(cast("Any", [lower]), [])))
    assert survey.findings().unread == 1
