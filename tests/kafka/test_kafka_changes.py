"""What Debezium really wrote, read under ENVELOPE DEBEZIUM, and hostile variations of it.

`expected` is the envelope's reading of one record in plain Python. Captures are read in batches that are cut
at random: what is found must not depend on it.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from kafka.kafka_decoders import spec
from kafka.test_kafka_debezium import Writers, captured, decoded, latest, told
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.debezium.placeholders import PLACEHOLDER
from tidemill.decode.json import JsonDecoder
from tidemill.errors import TidemillError
from tidemill.sources.contract import UNKNOWN_POSITION, ChangePhase, UpstreamError
from tidemill.sources.kafka.changes import ChangeRows
from tidemill.sources.kafka.envelopes import envelope_of, plan
from tidemill.sources.kafka.messages import TopicMessages
from tidemill.sources.kafka.outputs import Opened, open_outputs, output_of
from tidemill.types.json import canonical_json

LETTERS = [
    "a_snapshot",
    "b_crud",
    "c_pkupdate",
    "d_tx2tables",
    "e_multirow",
    "e2_copy_or_multi_update",
    "f_toast",
    "h1_graceful_restart",
    "h2_kill9_repeat",
    "i_interleaved",
    "j_incremental",
    "k_addcolumn",
    "l_types",
]
Record = dict[str, Any]
Row = dict[str, Any]


# -- the reference


def expected(value: Mapping[str, Any] | None, offset: int, after: Any, before: Any) -> Row | None:
    """The row of a record that can be read, but for the columns of the row after; None for none."""
    if value is None or value["op"] not in "cudrt":
        return None
    source = value["source"]
    phase = {"false": ChangePhase.STREAMED, "incremental": ChangePhase.INCREMENTAL}.get(
        source["snapshot"], ChangePhase.SNAPSHOT
    )
    if source["connector"] == "postgresql":
        first = json.loads(source["sequence"])[0]
        log = [UNKNOWN_POSITION if first is None else int(first), source["lsn"], 0]
        if phase is ChangePhase.INCREMENTAL:
            log[1] = int(json.loads(source["sequence"])[1])
        snapshot = [source["lsn"], 0, 0]
        end = f'database "{source["db"]}"'
    else:
        number = int(source["file"].rpartition(".")[2])
        log, snapshot = [number, source["pos"], source["row"]], [number, source["pos"], 0]
        end = f"server_id {source['server_id']}"
    origin = f'connector "{source["connector"]}", name "{source["name"]}"'
    timeline = {ChangePhase.STREAMED: f"{origin}, {end}", ChangePhase.SNAPSHOT: origin}.get(phase)
    return {
        "mz_error": None,
        "mz_key": None,
        "mz_offset": offset,
        "mz_tombstone": after is None,
        "mz_before": before,
        "mz_phase": int(phase),
        "mz_position": snapshot if phase is ChangePhase.SNAPSHOT else log,
        "mz_op": ord(value["op"]),
        "mz_committed": source["ts_us"],
        "mz_timeline": timeline,
    }


def expected_json(record: Record) -> Row | None:
    key, value = record["key"], record["value"]
    if value is not None and "op" not in value:
        return None

    def row(part: Any) -> Row | None:
        if part is None:
            return None
        return {"key": canonical_json(json.dumps(key)), "data": canonical_json(json.dumps(part))}

    after, before = (None, None) if value is None else (row(value["after"]), row(value["before"]))
    found = expected(value, record["offset"], after, before)
    own = {"key": canonical_json(json.dumps(key)), "data": after and after["data"]}
    return None if found is None else {**own, **found}


# -- reading


def json_maker() -> ChangeRows:
    decoder = JsonDecoder()
    layout = plan(spec("debezium", key="json", value="json"), decoder.columns, decoder.columns)
    assert layout.output.changes and layout.output.key == ("key", "mz_key")
    return ChangeRows(layout, decoder, decoder, json_value=True)


def make(
    maker: ChangeRows, records: Sequence[tuple[int, bytes | None, bytes | None]], partition: int = 0
) -> pa.RecordBatch:
    keys = pa.array([key for _, key, _ in records], pa.binary())
    values = pa.array([value for _, _, value in records], pa.binary())
    offsets = np.array([offset for offset, _, _ in records], np.int64)
    rows = maker.make(TopicMessages(partition, keys, values, offsets, topic="of.t"))
    rows.validate(full=True)
    assert rows.schema == maker.none().schema
    return rows


def encoded(records: Sequence[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r["offset"], told(r["key"]), told(r["value"])) for r in records]


def in_pieces(records: Sequence[Any], rng: random.Random) -> list[Sequence[Any]]:
    cuts = sorted({0, len(records), *(rng.randrange(len(records) + 1) for _ in range(3))})
    return [records[a:b] for a, b in itertools.pairwise(cuts)]


def with_rows(topics: Mapping[str, list[Record]]) -> dict[str, list[Record]]:
    """Without the topic of changes of the schema."""
    return {topic: records for topic, records in topics.items() if "." in topic}


# -- captures


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("prefix", ["pgf", "mdb"])
def test_captures_in_json(prefix: str, letter: str) -> None:
    rng = random.Random(f"{prefix}{letter}")
    topics = with_rows(captured(f"{prefix}_{letter}"))
    assert topics
    for topic, records in topics.items():
        wanted = [row for row in map(expected_json, records) if row is not None]
        for _ in range(3):
            maker = json_maker()
            found = [
                row for part in in_pieces(records, rng) for row in make(maker, encoded(part)).to_pylist()
            ]
            assert found == wanted, topic


def test_with_schemas_it_is_the_same_as_without() -> None:
    def bare(part: Any) -> Any:
        return None if part is None else part["payload"]

    for records in captured("pgs_schemas_enabled").values():
        maker = json_maker()
        plain = [{**r, "key": bare(r["key"]), "value": bare(r["value"])} for r in records]
        for r, p in zip(records, plain, strict=True):
            if p["value"] is not None and p["value"]["op"] == "u" and p["value"]["before"] is None:
                with pytest.raises(UpstreamError, match="does not have the row before it"):
                    make(maker, encoded([r]))
            else:
                row = expected_json(p)
                assert make(maker, encoded([r])).to_pylist() == ([] if row is None else [row])


def avro_maker(topic_records: Sequence[Record]) -> ChangeRows:
    def form(part: str) -> dict[str, Any]:
        schema = latest(topic_records, part)
        return {"format": "avro", "schema": schema, "framed": True, "registry": {"url": "x"}}

    of = spec("debezium", key=form("key"), value=form("value"))
    return avro_maker_of(of, framed=True)


def avro_maker_of(of: Mapping[str, Any], *, framed: bool) -> ChangeRows:
    value = envelope_of(of).value_format(of["value"])
    writers = Writers() if framed else None
    keys = AvroDecoder(of["key"]["schema"], framed=framed, writers=writers)
    values = AvroDecoder(value["schema"], framed=framed, writers=writers)
    return ChangeRows(plan(of, keys.columns, values.columns), keys, values, json_value=False)


@pytest.mark.parametrize("table", ["customers", "orders"])
def test_captures_in_avro(table: str) -> None:
    (records,) = [r for topic, r in captured("pga_avro_raw").items() if topic.endswith(table)]
    maker = avro_maker(records)
    narrow = maker._reader._decoder.columns  # type: ignore[attr-defined]
    (source,) = [column for column in narrow if column.name == "source"]
    assert {"before", "after", "op", "source"} == {column.name for column in narrow}
    assert {"sequence", "lsn", "connector"} <= {field.name for field in source.type.fields}
    assert not {"version", "table", "ts_ns"} & {field.name for field in source.type.fields}
    raw = [(r["offset"], decoded(r.get("key_b64")), decoded(r.get("value_b64"))) for r in records]
    found = make(maker, raw).to_pylist()
    wanted = [avro_row(r) for r in records if r["value"] is not None]
    assert [stripped(row) for row in found] == wanted and len(found) > 2


def avro_row(record: Record) -> Row:
    value = record["value"]
    row = expected(value, record["offset"], value["after"], value["before"])
    assert row is not None
    blank = dict.fromkeys(value["after"] or value["before"])
    return stripped({**blank, **record["key"], **(value["after"] or {}), **row})


def stripped(row: Row) -> Row:
    """Without numbers that the capture has as text."""
    before = row["mz_before"]
    kept = {name: value for name, value in row.items() if name != "amount"}
    return {**kept, "mz_before": before and {n: v for n, v in before.items() if n != "amount"}}


# -- Avro by hand, of what JSON captures have


CUSTOMER = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "email", "type": ["null", "string"], "default": None},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
POSTGRES = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        *({"name": name, "type": "string"} for name in ("connector", "name", "db")),
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": ["string", "null"], "default": "false"},
        {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "ts_us", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
    ],
}
BINLOG = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.mariadb",
    "fields": [
        *({"name": name, "type": "string"} for name in ("connector", "name", "db", "file")),
        *({"name": name, "type": "long"} for name in ("ts_ms", "ts_us", "server_id", "pos")),
        {"name": "snapshot", "type": ["string", "null"], "default": "false"},
        {"name": "gtid", "type": ["null", "string"], "default": None},
        {"name": "row", "type": "int"},
    ],
}


def envelope(source: Any = POSTGRES, row: Any = CUSTOMER) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "x.y",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ],
    }


def avro_spec(value: Any, key: Any = KEY, **more: Any) -> dict[str, Any]:
    def form(schema: Any) -> dict[str, Any]:
        return {"format": "avro", "schema": json.dumps(schema), "framed": False}

    return {**spec("debezium", key=form(key), value=form(value)), **more}


def avro(schema: Any, value: Any) -> bytes | None:
    if value is None:
        return None
    out = io.BytesIO()
    fastavro.schemaless_writer(out, copy.deepcopy(schema), value)
    return out.getvalue()


@pytest.mark.parametrize("prefix", ["pgf", "mdb"])
@pytest.mark.parametrize("letter", ["a_snapshot", "b_crud", "c_pkupdate", "i_interleaved", "j_incremental"])
def test_json_captures_as_avro(prefix: str, letter: str) -> None:
    schema = envelope(POSTGRES if prefix == "pgf" else BINLOG)
    (records,) = [r for topic, r in captured(f"{prefix}_{letter}").items() if topic.endswith("customers")]
    records = [r for r in records if set((r["value"] or {}).get("after") or KEYS) <= KEYS]
    rng = random.Random(f"{prefix}{letter}")
    raw = [(r["offset"], avro(KEY, r["key"]), avro(schema, r["value"])) for r in records]
    wanted = [avro_row(r) for r in records if r["value"] is not None]
    for _ in range(3):
        maker = avro_maker_of(avro_spec(schema), framed=False)
        assert [row for part in in_pieces(raw, rng) for row in make(maker, part).to_pylist()] == wanted


KEYS = {"id", "name", "email"}


class TwoWriters:
    def __init__(self, *schemas: Any) -> None:
        self._schemas = [json.dumps(schema) for schema in schemas]

    def schema_text(self, schema_id: int) -> str:
        return self._schemas[schema_id]


@pytest.mark.parametrize("prefix", ["pgf", "mdb"])
def test_a_column_that_is_added_is_ignored_in_avro(prefix: str) -> None:
    """The row before a later change then has it too, and yet is the row that was added without it."""
    source = POSTGRES if prefix == "pgf" else BINLOG
    tier = {"name": "tier", "type": ["null", "int"], "default": None}
    schemas = envelope(source), envelope(source, {**CUSTOMER, "fields": [*CUSTOMER["fields"], tier]})
    (records,) = [r for t, r in captured(f"{prefix}_k_addcolumn").items() if t.endswith("customers")]
    records = [r for r in records if r["value"] is not None and r["value"]["after"] is not None]
    assert any("tier" in (r["value"]["before"] or {}) for r in records)

    def framed(schema: int, record: Any) -> tuple[int, bytes | None, bytes]:
        value = avro(schemas[schema], record["value"]) or b""
        return record["offset"], avro(KEY, record["key"]), b"\0" + schema.to_bytes(4, "big") + value

    plain = copy.deepcopy(records)
    for r in plain:
        for part in ("before", "after"):
            if r["value"][part] is not None:
                del r["value"][part]["tier"]
    values = AvroDecoder(
        envelope_of(avro_spec(schemas[0])).value_format(avro_spec(schemas[0])["value"])["schema"],
        framed=True,
        writers=TwoWriters(*schemas),
    )
    keys = AvroDecoder(json.dumps(KEY), framed=False)
    layout = plan(avro_spec(schemas[0]), keys.columns, values.columns)
    maker = ChangeRows(layout, keys, values, json_value=False)
    found = make(maker, [framed(0, r) for r in plain] + [framed(1, r) for r in records]).to_pylist()
    assert found[: len(plain)] == found[len(plain) :] == [avro_row(r) for r in plain]


# -- records that cannot be read


def changed(**fields: Any) -> dict[str, Any]:
    """An update of a PostgreSQL table; fields of `source` begin with an underscore."""
    (records,) = [r for topic, r in captured("pgf_b_crud").items() if topic.endswith("customers")]
    (value,) = [copy.deepcopy(r["value"]) for r in records if r["value"] and r["value"]["op"] == "u"]
    for name, new in fields.items():
        of, name = (value["source"], name[1:]) if name.startswith("_") else (value, name)
        if new is MISSING:
            del of[name]
        else:
            of[name] = dict(new) if isinstance(new, dict) else new
    return value


MISSING = object()
ID = b'{"id":4}'


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "json deserialization error: invalid input syntax for type json: The input string ended"),
        (b"\xff", 'json deserialization error: invalid byte sequence for encoding "UTF8": 0xff'),
        (b"[1]", "'after' column missing from debezium input"),
        (told(changed(op=MISSING)), "'op' column missing from debezium input"),
        (told(changed(before=MISSING)), "'before' column missing from debezium input"),
        (told(changed(after=MISSING)), "'after' column missing from debezium input"),
        (told(changed(source=MISSING)), "'source' column missing from debezium input"),
        (told(changed(after=7)), "'after' of debezium input is no object"),
        (told(changed(before="x")), "'before' of debezium input is no object"),
        ((told(changed()) or b"")[:-1] + b"}}", "json deserialization error: invalid input syntax"),
        (
            (told(changed()) or b"").replace(b"Dia", b"\\u0000"),
            "json deserialization error: unsupported Unicode",
        ),
    ],
)
def test_values_that_cannot_be_read_are_errors_of_their_own(value: bytes, why: str) -> None:
    good = told(changed()) or b""
    rows = make(json_maker(), [(7, ID, good), (8, ID, value), (9, ID, value), (10, ID, good)], 3).to_pylist()
    assert [row["mz_offset"] for row in rows] == [7, 8, 9, 10]
    first, bad, again, last = rows
    assert first["mz_error"] is None and {**last, "mz_offset": 7} == first
    assert bad["mz_error"].startswith(f"Decode error: {why}")
    assert bad["mz_error"].endswith('\nTopic "of.t", partition 3, offset 8.')
    assert bad["mz_key"] == b"\x02" + (3).to_bytes(4, "big") + (8).to_bytes(8, "big") != again["mz_key"]
    rest = {n: v for n, v in bad.items() if n not in ("mz_error", "mz_key", "mz_offset")}
    assert rest.pop("mz_tombstone") is False
    assert rest.pop("mz_phase") == ChangePhase.STREAMED and rest.pop("mz_op") == 0
    assert set(rest.values()) == {None}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "a change without a key"),
        (b"{", "json deserialization error: invalid input"),
        (b'{"id":"\xff"}', "json deserialization error: invalid byte sequence"),
    ],
)
def test_a_key_that_cannot_be_read_is_one_too(key: bytes | None, why: str) -> None:
    good = told(changed())
    rows = make(json_maker(), [(1, key, good), (2, key, None), (3, ID, good)]).to_pylist()
    many = make(json_maker(), [(n, key, good) for n in range(20)])
    assert many.column("mz_error").null_count == 0
    assert [row["mz_offset"] for row in rows] == [1, 3]
    assert rows[0]["mz_error"].startswith(f"Decode error: {why}") and rows[1]["mz_error"] is None
    assert rows[0]["mz_before"] is None and rows[0]["data"] is None and rows[0]["mz_timeline"] is None
    assert rows[0]["mz_position"] is None and rows[0]["mz_op"] == 0


def test_avro_that_cannot_be_read() -> None:
    schema = envelope()
    maker = avro_maker_of(avro_spec(schema), framed=False)
    good = avro(schema, changed())
    rows = make(maker, [(1, avro(KEY, {"id": 4}), b"\x07"), (2, b"", good), (3, avro(KEY, {"id": 4}), good)])
    found = rows.to_pylist()
    assert [(row["mz_error"] or "")[:40] for row in found] == [
        "Decode error: avro deserialization error",
        "Decode error: avro deserialization error",
        "",
    ]
    assert [row["id"] for row in found] == [None, None, 4]


@pytest.mark.parametrize("op", ["m", "x", "", "cc", None, 5, ["u"]])
def test_other_operations_change_no_row(op: Any) -> None:
    odd = changed(op=op, before=None, after=None)
    assert make(json_maker(), [(1, None, told(odd)), (2, ID, told(odd))]).num_rows == 0
    assert make(json_maker(), [(1, None, b'{"op":"m","source":{},"message":{}}')]).num_rows == 0


# -- what stops the source

TOAST = {"id": 4, "name": PLACEHOLDER, "email": "di@x"}
FULL = "REPLICA IDENTITY FULL"


@pytest.mark.parametrize(
    ("fields", "primary", "found", "hint"),
    [
        ({"before": None}, "does not have the row before it", "op is u, before is null.", FULL),
        (
            {"op": "d", "before": None, "after": None},
            "does not have the row before it",
            "op is d, before is null, after is null.",
            FULL,
        ),
        ({"after": None}, "does not have the row after it", "op is u, after is null.", "every op but d"),
        ({"op": "c", "before": None, "after": None}, "does not have the row after it", "op is c", "every op"),
        ({"op": "r", "before": None, "after": None}, "does not have the row after it", "op is r", "every op"),
        (
            {"op": "t", "before": None, "after": None},
            "cannot read a TRUNCATE",
            "op is t",
            "DEBEZIUM UPSERT empties",
        ),
        ({"_connector": "db2"}, "does not know the positions", 'The connector is "db2"; known are', "UPSERT"),
        ({"_connector": None}, "does not know the positions", 'The connector is "None"', "UPSERT"),
        ({"_connector": "sqlserver"}, "cannot read changes of SQL Server", "have one position", "UPSERT"),
        ({"source": {}}, "does not know the positions", "The connector is", "UPSERT"),
        ({"_lsn": None}, "no position", "lsn null", "Debezium 2.0"),
        ({"_lsn": MISSING}, "no position", "lsn null", "Debezium 2.0"),
        ({"_lsn": -1}, "no position", "lsn -1", "Debezium 2.0"),
        ({"_lsn": 1.5}, "no position", "lsn 1.5", "Debezium 2.0"),
        ({"_lsn": 10**19}, "no position", "lsn 1000", "Debezium 2.0"),
        ({"_lsn": True}, "no position", "lsn true", "Debezium 2.0"),
        ({"_ts_us": None, "_ts_ms": None}, "no position", "ts_us null, ts_ms null", "Debezium 1.0"),
        ({"_sequence": MISSING}, "no position", "sequence null", "Debezium 2.0"),
        ({"_sequence": None}, "no position", "sequence null", "Debezium 2.0"),
        ({"_sequence": ""}, "no position", "sequence ,", "Debezium 2.0"),
        ({"_sequence": "[]"}, "no position", "sequence []", "Debezium 2.0"),
        ({"_sequence": '["x","1"]'}, "no position", 'sequence ["x","1"]', "Debezium 2.0"),
        ({"_sequence": '["12'}, "no position", 'sequence ["12', "Debezium 2.0"),
        ({"_sequence": '["1234567890123456789","1"]'}, "no position", "sequence", "Debezium 2.0"),
        ({"_sequence": "[nul"}, "no position", "sequence [nul", "Debezium 2.0"),
        ({"_sequence": '["","1"]'}, "no position", "sequence", "Debezium 2.0"),
        ({"_snapshot": "later"}, "belongs to a snapshot", 'snapshot of source is "later"', "Known are false"),
        ({"after": {"name": "x"}}, "another key", "A column of the key is missing", "columns of the table"),
        ({"before": {"id": 45}}, "another key", "has another value there", "columns of the table"),
        ({"before": TOAST}, "left out as unchanged", "before does not have it either", FULL),
        ({"before": TOAST, "after": TOAST}, "left out as unchanged", "before does not have it", FULL),
        ({"op": "c", "before": None, "after": TOAST}, "left out as unchanged", "before does not", FULL),
    ],
)
def test_what_breaks_a_constraint_stops_the_source(
    fields: dict[str, Any], primary: str, found: str, hint: str
) -> None:
    good, bad = told(changed()), told(changed(**fields))
    with pytest.raises(UpstreamError) as stopped:
        make(json_maker(), [(11, ID, good), (12, ID, bad), (13, ID, bad), (14, ID, b"{")], 2)
    error = stopped.value
    assert error.permanent and not error.transient and primary in error.primary
    assert error.detail is not None and found in error.detail
    assert error.detail.startswith('Topic "of.t", partition 2, offset 12, key {"id": 4}: ')
    assert error.hint is not None and hint in error.hint
    assert error.sqlstate != "58000"
    assert make(json_maker(), [(11, ID, good), (14, ID, b"{")]).num_rows == 2


@pytest.mark.parametrize("sequence", [MISSING, None, "", "[", '["', '["12', '["12"', "[nul"])
def test_a_position_is_not_that_of_the_next_change(sequence: Any) -> None:
    """The texts of a column stand one behind the other."""
    for behind in (changed(), changed(_sequence='","7"]'), changed(_sequence="l,")):
        values = [told(changed()), told(changed(_sequence=sequence)), told(behind), told(changed())]
        with pytest.raises(UpstreamError, match="no position") as stopped:
            make(json_maker(), [(n, ID, value) for n, value in enumerate(values)])
        assert "offset 1," in (stopped.value.detail or "")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"_file": None}, "file null"),
        ({"_file": "binlog"}, "file binlog"),
        ({"_file": "binlog.1x"}, "file binlog.1x"),
        ({"_pos": MISSING}, "pos null"),
        ({"_row": MISSING}, "row null"),
        ({"_server_id": MISSING}, "server_id null"),
    ],
)
def test_positions_of_a_binlog(fields: dict[str, Any], found: str) -> None:
    source = {"connector": "mysql", "name": "m", "db": "d", "snapshot": "false", "ts_ms": 5}
    source |= {"file": "binlog.000012", "pos": 7, "row": 2, "server_id": 9}
    value = changed(source=source, **fields)
    with pytest.raises(UpstreamError, match="no position") as stopped:
        make(json_maker(), [(1, ID, told(value))])
    assert found in (stopped.value.detail or "") and "Debezium 1.0" in (stopped.value.hint or "")
    (row,) = make(json_maker(), [(1, ID, told(changed(source=source)))]).to_pylist()
    assert row["mz_position"] == [12, 7, 2] and row["mz_committed"] == 5000
    with pytest.raises(UpstreamError) as stopped:
        make(json_maker(), [(1, ID, told(changed(source=source, before=None)))])
    assert "binlog_row_image=FULL" in (stopped.value.hint or "")


def test_a_timeline_of_mysql_has_the_origin_of_its_transactions() -> None:
    source = {"connector": "mysql", "name": "m", "snapshot": "false", "ts_us": 5, "file": "b.000001"}
    source |= {"pos": 7, "row": 0, "server_id": 9}
    one, two = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
    gtids = [None, f"{one}:5", f"{one}:6", f"{two}:tag:1", None]
    values = [told(changed(source={**source, "gtid": gtid})) for gtid in gtids]
    rows = make(json_maker(), [(n, ID, value) for n, value in enumerate(values)])
    plain = 'connector "mysql", name "m", server_id 9'
    with_origin = [f"{plain}, GTID {one}", f"{plain}, GTID {one}", f"{plain}, GTID {two}"]
    assert rows.column("mz_timeline").to_pylist() == [plain, *with_origin, plain]


def test_two_connectors_in_one_batch() -> None:
    other = {"connector": "mariadb", "name": "m", "snapshot": "true", "ts_ms": 5, "file": "b.000003"}
    other |= {"pos": 7, "row": 4, "server_id": 0}
    values = [changed(), changed(op="r", before=None, source=other), changed(_name="pgg")]
    rows = make(json_maker(), [(n, ID, told(value)) for n, value in enumerate(values)])
    assert rows.column("mz_position").to_pylist() == [
        [31231296, 31231296, 0],
        [3, 7, 0],
        [31231296] * 2 + [0],
    ]
    timelines = rows.column("mz_timeline").to_pylist()
    assert timelines[1] == 'connector "mariadb", name "m"' and timelines[2] == (timelines[0] or "").replace(
        "pgf", "pgg"
    )


def test_the_fault_of_the_first_record_is_told() -> None:
    truncate, bare = changed(op="t", before=None, after=None), changed(before=None)
    for first, second, text in ((truncate, bare, "TRUNCATE"), (bare, truncate, "row before it")):
        with pytest.raises(UpstreamError, match=text):
            make(json_maker(), [(1, ID, told(first)), (2, ID, told(second))])
    with pytest.raises(UpstreamError, match="TRUNCATE") as stopped:
        make(json_maker(), [(1, None, told(truncate))])
    assert stopped.value.detail == (
        'Topic "of.t", partition 0, offset 1, no key: op is t: the rows that it takes away are not in the '
        "message."
    )


@pytest.mark.parametrize("prefix", ["pgf", "pgd", "mdb"])
def test_truncates_of_captures(prefix: str) -> None:
    for records in captured(f"{prefix}_g_truncate").values():
        with pytest.raises(UpstreamError, match="cannot read a TRUNCATE"):
            make(json_maker(), encoded(records))


@pytest.mark.parametrize("letter", ["b_crud", "d_tx2tables", "f_toast", "h2_kill9_repeat", "k_addcolumn"])
def test_replica_identity_default_is_told(letter: str) -> None:
    seen = False
    for records in captured(f"pgd_{letter}").values():
        if all(r["value"] is None or r["value"]["op"] != "u" for r in records):
            continue
        with pytest.raises(UpstreamError, match="does not have the row before it") as stopped:
            make(json_maker(), encoded(records))
        assert stopped.value.hint is not None and stopped.value.hint.startswith(f"ALTER TABLE ... {FULL}")
        assert stopped.value.sqlstate == "55000"
        seen = True
    assert seen


# -- values that were left out


def test_a_value_that_was_left_out_is_that_of_the_row_before() -> None:
    old = {"id": 4, "name": "long", "email": "di@x"}
    value = changed(before=old, after={**TOAST, "email": "new"})
    wanted = {"id": 4, "name": "long", "email": "new"}
    (row,) = make(json_maker(), [(1, ID, told(value))]).to_pylist()
    assert json.loads(row["data"]) == wanted
    schema = envelope()
    key = avro(KEY, {"id": 4})
    maker = avro_maker_of(avro_spec(schema), framed=False)
    (row,) = make(maker, [(1, key, avro(schema, value))]).to_pylist()
    assert {name: row[name] for name in wanted} == wanted and row["mz_before"] == old
    for fields in ({"before": TOAST}, {"op": "c", "before": None, "after": TOAST}):
        with pytest.raises(UpstreamError, match="left out as unchanged"):
            make(maker, [(1, key, avro(schema, changed(**fields)))])


def test_what_cannot_be_filled_because_it_cannot_be_read_is_an_error() -> None:
    old = {"id": 4, "name": "long", "email": "di@x"}
    for spelt in ("before", "after"):
        value = (told(changed(before=old, after={**TOAST, "email": "new"})) or b"").decode()
        at = value.index(f'"{spelt}":')
        bad = value[:at] + value[at:].replace('"email":"', '"email":"\\u0000', 1)
        (row,) = make(json_maker(), [(1, ID, bad.encode())]).to_pylist()
        assert "unsupported Unicode escape sequence" in row["mz_error"]


def test_halves_of_surrogate_pairs_in_a_source() -> None:
    value = (told(changed(_name="NAME")) or b"").replace(b"NAME", b"\\ud800")
    (row,) = make(json_maker(), [(1, ID, value)]).to_pylist()
    assert 'name "?"' in row["mz_timeline"]
    value = (told(changed()) or b"").replace(b'"op":"u"', b'"op":"\\ud800"')
    assert make(json_maker(), [(1, ID, value)]).num_rows == 0


PAIR = {"type": "record", "name": "Key", "fields": [{"name": n, "type": "int"} for n in ("b", "a")]}
PAIRED = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "a", "type": "int"}, {"name": "x", "type": "string"}, {"name": "b", "type": "int"}],
}


def test_a_key_of_two_columns_in_avro() -> None:
    schema = envelope(row=PAIRED)
    maker = avro_maker_of(avro_spec(schema, PAIR), framed=False)
    old, new = {"a": 1, "x": "o", "b": 2}, {"a": 1, "x": "n", "b": 2}
    key = avro(PAIR, {"a": 1, "b": 2})

    def read(before: Row | None, after: Row | None, op: str) -> Row:
        value = changed(before=before, after=after, op=op)
        (row,) = make(maker, [(1, key, avro(schema, value))]).to_pylist()
        return row

    changes = read(old, new, "u")
    assert {name: changes[name] for name in new} == new and changes["mz_before"] == old
    gone = read(old, None, "d")
    assert {name: gone[name] for name in new} == {"a": 1, "x": None, "b": 2} and gone["mz_tombstone"]
    for before, after in ((old, {**new, "a": 2}), ({**old, "b": 1}, new)):
        with pytest.raises(UpstreamError, match="another key") as stopped:
            read(before, after, "u")
        assert "key (2,1): " in (stopped.value.detail or "")


def test_an_opened_output_makes_changes() -> None:
    of = spec("debezium", key="json", value="json")
    output = output_of("of.t", of)
    assert output.changes and output.place == 'topic "of.t"'
    (opened,) = open_outputs("of.t", [of])
    assert isinstance(opened, Opened)
    keys, values = pa.array([ID], pa.binary()), pa.array([told(changed())], pa.binary())
    rows = opened.make(TopicMessages(0, keys, values, np.arange(1)), {})
    assert rows.num_rows == 1 and rows.schema == opened.none().schema
    assert rows.column("mz_before").type.names == [column.name for column in output.desc.columns]


def test_only_changes_of_postgresql_leave_values_out() -> None:
    read = changed(op="r", before=None, after=TOAST, _snapshot="true")
    other = {"connector": "mariadb", "name": "m", "snapshot": "false", "ts_ms": 5, "file": "b.000003"}
    other |= {"pos": 7, "row": 4, "server_id": 0}
    for value in (read, changed(source=other, after=TOAST)):
        (row,) = make(json_maker(), [(1, ID, told(value))]).to_pylist()
        assert json.loads(row["data"]) == TOAST


# -- spellings of JSON


def reordered(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    names = list(value)
    rng.shuffle(names)
    return {name: value[name] for name in names}


def test_any_order_and_spacing_is_read_the_same() -> None:
    rng = random.Random(5)
    (records,) = [r for topic, r in captured("pgf_b_crud").items() if topic.endswith("customers")]
    wanted = make(json_maker(), encoded(records)).to_pylist()
    for _ in range(20):
        spelt: list[tuple[int, bytes | None, bytes | None]] = []
        for r in records:
            value = None if r["value"] is None else reordered(r["value"], rng)
            text = None if value is None else json.dumps(value, indent=rng.choice([None, 1])).encode()
            spelt.append((r["offset"], json.dumps(r["key"], indent=1).encode(), text))
        assert make(json_maker(), spelt).to_pylist() == wanted


def odd_ones() -> list[tuple[bytes | None, bytes | None]]:
    """Records that are nearly those of a common shape, but are read otherwise."""
    text = told(changed()) or b""
    other = {"connector": "mariadb", "name": "m", "snapshot": "true", "ts_ms": 5, "file": "b.000003"}
    other |= {"pos": 7, "row": 4, "server_id": 0}
    values: list[Any] = [
        changed(before={"id": 4, "name": "\u00e4\t\\", "email": '"after":{}'}),
        changed(_name='a "quoted" \\ name'),
        changed(_db="tab\t"),
        changed(op="r", before=None, source=other),
        changed(op="d", after=None),
        changed(op="c", before=None),
        changed(op="m", before=None, after=None),
        changed(op=None),
        changed(op="uu"),
        changed(transaction=None),
        changed(_ts_us=None),
        changed(_sequence='[null,"31231296"]'),
        changed(before=TOAST, op="r", _snapshot="true"),
        changed(after={**TOAST, "email": "new"}),
        changed(after={"id": 4, "name": {"a": [1, 2]}, "email": None}),
        changed(after={"email": None, "id": 4, "name": 1.50}),
        changed(after={"id": 4}),
        changed(before=5),
        changed(after=[4]),
        changed(before=MISSING),
    ]
    found: list[tuple[bytes | None, bytes | None]] = [(ID, told(value)) for value in values]
    found += [(None, text), (b"{", text), (b'{ "id" : 4}', text), (ID, None), (ID, b"{"), (ID, b"\xff")]
    found += [(ID, text + b" "), (ID, text[:-1]), (ID, text.replace(b"Dia", b"\\u0044"))]
    found += [(ID, text[:-1] + b',"before":{"id":4}}'), (ID, b"[%s]" % text)]
    found += [(ID, b'{"schema":{},"payload":%s}' % text), (ID, text.replace(b'"op"', b'"\\u006fp"'))]
    return found


def test_records_of_one_shape_are_read_as_each_by_itself() -> None:
    """By columns, which takes several messages of a shape: also those between that have another."""
    rng = random.Random(11)
    common = [
        (told(r["key"]), told(r["value"]))
        for name in ("pgf_b_crud", "pgf_c_pkupdate", "pgf_i_interleaved", "mdb_b_crud", "pgf_j_incremental")
        for topic, records in captured(name).items()
        if topic.endswith(("customers", "orders"))
        for r in records
    ]
    single = json_maker()
    seen: list[int] = []
    for _ in range(5):
        odd = odd_ones()
        picked = rng.choices(common, k=150) + rng.choices(odd, k=rng.choice([0, 20, 200]))
        rng.shuffle(picked)
        records = [(n, key, value) for n, (key, value) in enumerate(picked)]
        wanted = [row for record in records for row in make(single, [record]).to_pylist()]
        maker = json_maker()
        read = maker._reader._columns.read  # type: ignore[attr-defined]

        def counted(*given: Any, read: Any = read) -> Any:
            groups = read(*given)
            seen.append(sum(len(group.rows) for group in groups))
            return groups

        maker._reader._columns.read = counted  # type: ignore[attr-defined]
        assert [row for part in in_pieces(records, rng) for row in make(maker, part).to_pylist()] == wanted
    assert sum(seen) > 400


def test_faults_are_told_in_records_of_one_shape() -> None:
    good = told(changed())
    for fields, text in (
        ({"op": "t"}, "TRUNCATE"),
        ({"before": None}, "row before it"),
        ({"before": {"id": 5, "name": "x", "email": "y"}}, "another key"),
        ({"_lsn": None}, "no position"),
        ({"_connector": "db2"}, "this connector"),
    ):
        bad = told(changed(**fields))
        records = [(n, ID, good) for n in range(20)] + [(n, ID, bad) for n in range(20, 40)]
        with pytest.raises(UpstreamError, match=text) as stopped:
            make(json_maker(), records)
        assert ", offset 20, key" in (stopped.value.detail or "")


def test_the_last_of_two_members_counts() -> None:
    text = (told(changed()) or b"").decode()
    later = text[:-1] + ',"after":{"id":4,"name":"last"},"op":"u"}'
    (row,) = make(json_maker(), [(1, ID, later.encode())]).to_pylist()
    assert json.loads(row["data"]) == {"id": 4, "name": "last"}
    nested = changed(after={"id": 4, "name": '"after":{"id":5}', "email": {"after": {"id": 6}, "op": "d"}})
    (row,) = make(json_maker(), [(1, ID, told(nested))]).to_pylist()
    assert json.loads(row["data"]) == nested["after"]


def test_a_key_may_stand_anywhere_in_its_row() -> None:
    value = changed(before={"name": "a", "id": 4}, after={"name": "b", "id": 4})
    assert make(json_maker(), [(1, ID, told(value))]).num_rows == 1
    key = {"name": "a", "id": 4}
    value = changed(before={**key, "n": 1}, after={"id": 4, "n": 2, "name": "a"})
    assert make(json_maker(), [(1, told(key), told(value))]).num_rows == 1
    with pytest.raises(UpstreamError, match="another key"):
        make(json_maker(), [(1, b"{}", told(value))])
    with pytest.raises(UpstreamError, match="another key"):
        make(json_maker(), [(1, b"4", told(value))])


def test_schemas_around_messages_may_change_and_lie() -> None:
    value = told(changed()) or b""
    plain = make(json_maker(), [(1, ID, value)]).to_pylist()
    maker = json_maker()
    schemas = [b"{}", b'{"payload":{"before":1}}', b'"x"', b"{}", b'{"doc":"\\"payload\\":{\\"before\\":"}']
    for schema in schemas:
        wrapped = b'{"schema":%s,"payload":%s}' % (schema, value)
        assert make(maker, [(1, ID, wrapped), (2, ID, None)]).to_pylist() == plain, schema
    for bad in (b'{"schema":{},"payload":%s' % value, b'{"schema":{},"payload":%s}}' % value):
        (row,) = make(maker, [(1, ID, bad)]).to_pylist()
        assert row["mz_error"].startswith("Decode error: json deserialization error: ")
    assert make(maker, [(1, ID, b'{"schema":{},"payload":null}')]).num_rows == 0


# -- layouts that are refused


def refused(of: Mapping[str, Any]) -> TidemillError:
    keys = AvroDecoder(of["key"]["schema"], framed=False)
    values = AvroDecoder(envelope_of(of).value_format(of["value"])["schema"], framed=False)
    with pytest.raises(TidemillError) as error:
        plan(of, keys.columns, values.columns)
    assert error.value.hint
    return error.value


def without(schema: Any, name: str) -> Any:
    return {**schema, "fields": [field for field in schema["fields"] if field["name"] != name]}


def test_columns_of_a_change_that_are_missing() -> None:
    assert plan(avro_spec(envelope()), *columns_of(envelope())).output.changes
    for name in ("op", "source"):
        found = refused(avro_spec(without(envelope(), name)))
        assert found.primary == f"'{name}' column missing from debezium input"
    schema = without(envelope(), "before")
    schema["fields"][0]["type"] = ["null", CUSTOMER]
    assert refused(avro_spec(schema)).primary == "'before' column missing from debezium input"
    schema = without(envelope(), "after")
    found = refused(avro_spec(schema))
    assert found.primary == "'after' column missing from debezium input"
    assert (found.hint or "").startswith("ENVELOPE DEBEZIUM reads what")
    schema = envelope()
    schema["fields"][1]["type"] = ["null", {**without(CUSTOMER, "email"), "name": "Other"}]
    assert "are different records" in refused(avro_spec(schema)).primary


def columns_of(schema: Any) -> tuple[Any, Any]:
    decoders = [AvroDecoder(json.dumps(each), framed=False) for each in (KEY, schema)]
    return decoders[0].columns, decoders[1].columns


def named(connector: str, fields: Any = POSTGRES) -> Any:
    return envelope({**fields, "namespace": f"io.debezium.connector.{connector}"})


def test_sources_without_positions_are_told_when_the_schema_is_seen() -> None:
    assert "cannot read changes of SQL Server" in refused(avro_spec(named("sqlserver"))).primary
    found = refused(avro_spec(named("oracle")))
    assert 'The connector is "oracle"' in (found.detail or "") and found.sqlstate == "0A000"
    found = refused(avro_spec(envelope(without(POSTGRES, "sequence"))))
    assert "lacks the position" in found.primary and found.detail == "It has no sequence."
    assert "Debezium 2.0" in (found.hint or "")
    assert refused(avro_spec(named("mysql"))).detail == "It has no file, pos, row, server_id."
    # Under another name it may be of any connector.
    plan(avro_spec(envelope({**POSTGRES, "namespace": "mine"})), *columns_of(envelope()))
    other = envelope({**without(POSTGRES, "lsn"), "namespace": "mine"})
    assert refused(avro_spec(other)).detail == "It has no lsn."


def test_clauses_that_do_not_fit() -> None:
    decoder = JsonDecoder().columns

    def check(text: str, **fields: Any) -> None:
        of = {**spec("debezium", key="json", value="json"), **fields}
        with pytest.raises(TidemillError, match=re.escape(text)):
            plan(of, decoder, decoder)

    check("Cannot use INCLUDE KEY with ENVELOPE DEBEZIUM: Debezium", include=[{"what": "key"}])
    for what in ("partition", "offset", "timestamp", "headers"):
        check(f"Cannot use INCLUDE {what.upper()} with ENVELOPE DEBEZIUM", include=[{"what": what}])
    check("ON ERROR DEAD LETTER is not possible", dead_letter=True)
    check("ENVELOPE DEBEZIUM requires that KEY FORMAT be specified", key=None)
    check("requires that VALUE FORMAT is set to AVRO", value={"format": "text"})
    check("requires that KEY FORMAT and VALUE FORMAT are the same", key={"format": "text"})
    empty = avro_spec(envelope(), key={**KEY, "fields": []})
    with pytest.raises(TidemillError, match="requires a key with columns"):
        plan(empty, (), columns_of(envelope())[1])


Damage = Callable[[bytes, random.Random], bytes]


def flipped(message: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(message))
    return message[:at] + bytes([rng.randrange(256)]) + message[at + 1 :]


def cut(message: bytes, rng: random.Random) -> bytes:
    return message[: rng.randrange(len(message))]


@pytest.mark.parametrize("damage", [flipped, cut])
def test_damaged_records_hurt_nobody_else(damage: Damage) -> None:
    """A damaged message is an error, another change, or stops the source: it never raises anything else, and
    its neighbours are read as before."""
    rng = random.Random(damage.__name__)
    schema = envelope()
    good = changed()
    whole = make(json_maker(), [(1, ID, told(good))]).to_pylist()
    framed = [(1, avro(KEY, {"id": 4}), avro(schema, good))]
    makers = [
        (json_maker(), (1, ID, told(good)), whole),
        (maker := avro_maker_of(avro_spec(schema), framed=False), framed[0], make(maker, framed).to_pylist()),
    ]
    for reader, (_, key, value), wanted in makers:
        for _ in range(150):
            bad = damage(value or b"", rng)
            try:
                rows = make(reader, [(1, key, value), (2, key, bad), (3, key, value)]).to_pylist()
            except UpstreamError as error:
                assert ", offset 2," in (error.detail or "")
                continue
            assert rows[0] == wanted[0] and {**rows[-1], "mz_offset": 1} == wanted[0]
            assert len(rows) <= 3
