"""ON ERROR DEAD LETTER: which messages become rows and which dead letters, in every format and envelope. And
what becomes of records without a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka.kafka_decoders import spec
from tidemill.decode.protobuf import compiled
from tidemill.decode.resolve import avro_inline, csv_format, protobuf_inline, regex_format
from tidemill.sources.kafka import dead_letters as dead_letters_module
from tidemill.sources.kafka.columns import headers_column
from tidemill.sources.kafka.dead_letters import ASIDE, DESC, twin
from tidemill.sources.kafka.messages import RowMaker, TopicMessages
from tidemill.sources.kafka.outputs import Opened, open_outputs, output_of
from tidemill.types.arrow import ERROR_COLUMN, storage_schema

SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}'


PROTO = 'syntax = "proto3"; message M { int32 id = 1; }'

# A format, a message that it can read, and one that it cannot.
FORMATS: dict[str, tuple[Mapping[str, Any], bytes, bytes]] = {
    "json": ({"format": "json"}, b'{"a": 1}', b'{"a": '),
    "text": ({"format": "text"}, b"a", b"\xff"),
    "csv": (csv_format(2, ",").format, b"a,b", b"a,b,c"),
    "regex": (regex_format("(?P<n>[0-9]+)").format, b"12", b"a"),
    "avro": (avro_inline(SCHEMA, framed=False).format, b"\x02", b"\x02\x02"),
    "protobuf": (protobuf_inline("M", compiled(PROTO, {})).format, b"\x08\x01", b"\x08"),
}


def messages(records: Sequence[tuple[bytes | None, bytes | None]], *, first: int = 100) -> TopicMessages:
    return TopicMessages(
        7,
        pa.array([r[0] for r in records], pa.binary()),
        pa.array([r[1] for r in records], pa.binary()),
        np.arange(first, first + len(records)),
        np.arange(len(records)) * 1000,
        headers_column([[] for _ in records]),
        "orders",
    )


def both(of: dict[str, Any], said: TopicMessages) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows and the dead letters that the output makes of the messages."""
    aside = {**of, ASIDE: True}
    output, letters = open_outputs("orders", [aside, twin(aside, "letters")])
    assert isinstance(output, Opened) and isinstance(letters, Opened) and output.rows is letters.rows
    made: dict[RowMaker, pa.RecordBatch] = {}
    found = [output.make(said, made), letters.make(said, made)]
    for batch in found:
        batch.validate(full=True)
    return found[0].to_pylist(), found[1].to_pylist()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("envelope", ["none", "upsert"])
def test_what_cannot_be_read_is_put_aside(name: str, envelope: str) -> None:
    form, good, bad = FORMATS[name]
    rows, letters = both(spec(envelope, value=form), messages([(b"k", good), (b"l", bad), (b"m", good)]))
    assert len(rows) == 2 and all(row.get(ERROR_COLUMN) is None for row in rows)
    (letter,) = letters
    error = letter.pop("error")
    assert error.startswith(
        "Decode error: " if envelope == "none" else "Envelope error: Upsert: Value error: "
    )
    assert letter == {
        "partition": 7,
        "offset": Decimal(101),
        "timestamp": datetime(1970, 1, 1, 0, 0, 1),
        "key": b"l",
        "value": bad,
    }


@pytest.mark.parametrize("name", [*FORMATS, "bytes"])
def test_none_without_a_value_is_a_row_of_nulls(name: str) -> None:
    """With a key it says something, and no format calls it an error; an empty value is a message like any."""
    form = {"format": "bytes"} if name == "bytes" else FORMATS[name][0]
    of = spec("none", value=form, include=[{"what": "offset", "as": "o"}])
    rows, letters = both(of, messages([(b"k", None), (None, None)]))
    assert letters == []
    ((*values, offset),) = [tuple(row.values()) for row in rows]
    assert offset == Decimal(100) and values and set(values) == {None}


def test_keys_that_are_missing_or_wrong_are_put_aside_under_upsert() -> None:
    said = [(None, b"v"), (b"\xff", b"v"), (b"k", b"v"), (b"k", None), (b"\xff", None), (None, None)]
    rows, letters = both(spec("upsert"), messages(said))
    assert [(r["key"], r["mz_tombstone"]) for r in rows if r["mz_key"] is None] == [("k", False), ("k", True)]
    assert [(r["offset"], r["key"], r["error"].split(": ")[2]) for r in letters] == [
        (100, None, "Null key"),
        (101, b"\xff", "Key decode"),
    ]


def test_changes_of_debezium_that_cannot_be_read() -> None:
    form = {"format": "json"}
    good = b'{"op": "c", "before": null, "after": {"id": 1}}'
    said = [(b'{"id": 1}', good), (b'{"id": 2}', b"{"), (b"{", good), (b'{"id": 1}', None), (None, good)]
    rows, letters = both(spec("debezium upsert", key=form, value=form), messages(said))
    assert [(r["key"], r["mz_tombstone"]) for r in rows] == [('{"id": 1}', False), ('{"id": 1}', True)]
    assert [int(r["offset"]) for r in letters] == [101, 102, 104]
    assert letters[0]["value"] == b"{" and letters[1]["key"] == b"{"


def test_errors_that_are_asked_for_as_a_column_stay_rows() -> None:
    rows, letters = both(spec("upsert", inline_errors="bad"), messages([(b"k", b"\xff"), (None, b"v")]))
    assert [r["bad"] is not None for r in rows] == [True]
    assert [r["offset"] for r in letters] == [101]


def test_a_dead_letter_is_cut_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "MAX_KEPT_BYTES", 3)
    _, (letter,) = both(spec("upsert"), messages([(b"\xff12345", b"12345")]))
    assert (letter["key"], letter["value"]) == (b"\xff12", b"123")


def test_the_relation_is_the_same_whatever_the_output_is() -> None:
    output = output_of("orders", twin(spec("upsert", include=[{"what": "offset", "as": "error"}]), "x"))
    assert (output.name, output.desc, output.key) == ("x", DESC, None)
    aside = {**spec("upsert"), ASIDE: True}
    _, letters = open_outputs("orders", [aside, twin(aside, "x")])
    assert isinstance(letters, Opened)
    assert letters.wanted.timestamps and letters.none().schema.names == storage_schema(DESC).names
    # Without ON ERROR nothing is put aside, and outputs that say the same decode once.
    one, two = open_outputs("orders", [spec("upsert"), spec("upsert", name="other")])
    assert isinstance(one, Opened) and isinstance(two, Opened) and one.rows is two.rows
    assert one.make(messages([(b"k", b"\xff")]), {}).column(ERROR_COLUMN).null_count == 0


SAID = st.sampled_from([None, b"", b"a", b"\xff"])


@given(st.lists(st.tuples(SAID, SAID), max_size=20), st.sampled_from(["none", "upsert"]), st.integers(0, 20))
def test_each_message_is_one_or_the_other(
    records: list[tuple[bytes | None, bytes | None]], envelope: str, cut: int
) -> None:
    """Whatever the batches, every message that says anything is a row or a dead letter, never both."""
    of = spec(envelope, include=[{"what": "key", "as": None}, {"what": "offset", "as": "o"}])
    said = messages(records)
    first, second = (said.where(mask) for mask in (np.arange(len(said)) < cut, np.arange(len(said)) >= cut))
    rows, letters = both(of, said)
    parts = [both(of, part) for part in (first, second)]
    assert letters == [letter for _, some in parts for letter in some]
    speaking = [
        100 + n for n, (k, v) in enumerate(records) if envelope == "upsert" or k is not None or v is not None
    ]
    assert sorted([int(r["o"]) for r in rows] + [int(r["offset"]) for r in letters]) == speaking
    wrong = [
        100 + n
        for n, (k, v) in enumerate(records)
        if (envelope == "none" and b"\xff" in (k, v))
        or (envelope == "upsert" and v is not None and (k in (None, b"\xff") or v == b"\xff"))
    ]
    assert [int(r["offset"]) for r in letters] == wrong
