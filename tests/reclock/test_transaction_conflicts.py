"""What the transaction topic and the tables cannot both mean is an error with what each of them says; nothing
of it is taken in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reclock.test_transaction_cuts import Reader
from reclock.test_transaction_restarts import one, read_on, reading
from reclock.upstream import MARIADB, POSTGRES, Told, Transaction
from tidemill.errors import TidemillError
from tidemill.reclock.transactions import log as log_module
from tidemill.reclock.transactions.ids import Origins, UnknownId
from tidemill.reclock.transactions.log import TransactionConflict

LATER = 60_000


def written(kind: str = POSTGRES) -> Reader:
    """Three transactions with a change each in both tables, and one that begins a minute later."""
    both = Transaction((one("a"), one("b")))
    reader = reading(kind, both, both, both, Transaction((one("a"),)))
    reader.upstream.write(12)
    reader.upstream.now += LATER
    reader.upstream.write(100)
    return reader


def conflict(reader: Reader, primary: str) -> str:
    """The detail. Whoever asks again gets the same."""
    details: list[str | None] = []
    for _ in range(2):
        with pytest.raises(TransactionConflict) as caught:
            read_on(reader)
        assert caught.value.primary == primary and caught.value.permanent and caught.value.hint
        details.append(caught.value.detail)
    assert details[0] == details[1] and details[0] is not None
    return details[0]


def test_without_conflict() -> None:
    assert read_on(written()) == 4


def test_an_end_without_begin() -> None:
    reader = written()
    # Of the second transaction.
    del reader.upstream.announced[2]
    detail = conflict(reader, "the transaction topic has an END without BEGIN")
    assert detail == 'In topic "tx", offset 2 ends transaction "701:1006", and no transaction is open.'
    assert reader.cuts.log.read == 0 and not len(reader.cuts.log.announced)


def test_another_end_than_begin() -> None:
    reader = written()
    del reader.upstream.announced[1:3]
    detail = conflict(reader, "the transaction topic has an END without BEGIN")
    assert (
        detail == 'In topic "tx", offset 1 ends transaction "701:1006", and transaction "700:1000" is open.'
    )


def test_two_transactions_that_end_at_one_number() -> None:
    reader = written()
    for end in (False, True):
        reader.upstream.announced.insert(4 + end, Told(end, "990:1002", {} if end else None, 1_000_009))
    detail = conflict(reader, "the transaction topic contradicts itself")
    assert detail == 'In topic "tx", transactions "700" and "990:1002" both end at 1002.'


def test_a_new_transaction_behind_a_later_one() -> None:
    reader = written()
    for end in (False, True):
        reader.upstream.announced.insert(4 + end, Told(end, "990:1004", {} if end else None, 1_000_009))
    detail = conflict(reader, "the transaction topic contradicts itself")
    assert detail == 'In topic "tx", transaction "990:1004" ends at 1004, behind 1006.'


@pytest.mark.parametrize("kind", [POSTGRES, MARIADB])
def test_a_repetition_with_more_changes(kind: str) -> None:
    reader = written(kind)
    begin, end = reader.upstream.announced[2:4]
    again = [begin, Told(True, end.id, {"a": 1, "b": 3}, end.time)]
    reader.upstream.announced[4:4] = again
    detail = conflict(reader, "the transaction topic contradicts itself")
    assert detail == (
        f'In topic "tx", transaction "{end.id}" has 1 changes of "b", and 3 where it is repeated.'
    )


def test_more_changes_than_were_announced() -> None:
    reader = written()
    reader.upstream.announced[3] = Told(True, "701:1006", {"a": 1}, reader.upstream.announced[3].time)
    detail = conflict(reader, "a transaction has more changes than it announced")
    assert detail == (
        'Topic "tx" says that transaction "701" has 0 changes of "b"; topic "b" has one with the number 1.'
    )


def test_fewer_changes_than_were_announced_are_waited_for() -> None:
    reader = written()
    reader.upstream.announced[3] = Told(True, "701:1006", {"a": 1, "b": 2}, reader.upstream.announced[3].time)
    assert read_on(reader) == 1
    assert reader.cuts.waiting is not None
    assert (
        reader.cuts.waiting.describe() == 'transaction "701" has 2 changes of b; 1 of them are in topic "b"'
    )
    reader.cuts.given_up = {reader.cuts.log.origins.key_of("701"): "701"}
    assert read_on(reader) == 4


def test_changes_in_another_order_than_the_announcements() -> None:
    reader = written()
    topic = reader.upstream.topics["a", 0]
    topic[0], topic[1] = topic[1], topic[0]
    detail = conflict(reader, "changes contradict the order of the transaction topic")
    assert detail == (
        'Topic "tx" has transaction "700" before "701"; topic "a" has a change of it, before offset 2, '
        "behind those of the other."
    )


def test_a_limit_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_OPEN", 3)
    reader = written()
    reader.look()
    with pytest.raises(TidemillError) as caught:
        reader.announce(100)
    assert caught.value.primary == 'topic "tx" has too many transactions that are not finished'
    assert caught.value.sqlstate == "54000"


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "7:", ":7", "a-b", "7:x", f"7:{10**18}", "0-1-", "a-b-7", "x" * 300),
        pytest.param("00000024:00000288:0005", id="SQL Server"),
        pytest.param("file=binlog.000003,pos=1234", id="MySQL without GTIDs"),
    ],
)
def test_ids_of_no_known_connector(text: str) -> None:
    with pytest.raises(UnknownId) as caught:
        Origins().read(pa.array([None, "700:5", text]))
    assert text[:200] in (caught.value.detail or "")


def test_ids_of_known_connectors() -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    origins = Origins()
    found = origins.read(pa.array([None, "700:5", "0-7-12", f"{uuid}:9", f"{uuid}:tag:9"]))
    assert found.numbers.tolist()[1:] == [5, 12, 9, 9]
    assert [origins.name(int(code)) for code in found.origins[1:]] == ["", "0-7", uuid, f"{uuid}:tag"]
    told = [origins.describe(int(key)) for key in found.keys[1:]]
    assert told == ["700", "0-7-12", f"{uuid}:9", f"{uuid}:tag:9"]
    assert [origins.key_of(text) for text in told] == found.keys[1:].tolist()
