"""What Debezium really wrote, read under DEBEZIUM UPSERT: the captures in `data`, and hostile variations.

The fold below is the envelope's meaning in a few lines; what the rows say must fold to what the captured
`after`s say.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from kafka.kafka_decoders import spec
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.contract import Decoder
from tidemill.decode.debezium.avro_changes import AvroChanges
from tidemill.decode.debezium.json_changes import bare_keys
from tidemill.decode.debezium.narrow_schema import narrowed
from tidemill.decode.debezium.placeholders import PLACEHOLDER, filled
from tidemill.decode.json import JsonDecoder
from tidemill.sources.kafka.envelopes import plan
from tidemill.sources.kafka.messages import RecordRows, TopicMessages
from tidemill.types.json import canonical_json

DATA = Path(__file__).parent / "data"

JSON_CAPTURES = [
    "pgf_a_snapshot",
    "pgf_b_crud",
    "pgf_c_pkupdate",
    "pgf_e_multirow",
    "pgf_h2_kill9_repeat",
    "pgf_g_truncate",
    "pgd_b_crud",
    "pgd_f_toast",
    "mdb_b_crud",
    "mdb_c_pkupdate",
    "mdb_h2_kill9_repeat",
    "mdb_g_truncate",
]


def captured(name: str) -> dict[str, list[dict[str, Any]]]:
    """By topic; without the transactions' own."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        record = json.loads(line)
        if not record["topic"].endswith(".transaction"):
            topics.setdefault(record["topic"], []).append(record)
    return topics


def told(part: Any) -> bytes | None:
    """As Kafka Connect's JsonConverter writes it."""
    return None if part is None else json.dumps(part, separators=(",", ":"), ensure_ascii=False).encode()


def messages(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> TopicMessages:
    offsets = np.arange(len(keys))
    return TopicMessages(0, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), offsets)


def json_rows(records: Sequence[tuple[Any, Any]]) -> pa.RecordBatch:
    layout = plan(
        spec("debezium upsert", key="json", value="json"), JsonDecoder().columns, JsonDecoder().columns
    )
    maker = RecordRows(layout, JsonDecoder(), JsonDecoder(), json_value=True)
    batch = maker.make(messages([k for k, _ in records], [v for _, v in records]))
    batch.validate(full=True)
    return batch


Relation = dict[Any, Any]


def plain(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python has them; infinite dates and times, which it has not, as numbers."""
    columns = [
        c.cast(pa.int64())
        if pa.types.is_timestamp(c.type)
        else c.cast(pa.int32())
        if pa.types.is_date(c.type)
        else c
        for c in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names).to_pylist()


def folded(rows: pa.RecordBatch, key: Sequence[str], relation: Relation | None = None) -> Relation:
    """The relation after the rows."""
    relation = {} if relation is None else relation
    for row in plain(rows):
        assert row["mz_error"] is None
        if row.get("mz_truncate"):
            relation.clear()
            continue
        at = tuple(row[name] for name in key)
        if row["mz_tombstone"]:
            relation.pop(at, None)
            continue
        visible = [name for name in row if not name.startswith("mz_")]
        for position in row.get("mz_unavailable") or ():
            if position < 0:
                name = visible[-1 - position]
                row[name] = filled(row[name], relation[at][name])
            else:
                row[visible[position]] = relation[at][visible[position]]
        relation[at] = {name: row[name] for name in visible}
    return relation


def upstream(records: Sequence[dict[str, Any]]) -> Relation:
    """The same by a plain reading of the capture."""
    relation: Relation = {}
    for record in records:
        key, value = record["key"], record["value"]
        if value is not None and value["op"] == "t":
            relation.clear()
        elif value is None or value["after"] is None:
            relation.pop(json.dumps(key), None)
        else:
            old = relation.get(json.dumps(key), {})
            after = {n: old[n] if v == PLACEHOLDER else v for n, v in value["after"].items()}
            relation[json.dumps(key)] = after
    return relation


@pytest.mark.parametrize("name", JSON_CAPTURES)
def test_captures_in_json(name: str) -> None:
    for topic, records in captured(name).items():
        batch = json_rows([(told(r["key"]), told(r["value"])) for r in records])
        found = {
            json.dumps(json.loads(k[0])): json.loads(v["data"]) for k, v in folded(batch, ["key"]).items()
        }
        assert found == upstream(records), topic


def test_captures_with_schemas_are_the_same_without() -> None:
    for topic, records in captured("pgs_schemas_enabled").items():
        wrapped = json_rows([(told(r["key"]), told(r["value"])) for r in records])
        assert wrapped.num_rows == len(records) > 0, topic

        def bare(part: Any) -> bytes | None:
            return None if part is None else told(part["payload"])

        assert wrapped == json_rows([(bare(r["key"]), bare(r["value"])) for r in records])
        for row, record in zip(wrapped.to_pylist(), records, strict=True):
            assert json.loads(row["key"]) == record["key"]["payload"]


class Writers:
    """The schemas beside a capture, in place of a registry."""

    def __init__(self) -> None:
        self._schemas = json.loads((DATA / "pga_avro_schemas.json").read_text())

    def schema_text(self, schema_id: int) -> str:
        return json.dumps(self._schemas[str(schema_id)])


def latest(records: Sequence[dict[str, Any]], part: str) -> str:
    return Writers().schema_text(max(r[f"{part}_id"] for r in records if r.get(f"{part}_id")))


@pytest.mark.parametrize("narrow", [False, True])
def test_captures_in_avro(narrow: bool) -> None:
    for topic, records in captured("pga_avro_raw").items():
        # A date of infinity is none that Avro's dates can say: an error of its key, which is not folded here.
        records = [r for r in records if not (topic.endswith("alltypes") and r["key"] == {"id": 3})]
        value = {
            "format": "avro",
            "schema": latest(records, "value"),
            "framed": True,
            "registry": {"url": "x"},
        }
        if narrow:
            value = dict(narrowed(value, {"after": None, "op": None}))
            assert {f["name"] for f in json.loads(value["schema"])["fields"]} == {"after", "op"}
        keys: Decoder = AvroDecoder(latest(records, "key"), framed=True, writers=Writers())
        values: Decoder = AvroDecoder(str(value["schema"]), framed=True, writers=Writers())
        layout = plan(spec("debezium upsert", key=value, value=value), keys.columns, values.columns)
        raw = [tuple(decoded(r.get(f"{part}_b64")) for part in ("key", "value")) for r in records]
        batch = RecordRows(layout, keys, values, json_value=False).make(
            messages([k for k, _ in raw], [v for _, v in raw])
        )
        batch.validate(full=True)
        wanted = upstream(records)
        found = folded(batch, ["id"])
        assert {json.dumps({"id": k[0]}) for k in found} == set(wanted), topic
        for key, row in found.items():
            after = wanted[json.dumps({"id": key[0]})]
            assert list(row) == list(after)
            for name in ("id", "name", "email", "status", "customer_id"):
                assert row.get(name) == after.get(name)


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# -- TOAST


AFTER = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "body", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
        {"name": "tags", "type": ["null", {"type": "array", "items": "string"}], "default": None},
    ],
}
CHANGE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "x.y",
    "fields": [
        {"name": "before", "type": ["null", AFTER], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": []}},
        {"name": "op", "type": "string"},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def avro_rows(records: Sequence[tuple[bytes | None, bytes | None]]) -> pa.RecordBatch:
    keys = AvroDecoder(json.dumps(KEY), framed=False)
    values = AvroDecoder(json.dumps(CHANGE), framed=False)
    form = {"format": "avro", "schema": json.dumps(CHANGE)}
    layout = plan(spec("debezium upsert", key=form, value=form), keys.columns, values.columns)
    maker = RecordRows(layout, keys, values, json_value=False)
    batch = maker.make(messages([k for k, _ in records], [v for _, v in records]))
    batch.validate(full=True)
    return batch


def number(n: int) -> bytes:
    return bytes([n * 2])


def text(of: bytes) -> bytes:
    return number(len(of)) + of


def change(op: bytes, *after: bytes) -> bytes:
    """Avro by hand: no before, perhaps an after."""
    return number(0) + (number(1) + b"".join(after) if after else number(0)) + text(op)


NONE, SOME = number(0), number(1)
TOAST = PLACEHOLDER.encode()


def test_placeholders_are_told_by_their_positions() -> None:
    rows = avro_rows(
        [
            (number(1), change(b"c", number(1), SOME + text(b"long"), SOME + text(b"raw"), NONE)),
            (number(1), change(b"u", number(1), SOME + text(TOAST), SOME + text(b"new"), NONE)),
            (
                number(1),
                change(
                    b"u",
                    number(1),
                    NONE,
                    SOME + text(TOAST),
                    SOME + number(1) + text(TOAST) + number(0),
                ),
            ),
            (number(1), change(b"u", number(1), NONE, NONE, SOME + number(2) + text(b"a") * 2 + number(0))),
        ]
    )
    assert rows.column("mz_unavailable").to_pylist() == [[], [1], [2, 3], []]
    assert folded(rows.slice(0, 3), ["id"])[(1,)]["raw"] == b"new"


LETTERS = list(TOAST)
# As Debezium 3.6.2 was seen to write it for uuid[].
TOAST_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
HSTORE = json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("of", "placeholder", "other"),
    [
        ({"type": "array", "items": ["null", "int"]}, LETTERS, [None, *LETTERS[1:]]),
        ({"type": "array", "items": "long"}, LETTERS, [*LETTERS, 1]),
        (
            {"type": "array", "items": {"type": "int", "connect.name": "io.debezium.time.Date"}},
            LETTERS,
            LETTERS[::-1],
        ),
        (
            {"type": "array", "items": {"type": "string", "connect.name": "io.debezium.data.Uuid"}},
            [TOAST_UUID],
            [TOAST_UUID, TOAST_UUID],
        ),
        ({"type": "string", "connect.name": "io.debezium.data.Json"}, HSTORE, f"[{HSTORE}]"),
        (
            {"type": "map", "values": ["null", "string"]},
            {PLACEHOLDER: PLACEHOLDER},
            {PLACEHOLDER: "", "a": ""},
        ),
    ],
)
def test_placeholders_of_arrays_and_maps(of: Any, placeholder: Any, other: Any) -> None:
    row = {
        "name": "Row",
        "type": "record",
        "fields": [{"name": "id", "type": "int"}, {"name": "v", "type": of}],
    }
    schema = {"name": "E", "type": "record", "fields": [{"name": "after", "type": ["null", row]}]}
    values = AvroDecoder(json.dumps(schema), framed=False)
    raw: list[bytes] = []
    for value in (placeholder, other, placeholder):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"after": {"id": 1, "v": value}})
        raw.append(out.getvalue())
    found = AvroChanges(values).read(pa.array([*raw, None], pa.binary()))
    assert found.errors is None
    assert {at: mark.tolist() for at, mark in (found.unavailable or {}).items()} == {
        1: [True, False, True, False]
    }


def test_batches_without_placeholders_or_truncates_have_no_column_for_them() -> None:
    rows = avro_rows([(number(1), change(b"c", number(1), NONE, NONE, NONE))])
    assert rows.schema.names[-2:] == ["mz_offset", "mz_tombstone"]


def test_truncate_delete_and_tombstone() -> None:
    rows = avro_rows(
        [
            (number(1), change(b"c", number(1), NONE, NONE, NONE)),
            (None, change(b"t")),
            (number(1), change(b"d")),
            (number(1), None),
            (None, change(b"d")),
            (None, None),
        ]
    )
    found = rows.to_pylist()
    assert [r["mz_truncate"] for r in found] == [False, True, False, False, False, False]
    assert [r["mz_tombstone"] for r in found] == [False, True, True, True, False, True]
    assert [r["mz_error"] is not None for r in found] == [False, False, False, False, True, False]
    assert found[4]["mz_error"].startswith("Envelope error: Upsert: Null key: ")
    assert [r["id"] for r in found] == [1, None, 1, 1, None, None]


def test_what_cannot_be_read_stands_in_its_slot() -> None:
    found = avro_rows(
        [(number(1), b"\x07"), (b"", change(b"c", number(1), NONE, NONE, NONE)), (b"", None)]
    ).to_pylist()
    assert found[0]["id"] == 1 and found[0]["mz_error"].startswith("Envelope error: Upsert: Value error: ")
    assert found[0]["mz_error"].endswith(", decoded key: (1)") and not found[0]["mz_tombstone"]
    assert found[1]["mz_key"] == b"\x01" and found[1]["mz_error"].startswith(
        "Envelope error: Upsert: Key decode: "
    )
    assert found[2]["mz_key"] == b"\x01" and found[2]["mz_error"] is None


# -- JSON


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"op":"c"}', "'after' column missing from debezium input"),
        (b"[1]", "'after' column missing from debezium input"),
        (b'{"schema":{},"payload":7}', "'after' column missing from debezium input"),
        (
            b"{",
            "json deserialization error: invalid input syntax for type json: The input string ended",
        ),
        (
            b'{"after":{}} x',
            'json deserialization error: invalid input syntax for type json: Token "x" is invalid.',
        ),
        (
            b'{"after":x}',
            'json deserialization error: invalid input syntax for type json: Token "x" is invalid.',
        ),
        (b'{"\\u0061fter":{}}', "json deserialization error: a member's name is written with escapes"),
        (b"\xff", 'json deserialization error: invalid byte sequence for encoding "UTF8": 0xff'),
        (
            b"",
            "json deserialization error: invalid input syntax for type json: The input string ended",
        ),
        (b'{"a":' * 100_000, "json deserialization error: objects and arrays are nested more than 200 deep"),
    ],
)
def test_json_that_is_no_change(value: bytes, why: str) -> None:
    (row,) = json_rows([(b'{"id":1}', value)]).to_pylist()
    assert row["mz_error"].startswith(f"Envelope error: Upsert: Value error: {why}")
    assert row["mz_error"].endswith(', decoded key: ("{""id"": 1}")')
    assert row["key"] == '{"id": 1}' and row["data"] is None and not row["mz_tombstone"]


def test_json_takes_after_as_it_stands() -> None:
    after = '{"n": NUMBER, "x": "}\\"", "op": "t"}'.replace("NUMBER", "1" * 5000)
    before = '{"after": 1, "op": "t", "x": "\\"after\\": 2"}'
    value = ' { "before" : BEFORE , "after" : AFTER , "op" : "u" } '
    value = value.replace("AFTER", after).replace("BEFORE", before)
    (row,) = json_rows([(b"1", value.encode())]).to_pylist()
    assert row["data"] == after
    assert "mz_truncate" not in row


def test_keys_are_taken_out_of_their_schema() -> None:
    plain = pa.array([b'{"id":1}', None], pa.binary())
    assert bare_keys(plain) is plain
    wrapped = pa.array(
        [b'{"schema":{},"payload":{"id":1}}', None, b'{"schema":1}', b'{"schema":', b"x"], pa.binary()
    )
    assert bare_keys(wrapped).to_pylist() == [b'{"id":1}', None, b'{"schema":1}', b'{"schema":', b"x"]


def test_a_payload_without_a_change_deletes() -> None:
    (row,) = json_rows([(b"1", b'{"schema":null,"payload":null}')]).to_pylist()
    assert row["mz_tombstone"] and row["mz_error"] is None


def test_json_tells_rows_that_lack_members() -> None:
    whole = b'{"after":{"id":1,"body":"long","tags":["a"]},"op":"c"}'
    lacking = b'{"after":{"id":1,"body":"__debezium_unavailable_value","tags":["b"]},"op":"u"}'
    within = b'{"after":{"id":1,"body":"not __debezium_unavailable_value itself"},"op":"u"}'
    numbers = b'{"after":{"id":1,"body":%s},"op":"u"}' % json.dumps(LETTERS, separators=(",", ":")).encode()
    ids = b'{"after":{"id":1,"body":["%s"]},"op":"u"}' % TOAST_UUID.encode()
    rows = json_rows([(b"1", value) for value in (whole, lacking, within, numbers, ids)])
    assert rows.column("mz_unavailable").to_pylist() == [[], [-2], [], [-2], [-2]]


@pytest.mark.parametrize(
    ("new", "old", "wanted"),
    [
        ('{"a": 1, "b": "P"}', '{"a": 0, "b": {"c": 1.50}}', '{"a": 1, "b": {"c": 1.5}}'),
        ('{"a": ["P"], "b": "B"}', '{"a": [1, 2], "b": "xyz"}', '{"a": [1, 2], "b": "xyz"}'),
        ('{"a": L, "b": ["U"]}', '{"a": [1, 2], "b": ["x"]}', '{"a": [1, 2], "b": ["x"]}'),
        (
            '{"a": {"P":"P"}, "b": "{\\"P\\":\\"P\\"}"}',
            '{"a": {"k": "v"}, "b": "x"}',
            '{"a": {"k": "v"}, "b": "x"}',
        ),
        ('{"a": ["U", "U"], "b": "U"}', '{"a": [], "b": "x"}', '{"a": ["U", "U"], "b": "U"}'),
        ('{"a": "P"}', '{"b": 1}', '{"a": "P"}'),
        ('{"a": {"b": "P"}}', '{"a": 1}', '{"a": {"b": "P"}}'),
        ('{"a\\"": "P", "b": 2}', '{"a\\"": "}, {"}', '{"b": 2, "a\\"": "}, {"}'),
        ('"P"', '{"a": 1}', '"P"'),
        ('{"a": "P"}', "{}", '{"a": "P"}'),
    ],
)
def test_members_are_filled_from_the_row_before(new: str, old: str, wanted: str) -> None:
    def spelt(text: str) -> str:
        of_bytes = base64.b64encode(PLACEHOLDER.encode()).decode()
        text = text.replace('"P', f'"{PLACEHOLDER}').replace('"B"', json.dumps(of_bytes))
        return text.replace(" L", f" {LETTERS}").replace('"U"', json.dumps(TOAST_UUID))

    assert filled(canonical_json(spelt(new)), canonical_json(old)) == canonical_json(spelt(wanted))
