"""FROM PUBNUB over a real socket, and a server that speaks PubNub's protocol: the tour of the documentation,
what is shown, errors, and a gap."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.pubnub import SUBSCRIBE_KEY, PubNubServer, pubnub_server
from support.server import ServerProcess, connected
from support.tours import play

pytestmark = pytest.mark.server

SECONDS = 120.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources" / "pubnub.md"


@pytest.fixture
def service() -> Iterator[PubNubServer]:
    with pubnub_server() as made:
        yield made


def wait_for(connection: psycopg.Connection[Any], query: str, wanted: list[tuple[Any, ...]]) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := connection.execute(query.encode()).fetchall()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_the_tour_of_the_page(server: ServerProcess, database: str, service: PubNubServer) -> None:
    """Each statement, each message, and what is shown."""

    def publish(block: str) -> None:
        for url in re.findall(r"curl '(.*)'", block):
            with urllib.request.urlopen(url) as answer:
                assert b"Sent" in answer.read()

    text = PAGE.read_text()
    tour = text[text.index("## A tour") : text.index("## Messages")]
    replaced = {
        "'demo'": f"'{SUBSCRIBE_KEY}', ENDPOINT '{service.endpoint}'",
        "https://ps.pndsn.com": service.endpoint,
    }
    assert play(tour, server, database, replaced, {"sh": publish}) == 3


def test_statements_and_what_is_shown(server: ServerProcess, database: str, service: PubNubServer) -> None:
    with connected(server, database) as c:

        def run(sql: str) -> None:
            c.execute(sql.encode())

        def refused(sql: str) -> tuple[str, str | None]:
            with pytest.raises(psycopg.Error) as caught:
                run(sql)
            return str(caught.value.diag.message_primary), caught.value.sqlstate

        to = f"TO PUBNUB (SUBSCRIBE KEY '{SUBSCRIBE_KEY}', ENDPOINT '{service.endpoint}'"
        run(f"CREATE CONNECTION p {to})")
        service.auth = "right"
        run("CREATE SECRET wrong AS 'wrong'")
        run(f"CREATE CONNECTION q {to}, AUTH KEY = SECRET wrong)")
        message = ("PubNub refuses access to the channels", "42501")
        assert refused("CREATE SOURCE s FROM PUBNUB CONNECTION q (CHANNELS 'a') FORMAT TEXT") == message
        service.auth = None
        future = service.now() + 10**12
        for options, wanted in (
            (f"CHANNELS 'a', START TIMETOKEN {future}", f"START TIMETOKEN {future} is in the future"),
            ("CHANNELS 'a', START TIMETOKEN 17", "START TIMETOKEN 17 is before what the service keeps"),
            ("CHANNELS 'a*b'", '"a*b" is no name of a channel'),
            ("HISTORY '1 day'", "a PubNub source needs CHANNELS or CHANNEL GROUPS"),
            ("CHANNELS ('a', 'a')", 'channel "a" specified more than once'),
            ("CHANNELS 'a-pnpres'", 'presence is not read: "a-pnpres"'),
        ):
            told, _ = refused(f"CREATE SOURCE s FROM PUBNUB CONNECTION p ({options}) FORMAT TEXT")
            assert told == wanted
        told, state = refused(
            "CREATE SOURCE s FROM PUBNUB CONNECTION p (CHANNELS 'a') FORMAT TEXT ENVELOPE UPSERT"
        )
        assert (told, state) == ("ENVELOPE UPSERT is not possible for PubNub", "0A000")
        run(
            "CREATE SOURCE s FROM PUBNUB CONNECTION p "
            "(CHANNELS ('a', 'b'), CHANNEL GROUPS 'g', HISTORY '7 days')"
            " FORMAT CSV WITH 2 COLUMNS INCLUDE PARTITION AS r ON ERROR DEAD LETTER EXPOSE PROGRESS AS far"
        )
        service.publish("a", "1,one")
        service.publish("b", "2,two", region=2)
        bad = service.publish("a", "three")
        wait_for(c, "SELECT column1, column2, r::int FROM s ORDER BY 1", [("1", "one", 1), ("2", "two", 2)])
        wait_for(
            c,
            "SELECT partition, \"offset\"::text, encode(key, 'escape'), encode(value, 'escape') "
            "FROM s_dead_letters",
            [(1, str(bad), "a", "three")],
        )
        wait_for(c, "SELECT region::int, timetoken > 0 FROM far ORDER BY 1", [(1, True), (2, True)])
        (shown,) = c.execute("SHOW CREATE SOURCE s").fetchall()
        assert "CHANNELS ('a', 'b'), CHANNEL GROUPS ('g'), HISTORY '7 days'" in shown[1]
        wait_for(
            c,
            "SELECT channels, channel_groups, history_seconds FROM mz_pubnub_sources p "
            "JOIN mz_sources s ON s.id = p.id WHERE s.name = 's'",
            [(["a", "b"], ["g"], 604800)],
        )
        # A gap is an error of the relation, and listed.
        service.history = False
        run("CREATE SOURCE g FROM PUBNUB CONNECTION p (CHANNELS 'a') FORMAT TEXT")
        wait_for(c, "SELECT count(*) FROM g", [(0,)])
        with service.lock:
            for n in range(150):
                service.publish("a", f"m{n}")
        deadline = time.monotonic() + SECONDS
        told = ""
        while "may be missing" not in told:
            assert time.monotonic() < deadline
            try:
                c.execute("SELECT count(*) FROM g")
            except psycopg.Error as e:
                told = str(e.diag.message_primary)
        listed = c.execute("SELECT count(*) FROM mz_internal.mz_source_errors WHERE error LIKE '%missing%'")
        assert listed.fetchall() == [(1,)]


def test_the_older_spelling(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE SOURCE o FROM PUBNUB SUBSCRIBE KEY 'k' CHANNEL 'c' WITH (VALIDATE = false)")
        (shown,) = c.execute("SHOW CREATE SOURCE o").fetchall()
        assert "FROM PUBNUB SUBSCRIBE KEY 'k' CHANNEL 'c'" in shown[1]
        assert [row[0] for row in c.execute("SHOW COLUMNS FROM o").fetchall()] == ["text"]
        c.execute("DROP SOURCE o")
