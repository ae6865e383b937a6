"""The messages of pgoutput and rows by columns, beside a model that writes them."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postgres.pgoutput_model import (
    UNCHANGED,
    Value,
    begin,
    commit,
    relation,
    table,
    truncate,
    tuple_of,
)
from tidemill.sources.postgres.lsn import lsn_text, parse_lsn
from tidemill.sources.postgres.pgoutput import (
    ProtocolFault,
    parse_begin,
    parse_commit,
    parse_fault,
    parse_relation,
    parse_truncate,
    refuse,
    write_fault,
)
from tidemill.sources.postgres.tuples import PADDING, Payload, scan_tuples, text_column


def test_positions() -> None:
    assert lsn_text(0x0000000117245C0F) == "1/17245C0F"
    assert parse_lsn("1/17245C0F") == 0x0000000117245C0F
    for wrong in ("", "17", "x/1", "1/y"):
        with pytest.raises(ValueError):
            parse_lsn(wrong)


def test_messages() -> None:
    begun = parse_begin(begin(77))
    assert (begun.commit_lsn, begun.committed, begun.xid) == (77, 946_684_800_000_000, 7)
    ended = parse_commit(commit(77, 85))
    assert (ended.commit_lsn, ended.end_lsn) == (77, 85)
    with pytest.raises(ProtocolFault, match="ends before it begins"):
        parse_commit(commit(77, 77))
    assert parse_truncate(truncate(16_400, 2**32 - 1)) == (16_400, 2**32 - 1)
    assert parse_fault(write_fault(2**32 - 1, "gone\nö")) == (2**32 - 1, "gone\nö")
    described = parse_relation(relation(table(16_400, 3, "Größe")))
    assert (described.relid, described.schema, described.name) == (16_400, "public", "Größe")
    assert [(c.name, c.type, c.typmod) for c in described.columns] == [
        ("id", 23, -1),
        ("c1", 25, -1),
        ("c2", 25, -1),
    ]
    assert described.identity == "f"


@given(st.data())
def test_a_message_that_is_cut_off_is_an_error(data: st.DataObject) -> None:
    message, parse = data.draw(
        st.sampled_from(
            [
                (begin(77), parse_begin),
                (commit(77, 85), parse_commit),
                (relation(table(16_400, 3)), parse_relation),
                (truncate(1, 2), parse_truncate),
            ]
        )
    )
    with pytest.raises(ProtocolFault):
        parse(message[: data.draw(st.integers(1, len(message) - 1))])


@pytest.mark.parametrize("kind", b"SEcAbPKrpZ")
def test_what_was_not_asked_for_is_refused(kind: int) -> None:
    assert refuse(kind).sqlstate == "08P01"


VALUES = st.one_of(
    st.none(), st.just(UNCHANGED), st.text(max_size=5), st.text(min_size=10, max_size=40), st.just("x" * 5000)
)
ROWS = st.integers(0, 4).flatmap(
    lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=8)
)


def scanned(rows: list[list[Value]]) -> list[list[str | None]]:
    """What the values of each column are; of unchanged ones "u"."""
    messages = [os.urandom(3) + tuple_of(row) for row in rows]
    payload = Payload.of(b"".join(messages) + bytes(PADDING))
    ends = np.cumsum([len(m) for m in messages])
    at = ends - np.array([len(m) for m in messages]) + 3
    columns, behind = scan_tuples(payload, at, len(rows[0]), ends)
    assert behind.tolist() == ends.tolist()
    found: list[list[str | None]] = []
    for column in columns:
        texts: list[bytes | None] = text_column(payload, column).to_pylist()
        unchanged = (column.lengths == -2).tolist()
        found.append(
            ["u" if u else None if t is None else t.decode() for t, u in zip(texts, unchanged, strict=True)]
        )
    return found


@given(ROWS)
def test_columns_of_many_rows(rows: list[list[Value]]) -> None:
    wanted = [
        [value if isinstance(value, str) or value is None else "u" for value in column]
        for column in zip(*rows, strict=True)
    ]
    found = scanned(rows)
    assert found == wanted


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.data())
def test_a_row_that_does_not_end_in_its_message_is_an_error(values: list[str], data: st.DataObject) -> None:
    message = tuple_of(values)
    short = data.draw(st.integers(0, len(message) - 1))
    payload = Payload.of(message + bytes(PADDING))
    with pytest.raises(ProtocolFault):
        scan_tuples(payload, np.array([0]), len(values), np.array([short]))


def test_other_rows_than_announced_are_an_error() -> None:
    for message, width in (
        (tuple_of(["a", "b"]), 3),
        (struct.pack("!H", 1) + b"b" + struct.pack("!I", 1) + b"x", 1),
        (struct.pack("!H", 1) + b"?", 1),
        (struct.pack("!H", 1) + b"t" + struct.pack("!i", -5), 1),
    ):
        payload = Payload.of(message + bytes(PADDING))
        with pytest.raises(ProtocolFault):
            scan_tuples(payload, np.array([0]), width, np.array([len(message)]))
