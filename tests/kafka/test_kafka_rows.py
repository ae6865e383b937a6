"""Records into rows, under ENVELOPE NONE and UPSERT: columns, slots and the texts of errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka.kafka_decoders import BAD, Numbers, OneColumn, spec
from tidemill.decode.contract import Decoder, with_original
from tidemill.query.multiset import SourceError, check_errors
from tidemill.sources.kafka.columns import headers_column
from tidemill.sources.kafka.envelopes import plan
from tidemill.sources.kafka.messages import MAX_TIMESTAMP_MS, RecordRows, TopicMessages
from tidemill.types.arrow import error_parts

# As clients match them.
NULL_KEY = (
    "Envelope error: Upsert: Null key: record with NULL key in UPSERT source; "
    "to retract this error, produce a record upstream with a NULL key and NULL value"
)
GARBAGE = 'it is garbage (original text: garbage, original bytes: "67617262616765")'

# (key, value[, headers])
Said = tuple[Any, ...]


def messages(records: Sequence[Said], *, first: int = 100) -> TopicMessages:
    headers: list[list[tuple[str, bytes | None]]] = [r[2] if len(r) > 2 else [] for r in records]
    return TopicMessages(
        7,
        pa.array([r[0] for r in records], pa.binary()),
        pa.array([r[1] for r in records], pa.binary()),
        np.arange(first, first + len(records)),
        np.arange(len(records)) * 1000,
        headers_column(headers),
    )


def rows(
    of: dict[str, Any], records: Sequence[Said], key: Decoder | None = None, value: Decoder | None = None
) -> list[dict[str, Any]]:
    key = key or OneColumn()
    value = value or OneColumn()
    layout = plan(of, key.columns, value.columns)
    batch = RecordRows(layout, key, value, json_value=False).make(messages(records))
    batch.validate(full=True)
    return batch.to_pylist()


def test_none_gives_a_row_per_record_but_for_those_that_say_nothing() -> None:
    found = rows(spec(), [(b"k", b"v"), (None, None), (b"k", None), (None, b"w")])
    assert found == [{"text": "v"}, {"text": None}, {"text": "w"}]


def test_none_with_metadata() -> None:
    include = [
        {"what": "key", "as": None},
        {"what": "partition", "as": None},
        {"what": "offset", "as": None},
        {"what": "timestamp", "as": None},
        {"what": "headers", "as": None},
        {"what": "header", "as": "trace", "header": "t", "bytes": True},
        {"what": "header", "as": "who", "header": "w"},
    ]
    headers = [("t", b"\xff"), ("w", b"a"), ("w", "ä".encode()), ("n", None)]
    found = rows(spec(include=include), [(b"k", b"v", headers), (None, b"w")])
    assert found == [
        {
            "key": "k",
            "text": "v",
            "partition": 7,
            "offset": Decimal(100),
            "timestamp": datetime(1970, 1, 1),
            "headers": [{"key": k, "value": v} for k, v in headers],
            "trace": b"\xff",
            "who": "ä",
        },
        {
            "key": None,
            "text": "w",
            "partition": 7,
            "offset": Decimal(101),
            "timestamp": datetime.fromtimestamp(1, UTC).replace(tzinfo=None),
            "headers": [],
            "trace": None,
            "who": None,
        },
    ]


def test_none_tells_errors_and_goes_on() -> None:
    include = [{"what": "key", "as": None}, {"what": "header", "as": "h", "header": "h"}]
    found = rows(
        spec(include=include),
        [(b"k", b"v"), (b"k", BAD), (BAD, b"v"), (b"k", b"v", [("h", b"\xff")])],
    )
    assert found[0] == {"key": "k", "text": "v", "h": None, "mz_error": None}
    no_text = "header 'h' is no text: invalid byte sequence for encoding \"UTF8\": 0xff "
    no_text += '(original text: \ufffd, original bytes: "ff")'
    assert [r["mz_error"] for r in found[1:]] == [
        f"Decode error: {GARBAGE}",
        f"Decode error: {GARBAGE}",
        f"Decode error: {no_text}",
    ]
    assert all(r["key"] is None and r["text"] is None for r in found[1:])


@pytest.mark.parametrize("envelope", ["none", "upsert"])
def test_errors_tell_their_record_and_are_legible(envelope: str) -> None:
    said = messages([(b"k", b"v"), (None, None), (b"k\n\x1b[1m", BAD)])
    key, value = OneColumn(), OneColumn()
    layout = plan(spec(envelope), key.columns, value.columns)
    batch = RecordRows(layout, key, value, json_value=False).make(replace(said, topic="of\ttools"))
    *_, error = batch.column("mz_error").to_pylist()
    primary, detail = error_parts(error)
    assert detail == 'Topic "of\\ttools", partition 7, offset 102.'
    if envelope == "none":
        assert primary == f"Decode error: {GARBAGE}"
    else:
        # As a record is shown, and then what a terminal would obey.
        assert primary == rf'Envelope error: Upsert: Value error: {GARBAGE}, decoded key: ("k\n\x1b[1m")'
    # A query of the relation tells it in the same words, and what to do.
    updates = pa.table({"mz_error": [error], "mz_diff": [1]})
    with pytest.raises(SourceError) as failed:
        check_errors(updates)
    assert (failed.value.primary, failed.value.detail) == (primary, detail)
    assert failed.value.hint == (
        "SELECT * FROM mz_internal.mz_source_errors lists what could not be read. "
        "ON ERROR DEAD LETTER of a Kafka or PubNub source, or of a table of one, puts such messages aside."
    )


@pytest.mark.parametrize(
    "error",
    [
        "division by zero",
        "Decode error: no",
        "Decode error: no\nIn partition 0, offset 8.",
        "Decode error: no\nIn file cut, byte 8.",
        'invalid input syntax for type integer: "x"\nTopic "t".',
    ],
)
def test_errors_about_no_message_of_a_topic_speak_of_no_dead_letters(error: str) -> None:
    with pytest.raises(SourceError) as failed:
        check_errors(pa.table({"mz_error": [error], "mz_diff": [1]}))
    assert failed.value.hint is None


def test_what_a_message_says_cannot_move_a_terminal() -> None:
    shown = with_original("bad", "a\0\x1b[31m\r\n\u202eb\u2028é\\n".encode())
    assert shown.startswith(r"bad (original text: a\x00\x1b[31m\r\n\u202eb\u2028é\n, original bytes: ")


def test_errors_are_short_however_long_what_they_quote() -> None:
    long = "x" * 100_000
    shown = with_original(f'invalid: Token "{long}" (in field "a.b")', b"m")
    assert shown.startswith('invalid: Token "xxx') and len(shown) < 1200
    assert shown.endswith('xxx" (in field "a.b") (original text: m, original bytes: "6d")')
    (found,) = rows(spec("upsert"), [(long.encode(), BAD)])
    assert found["key"] == long
    assert len(found["mz_error"]) < 1300 and ", decoded key: (xxx" in found["mz_error"]


def test_upsert_slots() -> None:
    found = rows(
        spec("upsert"),
        [
            (b"k", b"v"),
            (b"k", None),
            (None, b"v"),
            (None, None),
            (BAD, b"v"),
            (BAD, None),
            (b"k", BAD),
        ],
    )
    assert [(r["key"], r["text"], r["mz_key"], r["mz_tombstone"]) for r in found] == [
        ("k", "v", None, False),
        ("k", None, None, True),
        (None, None, b"\x00", False),
        (None, None, b"\x00", True),
        (None, None, b"\x01garbage", False),
        (None, None, b"\x01garbage", True),
        ("k", None, None, False),
    ]
    assert [r["mz_error"] for r in found] == [
        None,
        None,
        NULL_KEY,
        None,
        f"Envelope error: Upsert: Key decode: {GARBAGE}",
        None,
        f"Envelope error: Upsert: Value error: {GARBAGE}, decoded key: (k)",
    ]
    assert [r["mz_offset"] for r in found] == list(range(100, 107))


def test_upsert_shows_keys_of_several_fields_and_packs_them() -> None:
    keys = Numbers("a", "b")
    of = spec("upsert", key={"format": "csv"}, include=[{"what": "key", "as": "k"}])
    found = rows(of, [(b"1,2", b"v"), (b"3,4", BAD), (None, None)], keys)
    assert [r["k"] for r in found] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, None]
    assert found[1]["mz_error"].endswith(", decoded key: (3,4)")


def test_upsert_keeps_order_of_tombstones_and_errors_too() -> None:
    include = [{"what": "timestamp", "as": "ts"}]
    of = spec("upsert", include=include, order_by=["timestamp", "offset"])
    found = rows(of, [(b"k", b"v"), (b"k", None), (b"k", BAD)])
    assert [(r["mz_order1"], r["mz_order2"]) for r in found] == [(0, 100), (1000, 101), (2000, 102)]


def test_inline_errors_are_rows() -> None:
    of = spec("upsert", inline_errors="error")
    found = rows(of, [(b"k", b"v"), (b"k", BAD), (None, BAD), (b"k", None)])
    assert [(r["key"], r["error"], r["text"]) for r in found[:2]] == [
        ("k", None, "v"),
        ("k", {"description": GARBAGE}, None),
    ]
    assert [r["mz_error"] for r in found] == [None, None, NULL_KEY, None]
    assert found[3]["mz_tombstone"]
    # They have their place in an order too: as rows they win and lose by it.
    of = spec("upsert", inline_errors="error", include=[{"what": "offset", "as": "o"}], order_by=["offset"])
    (_, bad) = rows(of, [(b"k", b"v"), (b"k", BAD)])
    assert (bad["error"], bad["o"], bad["mz_order1"]) == ({"description": GARBAGE}, Decimal(101), 101)


def test_a_timestamp_that_is_none_is_an_error_of_its_key() -> None:
    of = spec("upsert", include=[{"what": "timestamp", "as": None}])
    layout = plan(of, OneColumn().columns, OneColumn().columns)
    stamps = np.array([2**63 - 1, MAX_TIMESTAMP_MS, -1, MAX_TIMESTAMP_MS + 1])
    said = replace(messages([(b"k%d" % n, b"v") for n in range(4)]), timestamps=stamps)
    batch = RecordRows(layout, OneColumn(), OneColumn(), json_value=False).make(said)
    texts = [None if e is None else e.partition(",")[0] for e in batch.column("mz_error").to_pylist()]
    wrong = "Envelope error: Upsert: Value error: timestamp out of range: "
    assert texts == [f"{wrong}{2**63 - 1}", None, None, f"{wrong}{MAX_TIMESTAMP_MS + 1}"]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [
        None,
        MAX_TIMESTAMP_MS * 1000,
        None,
        None,
    ]


def test_a_wrong_header_is_an_error_of_its_key() -> None:
    of = spec("upsert", include=[{"what": "header", "as": "h", "header": "h"}])
    found = rows(
        of, [(b"k", b"v", [("h", b"\xff")]), (b"k", b"v", [("h", b"a\0")]), (b"k", None, [("h", b"\xff")])]
    )
    wrong = "Envelope error: Upsert: Value error: header 'h' is no text: invalid byte sequence for encoding "
    for row, byte in zip(found, ("ff", "00"), strict=False):
        assert row["mz_error"].startswith(f'{wrong}"UTF8": 0x{byte} (')
    assert found[2]["mz_error"] is None


OPTIONAL = st.sampled_from([None, b"", b"a", b"b", BAD])


@given(st.lists(st.tuples(OPTIONAL, OPTIONAL), max_size=20), st.booleans())
def test_upsert_equals_a_plain_reading(records: list[tuple[Any, Any]], inline: bool) -> None:
    of = spec("upsert", inline_errors="error" if inline else None)
    for (key, value), row in zip(records, rows(of, records), strict=True):
        slot = b"\x00" if key is None else b"\x01" + key if key == BAD else None
        assert row["mz_key"] == slot
        assert row["mz_tombstone"] is (value is None)
        assert row["key"] == (None if key is None or slot else key.decode())
        wrong = value is not None and (slot is not None or (value == BAD and not inline))
        assert (row["mz_error"] is not None) is wrong
        readable = value is not None and value != BAD and slot is None
        assert row["text"] == (value.decode() if value is not None and readable else None)
        if inline and slot is None and value is not None:
            assert (row["error"] is not None) is (value == BAD)


def test_no_rows_have_the_columns_of_rows() -> None:
    for envelope in ("none", "upsert"):
        of = spec(envelope, include=[{"what": "timestamp", "as": None}, {"what": "headers", "as": None}])
        layout = plan(of, OneColumn().columns, OneColumn().columns)
        maker = RecordRows(layout, OneColumn(), OneColumn(), json_value=False)
        assert maker.none().schema == maker.make(messages([(b"k", b"v")])).schema
        assert maker.none().num_rows == 0
