"""FROM KINESIS over a real socket and kinesis-local: the tour of the page, errors, tables of a source, a kill
of the server, and what is shown."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.kinesis import Kinesis
from support.kinesis_proxy import KinesisProxy
from support.server import ServerProcess, connected
from tidemill.dev.kinesis import ACCESS_KEY, SECRET_KEY
from tidemill.dev.kinesis_stack import KinesisStack, order
from tidemill.dev.process import pick_ports

pytestmark = [pytest.mark.server]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources" / "kinesis.md"
SECONDS = 120.0


def wait_for(connection: psycopg.Connection[Any], query: str, wanted: list[tuple[Any, ...]]) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := connection.execute(query.encode()).fetchall()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_the_tour(server: ServerProcess, database: str, tmp_path: Path, kinesis: Kinesis) -> None:
    """As the page has it, over the stream that the command makes."""
    (block,) = re.findall(r"```sql no-test\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (port,) = pick_ports(1)
    stack = KinesisStack(tmp_path, port, load=0)
    try:
        stack.start(lambda text: None)
        told = " ".join(stack.introduction())
        statements = block.replace("http://127.0.0.1:4568", stack.kinesis.options["endpoint"]).split(";")
        assert f"ENDPOINT '{stack.kinesis.options['endpoint']}', ACCESS KEY ID '{ACCESS_KEY}'" in told
        assert f"AS '{SECRET_KEY}'" in told and "FORMAT JSON INCLUDE KEY AS id ENVELOPE UPSERT" in told
        with connected(server, database) as c:
            for statement in filter(None, map(str.strip, statements)):
                c.execute(statement.encode())
            wait_for(c, "SELECT * FROM states", [("new", 3)])
            wait_for(c, "SELECT count(*) FROM orders_progress", [(2,)])
            client = stack.kinesis.client()
            request = {"StreamName": "orders", "Records": [_entry(*order(1, "paid"))]}
            number = client.call("PutRecords", "orders", request)["Records"][0]["SequenceNumber"]
            wait_for(c, "SELECT * FROM states ORDER BY state", [("new", 2), ("paid", 1)])
            shown = f"SELECT count(*) FROM orders_progress WHERE sequence_number = '{number}'"
            wait_for(c, shown, [(1,)])
            assert len(number) == 56
            c.execute(b"DROP SOURCE orders CASCADE")
    finally:
        stack.stop()


def _entry(key: str, data: bytes) -> dict[str, str]:
    return {"PartitionKey": key, "Data": b64encode(data).decode()}


def test_a_stream_is_a_live_table(server: ServerProcess, database: str, kinesis: Kinesis) -> None:
    stream = kinesis.stream(2)
    numbers = kinesis.put(stream, [("a", b"1"), ("b", b"2"), ("a", b"3")])
    with connected(server, database) as c, KinesisProxy(kinesis.options["endpoint"]).serving() as proxy:

        def run(sql: str) -> None:
            c.execute(sql.encode())

        def refused(sql: str, message: str, sqlstate: str) -> None:
            with pytest.raises(psycopg.Error, match=message) as caught:
                run(sql)
            assert caught.value.sqlstate == sqlstate

        run("CREATE SECRET key AS 'x'")
        to = f"TO AWS (ENDPOINT '{proxy.endpoint}', ACCESS KEY ID 'x', SECRET ACCESS KEY = SECRET key)"
        proxy.refusals.append(("ListShards", "InvalidSignatureException", 400))
        refused(f"CREATE CONNECTION a {to}", "the keys of the connection are refused", "28000")
        run(f"CREATE CONNECTION a {to}")
        at = "CREATE SOURCE s FROM KINESIS CONNECTION a"
        refused(f"{at} (STREAM 'none-such') FORMAT TEXT", 'stream "none-such" does not exist', "42704")
        refused(f"{at} (STREAM 'no such') FORMAT TEXT", '"no such" is no name of a stream', "22023")
        of = f"{at} (STREAM '{stream}'"
        refused(f"{of}, START TIMESTAMP 99999999999999) FORMAT TEXT", "is in the future", "22023")
        refused(f"{of}) FORMAT TEXT INCLUDE HEADERS", "records of Kinesis have no headers", "0A000")
        refused(f"{of}) KEY FORMAT TEXT VALUE FORMAT JSON ENVELOPE DEBEZIUM", "is not possible for", "0A000")
        refused(f"{of}) FORMAT TEXT ON ERROR DEAD LETTER", "ON ERROR DEAD LETTER is not possible", "0A000")
        proxy.refusals.append(("ListShards", "AccessDeniedException", 400))
        refused(f"{of}) FORMAT TEXT", f'access to stream "{stream}" is denied', "42501")
        run(f"{of}) FORMAT TEXT INCLUDE KEY, PARTITION, OFFSET AS number, TIMESTAMP EXPOSE PROGRESS AS far")
        rows = [("1", "a", numbers[0]), ("2", "b", numbers[1]), ("3", "a", numbers[2])]
        wait_for(c, "SELECT text, key, number FROM s ORDER BY text", rows)
        far: dict[str, str | None] = {}
        for shard in kinesis.shards(stream):
            there = kinesis.records(stream, shard)
            far[shard] = there[-1]["SequenceNumber"] if there else None
        wait_for(c, "SELECT shard_id, sequence_number FROM far ORDER BY 1", sorted(far.items()))
        bound = (
            "SELECT b.position, b.value::int FROM mz_internal.mz_source_bindings b JOIN mz_sources s "
            "ON s.id = b.source_id WHERE s.name = 's' ORDER BY b.position"
        )
        assert c.execute(bound.encode()).fetchall()
        (shown,) = c.execute(b"SHOW CREATE SOURCE s").fetchall()
        assert "FROM KINESIS CONNECTION" in shown[1] and f"(STREAM '{stream}') FORMAT TEXT" in shown[1]
        details = "SELECT stream, start_ms FROM mz_kinesis_sources k JOIN mz_sources s USING (id) "
        wait_for(c, f"{details} WHERE s.name = 's'", [(stream, None)])
        # A source without FORMAT has tables, each with all records; also those of later.
        run(f"CREATE SOURCE r FROM KINESIS CONNECTION a (STREAM '{stream}')")
        run(f'CREATE TABLE t FROM SOURCE r (REFERENCE "{stream}") FORMAT TEXT ENVELOPE UPSERT')
        wait_for(c, "SELECT key, text FROM t ORDER BY key", [("a", "3"), ("b", "2")])
        kinesis.put(stream, [("b", b""), ("c", b"4")])
        wait_for(c, "SELECT key, text FROM t ORDER BY key", [("a", "3"), ("c", "4")])
        run(f'CREATE TABLE u FROM SOURCE r (REFERENCE "{stream}") FORMAT TEXT')
        wait_for(c, "SELECT count(*) FROM u", [(5,)])
        # From now on.
        run(f"CREATE SOURCE l FROM KINESIS CONNECTION a (STREAM '{stream}', START LATEST) FORMAT TEXT")
        time.sleep(1.1)
        kinesis.put(stream, [("d", b"5")])
        wait_for(c, "SELECT count(*) FROM l WHERE text = '5'", [(1,)])
        # Wrong keys, later: a status; another address, and it goes on.
        status = (
            "SELECT i.status, i.error FROM mz_internal.mz_source_statuses i JOIN mz_sources s ON s.id = i.id "
            "WHERE s.name = 's'"
        )
        run("ALTER CONNECTION a SET (ENDPOINT 'http://127.0.0.1:9') WITH (VALIDATE = false)")
        wait_for(c, status, [("stalled", "Kinesis cannot be reached")])
        run(f"ALTER CONNECTION a SET (ENDPOINT '{kinesis.options['endpoint']}')")
        wait_for(c, status, [("running", None)])
        kinesis.put(stream, [("e", b"6")])
        wait_for(c, "SELECT count(*) FROM s", [(7,)])
        lag = (
            "SELECT lag IS NOT NULL, messages_received > 0, offset_committed::int "
            "FROM mz_internal.mz_source_statistics i JOIN mz_sources s ON s.id = i.id WHERE s.name = 's'"
        )
        wait_for(c, lag, [(True, True, 7)])
        run("DROP SOURCE s, r, l CASCADE")
