"""FROM S3 over a real socket and a real object store: the statements, what is read, and what is shown."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path
from typing import Any

import obstore
import psycopg
import pytest

from support.s3 import BUCKET, S3Server
from support.server import ServerProcess, connected
from support.tours import play
from tidemill.sources.aws_role import frozen
from tidemill.sources.objects.bucket import open_bucket

pytestmark = [pytest.mark.server, pytest.mark.s3]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources" / "s3.md"
SECONDS = 120.0


def wait_for(connection: psycopg.Connection[Any], query: str, wanted: list[tuple[Any, ...]]) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := connection.execute(query.encode()).fetchall()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_a_bucket_is_a_live_table(server: ServerProcess, database: str, s3_server: S3Server) -> None:
    options = s3_server.connection
    store, prefix = open_bucket(BUCKET, frozen(options)), uuid.uuid4().hex
    obstore.put(store, f"{prefix}/1.csv", b"id,name\n1,one\n2,two")
    with connected(server, database) as c:

        def run(sql: str) -> None:
            c.execute(sql.encode())

        run(f"CREATE SECRET good AS '{options['secret_access_key']}'")
        run("CREATE SECRET bad AS 'wrong'")
        to = f"TO AWS (ENDPOINT '{options['endpoint']}', ACCESS KEY ID '{options['access_key_id']}', "
        with pytest.raises(psycopg.Error, match="the keys of the connection are refused"):
            run(f"CREATE CONNECTION a {to} SECRET ACCESS KEY = SECRET bad)")
        run(f"CREATE CONNECTION a {to} SECRET ACCESS KEY = SECRET good)")
        with pytest.raises(psycopg.Error, match='bucket "none-such" does not exist') as missing:
            run("CREATE SOURCE s FROM S3 CONNECTION a (DISCOVER OBJECTS USING BUCKET SCAN 'none-such')")
        assert missing.value.sqlstate == "42704"
        run(
            f"CREATE SOURCE s FROM S3 CONNECTION a (DISCOVER OBJECTS MATCHING '{prefix}/*.csv' "
            f"USING BUCKET SCAN '{BUCKET}') FORMAT CSV WITH HEADER INCLUDE OFFSET AS at"
        )
        wait_for(c, "SELECT id, name, at::int FROM s ORDER BY id", [("1", "one", 8), ("2", "two", 14)])
        obstore.put(store, f"{prefix}/0.csv", b"id,name\n3,three\n")
        wait_for(c, "SELECT id FROM s ORDER BY id", [("1",), ("2",), ("3",)])
        progress = [(f"{prefix}/0.csv", 16), (f"{prefix}/1.csv", 19)]
        wait_for(c, "SELECT key, byte_offset::int FROM s_progress ORDER BY key", progress)
        # A source without FORMAT has tables, each with all objects.
        run(
            f"CREATE SOURCE r FROM S3 CONNECTION a (DISCOVER OBJECTS MATCHING '{prefix}/*.csv' "
            f"USING BUCKET SCAN '{BUCKET}')"
        )
        run(f'CREATE TABLE t FROM SOURCE r (REFERENCE "{BUCKET}") FORMAT TEXT INCLUDE KEY')
        wait_for(c, "SELECT count(*) FROM t", [(5,)])
        wait_for(
            c,
            "SELECT DISTINCT bucket, matching, compression FROM mz_s3_sources",
            [(BUCKET, f"{prefix}/*.csv", "auto")],
        )
        shown = c.execute("SELECT endpoint, region FROM mz_aws_connections").fetchall()
        assert shown == [(options["endpoint"], "us-east-1")]
        # What changes is an error of the source; its rows stay.
        obstore.put(store, f"{prefix}/1.csv", b"id,name\n9,nine\n")
        stalled = f"SELECT DISTINCT error FROM mz_internal.mz_source_statuses WHERE error LIKE '%{prefix}%'"
        told = f'object "{prefix}/1.csv" has changed since it was read'
        wait_for(c, stalled, [(told,)])


def test_the_tour_of_the_page(server: ServerProcess, database: str, s3_server: S3Server) -> None:
    names: dict[str, Any] = {}
    text = PAGE.read_text()
    tour = text[text.index("## A tour") : text.index("## The connection")]
    tour = re.sub(r"```sh\n.*?```", "", tour, flags=re.DOTALL)
    replaced = {
        "http://127.0.0.1:8333": s3_server.endpoint,
        '"shop",': f'"{BUCKET}",',
        "'shop'": f"'{BUCKET}'",
    }
    assert play(tour, server, database, replaced, {"python": lambda block: exec(block, names)}) == 3
