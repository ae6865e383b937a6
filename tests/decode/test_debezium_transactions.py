"""The block of a change in JSON, however its message is written and whatever its neighbours are."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemill.decode.debezium.transactions import TransactionReader


def change(order: int) -> dict[str, object]:
    return {
        "after": {"transaction": {"id": "9:9"}, "note": '"transaction":{"id":"8:8"}'},
        "source": {"snapshot": "false", "sequence": f"s{order}"},
        "op": "c",
        "transaction": {"id": f"1:{order}", "total_order": 7, "data_collection_order": order},
    }


PLAIN = json.dumps(change(1)).encode()
ENVELOPED = json.dumps({"schema": {"fields": [1]}, "payload": change(2)}).encode()
INDENTED = json.dumps(change(3), indent=1).encode()
BROKEN, EMPTY, OTHER = b'{"op":', b"", b'{"op": 1, "transaction": [2]}'


@pytest.mark.parametrize(
    "others",
    [[], [None], [ENVELOPED], [INDENTED], [BROKEN], [EMPTY], [OTHER], [ENVELOPED, None, INDENTED, BROKEN]],
    ids=["alone", "tombstone", "enveloped", "indented", "broken", "empty", "other types", "all"],
)
def test_blocks_of_changes(others: list[bytes | None]) -> None:
    messages = [PLAIN, *others, PLAIN]
    found = TransactionReader({"format": "json"}).changes(pa.array([b"{}", *messages], pa.binary()).slice(1))
    orders = {PLAIN: 1, ENVELOPED: 2, INDENTED: 3}
    wanted = [orders.get(message or b"", 0) for message in messages]
    assert found.orders.tolist() == wanted
    assert found.ids.to_pylist() == [f"1:{order}" if order else None for order in wanted]
    assert found.sequences.to_pylist() == [f"s{order}" if order else None for order in wanted]


def test_changes_of_the_log_without_a_transaction() -> None:
    bare = {**change(1), "transaction": None}
    snapshot = {**bare, "op": "r"}
    values = pa.array([json.dumps(each).encode() for each in (change(1), bare, snapshot)])
    assert TransactionReader({"format": "json"}).changes(values).logged.tolist() == [False, True, False]
