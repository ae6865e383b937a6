"""Conversations over a real socket, message by message: order, errors, cancel, departures, limits,
timeouts."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Generator, Iterator

import pgframes as f
import pytest
from tablets import Tablets, table
from wireserver import Raw, Served, errors, tags

from tidemill.engine.session import portals
from tidemill.engine.session import prepared_statements as statements
from tidemill.errors import TidemillError
from tidemill.server import limits
from tidemill.server.auth import Peer
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.messages import Startup
from tidemill.types import model


@pytest.fixture
def served() -> Iterator[Served]:
    engine = Tablets()
    engine.tables["t"] = table(("a", model.INT4), ("b", model.TEXT), rows=[(1, "x"), (2, None)])
    with Served(engine) as served:
        yield served


def eventually(check: object, seconds: float = 60.0) -> None:
    assert callable(check)
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


# -- the login


def test_login_says_what_the_session_is(served: Served) -> None:
    with served.raw(login=False) as c:
        c.send(f.SSL)
        assert c.socket.recv(1) == b"N"
        c.send(f.GSS)
        assert c.socket.recv(1) == b"N"
        got = c.ask(f.startup(application_name="me", options="-c a=1 --b-c=2"))
        assert tags(got) == "RSSSKZ"
        assert got[1] == ("S", b"server_version\x0017.0\0")
        assert len(got[-2][1]) == 8
        assert got[-1] == ("Z", b"I")
    options = served.engine.sessions[-1].options
    assert (options.application_name, options.settings) == ("me", {"a": "1", "b_c": "2"})


def test_newer_versions_and_unknown_extensions_are_negotiated(served: Served) -> None:
    with served.raw(login=False) as c:
        got = c.ask(f.startup(9999, **{"_pq_.sparkle": "yes"}))
        assert tags(got) == "vRSSSKZ"
        assert got[0][1] == struct.pack("!ii", (3 << 16) | 2, 1) + b"_pq_.sparkle\0"
        assert len(dict(got)["K"]) == 4 + 32
    with served.raw(login=False) as c:
        assert tags(c.ask(f.startup(2))) == "RSSSKZ"


@pytest.mark.parametrize(
    ("packet", "sqlstate"),
    [
        (f.startup(user="nobody"), "28000"),
        (f.startup(user=""), "28000"),
        (f.startup(replication="database"), "0A000"),
        (f.startup(options="-z"), "42601"),
        (struct.pack("!iHH", 8, 2, 0), "0A000"),
        (b"\0\0\0\0", "08P01"),
    ],
)
def test_refused_logins(served: Served, packet: bytes, sqlstate: str) -> None:
    with served.raw(login=False) as c:
        c.send(packet)
        (error,) = errors(c.rest())
        assert (error["S"], error["V"], error["C"]) == ("FATAL", "FATAL", sqlstate)


def test_authentication_exchanges() -> None:
    """The seam for SCRAM: here a password in the clear."""

    def clear(startup: Startup, peer: Peer, binding: bytes | None) -> Generator[bytes, bytes, bytes | None]:
        assert peer == Peer("127.0.0.1") and peer.local and binding is None
        if (yield replies.authentication(3)) != b"open sesame\0":
            raise TidemillError(
                f'password authentication failed for user "{startup.parameters["user"]}"', sqlstate="28P01"
            )

    with Served(Tablets(), authentication=clear) as served:
        with served.raw(login=False) as c:
            c.send(f.startup())
            assert c.next() == ("R", struct.pack("!i", 3))
            assert tags(c.ask(f.password(b"open sesame\0"))) == "RSSSKZ"
        with served.raw(login=False) as c:
            c.send(f.startup(), f.password(b"no\0"))
            got = c.rest()
            assert (tags(got), errors(got)[0]["C"]) == ("RE", "28P01")
        with served.raw(login=False) as c:
            c.send(f.startup(), f.query("SELECT 1"))
            got = c.rest()
            assert (tags(got), errors(got)[0]["C"]) == ("RE", "08P01")


def test_a_silent_client_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_SECONDS", 0.1)
    with served.raw(login=False) as c:
        assert c.rest() == []
    eventually(lambda: served.listener.connections == 0)


# -- the simple protocol


def test_simple_queries(served: Served) -> None:
    with served.raw() as c:
        got = c.ask(f.query("SELECT * FROM t; insert"))
        assert tags(got) == "TDDCCZ"
        assert got[1][1] == struct.pack("!hi", 2, 1) + b"1" + struct.pack("!i", 1) + b"x"
        assert got[2][1] == struct.pack("!hi", 2, 1) + b"2" + struct.pack("!i", -1)
        assert [body for tag, body in got if tag == "C"] == [b"SELECT 2\0", b"INSERT 0 1\0"]
        assert tags(c.ask(f.query(" ;"))) == "IZ"
        # An error ends the query: what follows it does not run.
        got = c.ask(f.query("select 1; select broken(1500); insert"))
        assert tags(got).replace("D", "") == "TCTEZ"
        assert got[-1] == ("Z", b"I")


def test_errors_have_all_their_fields(served: Served) -> None:
    with served.raw() as c:
        (error,) = errors(c.ask(f.query("WRONG")))
        assert error == {
            "S": "ERROR",
            "V": "ERROR",
            "C": "42601",
            "M": 'syntax error at or near "WRONG"',
            "D": "It is.",
            "H": "Do not.",
            "P": "1",
        }


def test_bugs_are_not_told_to_the_client(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with served.raw() as c:
        (error,) = errors(c.ask(f.query("select crash")))
        assert (error["C"], error["M"]) == ("XX000", "internal error")
        assert "secret" not in str(error)
        assert tags(c.ask(f.query("select 1"))) == "TDCZ"
    reference = error["H"].rstrip(".").split()[-1]
    assert any(reference in r.getMessage() and r.exc_info for r in caplog.records)


def test_a_failed_block_accepts_only_its_end(served: Served) -> None:
    with served.raw() as c:
        assert c.ask(f.query("begin"))[-1] == ("Z", b"T")
        assert c.ask(f.query("WRONG"))[-1] == ("Z", b"E")
        assert errors(c.ask(f.query("select 1")))[0]["C"] == "25P02"
        assert errors(c.ask(f.parse("select 1"), f.SYNC))[0]["C"] == "25P02"
        got = c.ask(f.query("commit"))
        assert (got[0], got[-1]) == (("C", b"ROLLBACK\0"), ("Z", b"I"))


@pytest.mark.parametrize("extended", [False, True])
def test_a_failed_commit_sends_no_tag(served: Served, extended: bool) -> None:
    with served.raw() as c:
        if extended:
            got = c.ask(f.parse("insert unlucky"), f.bind(), f.execute(), f.SYNC)
            assert tags(got) == "12EZ"
        else:
            got = c.ask(f.query("insert unlucky"))
            assert tags(got) == "EZ"
        assert errors(got)[0]["C"] == "40001"
        assert tags(c.ask(f.parse("insert"), f.bind(), f.execute(), f.SYNC)) == "12CZ"


def test_the_engine_is_told_which_statements_are_alone(served: Served) -> None:
    one = f.parse("insert") + f.bind() + f.execute()
    with served.raw() as c:
        c.ask(f.query("insert"))
        c.ask(f.query("insert; insert"))
        c.ask(one, f.SYNC)
        c.ask(one, one, f.SYNC)
        c.send(one, f.FLUSH)
        c.until("C")
        c.ask(f.query("insert"))
        c.ask(one, f.SYNC)
    alone = served.engine.sessions[-1].alone
    assert alone == [True, False, False, True, False, False, False, False, True]


def test_messages_that_are_refused_do_not_end_the_connection(served: Served) -> None:
    with served.raw() as c:
        assert errors(c.ask(f.query("x" * (limits.MAX_QUERY_BYTES + limits.MB))))[0]["C"] == "54000"
        assert errors(c.ask(f.frame(b"Q", b"\xff\0")))[0]["C"] == "22021"
        assert errors(c.ask(f.frame(b"F", b"")))[0]["C"] == "0A000"
        assert tags(c.ask(f.parse("select 1", "n" * 300), f.bind(), f.SYNC)) == "EZ"
        assert tags(c.ask(f.query("select 1"))) == "TDCZ"


def test_garbage_ends_only_its_connection(served: Served) -> None:
    with served.raw() as good, served.raw() as bad:
        bad.send(f.query("select 1"), b"\x01\x02\x03\x04\x05\x06")
        got = bad.rest()
        assert tags(got) == "TDCZE"
        assert errors(got)[0]["S"] == "FATAL"
        assert tags(good.ask(f.query("select 1"))) == "TDCZ"


# -- the extended protocol


def test_extended_messages_and_pipelining(served: Served) -> None:
    with served.raw() as c:
        got = c.ask(
            f.parse("select $1::int4, $2::text", "s"),
            f.describe(b"S", "s"),
            f.bind([b"\0\0\0\5", b"hi"], statement="s", param_formats=[1, 0], result_formats=[0, 1]),
            f.describe(),
            f.execute(),
            f.bind([None, b""], "again", "s"),
            f.execute("again"),
            f.close(b"P", "again"),
            f.close(b"S", "none such"),
            f.SYNC,
        )
        assert tags(got) == "1tT2TDC2DC33Z"
        rows = [body for tag, body in got if tag == "D"]
        assert rows[0] == struct.pack("!hi", 2, 1) + b"5" + struct.pack("!i", 2) + b"hi"
        assert rows[1] == struct.pack("!hii", 2, -1, 0)
        # The portal is gone with its transaction, the statement is not.
        assert errors(c.ask(f.execute(), f.SYNC))[0]["C"] == "34000"
        assert tags(c.ask(f.bind([None, None], statement="s"), f.execute(), f.SYNC)) == "2DCZ"


def test_an_error_voids_everything_until_sync(served: Served) -> None:
    with served.raw() as c:
        got = c.ask(
            f.parse("select 1"), f.bind(), f.execute("none such"), f.parse("select 1"), f.execute(), f.SYNC
        )
        assert (tags(got), errors(got)[0]["C"]) == ("12EZ", "34000")
        assert tags(c.ask(f.parse("select 1"), f.bind(), f.execute(), f.SYNC)) == "12DCZ"


@pytest.mark.parametrize(
    ("messages", "sqlstate"),
    [
        ([f.bind(statement="none")], "26000"),
        ([f.bind()], "26000"),
        ([f.describe(b"S", "none")], "26000"),
        ([f.describe(b"P", "none")], "34000"),
        ([f.parse("select 1", "a"), f.parse("select 1", "a")], "42P05"),
        ([f.parse("select 1"), f.bind([b"1"])], "08P01"),
        ([f.parse("select $1::int4"), f.bind([b"1"], param_formats=[0, 0])], "08P01"),
        ([f.parse("select 1"), f.bind(result_formats=[0, 0])], "08P01"),
        ([f.parse("select 1"), f.bind(result_formats=[7])], "22023"),
        ([f.parse("select 1"), f.bind(portal="p"), f.bind(portal="p")], "42P03"),
        ([f.parse("select $1::int4"), f.bind([b"one"]), f.execute()], "22P02"),
        ([f.parse("insert"), f.bind(), f.execute(), f.execute()], "55000"),
        ([f.parse("WRONG")], "42601"),
    ],
)
def test_errors_of_the_extended_protocol(served: Served, messages: list[bytes], sqlstate: str) -> None:
    with served.raw() as c:
        (error,) = errors(c.ask(*messages, f.SYNC))
        assert error["C"] == sqlstate


def test_row_limits_suspend_and_resume(served: Served) -> None:
    with served.raw() as c:
        c.ask(f.query("begin"))
        got = c.ask(f.parse("select generate(2500)"), f.bind(portal="p"), f.execute("p", 1200), f.SYNC)
        assert (tags(got), len(got)) == ("12" + "D" * 1200 + "sZ", 1204)
        assert served.engine.sessions[-1].open_streams == 1
        got = c.ask(f.execute("p", 1300), f.SYNC)
        assert tags(got) == "D" * 1300 + "sZ"
        assert got[0][1][6:] == b"1200"
        got = c.ask(f.execute("p", 10), f.execute("p", 10), f.SYNC)
        assert got == [("C", b"SELECT 0\0"), ("C", b"SELECT 0\0"), ("Z", b"T")]
        c.ask(f.parse("select generate(2500)"), f.bind(portal="q"), f.execute("q", 1), f.SYNC)
        assert tags(c.ask(f.query("commit"))) == "CZ"
        # The end of the transaction released the rows of the half-read portal.
        assert served.engine.sessions[-1].open_streams == 0
        assert errors(c.ask(f.execute("q"), f.SYNC))[0]["C"] == "34000"
        # Also where the next transaction begins before the client is told.
        c.ask(f.query("begin"))
        c.ask(f.parse("select generate(2500)"), f.bind(portal="q"), f.execute("q", 1), f.SYNC)
        assert c.ask(f.query("commit; begin"))[-1] == ("Z", b"T")
        assert served.engine.sessions[-1].open_streams == 0
        assert errors(c.ask(f.execute("q"), f.SYNC))[0]["C"] == "34000"


def test_flush_brings_answers_before_sync(served: Served) -> None:
    with served.raw() as c:
        c.send(f.parse("select 1"), f.bind(), f.execute(), f.FLUSH)
        assert tags(c.until("C")) == "12DC"
        assert tags(c.ask(f.SYNC)) == "Z"
        c.send(f.parse("WRONG"), f.describe(b"S"), f.FLUSH)
        assert tags(c.until("E")) == "E"
        assert tags(c.ask(f.SYNC)) == "Z"


def test_a_simple_query_drops_the_unnamed_statement_and_deallocate_all_the_named(served: Served) -> None:
    with served.raw() as c:
        c.ask(f.parse("select 1"), f.parse("select 1", "s"), f.SYNC)
        c.ask(f.query("select 1"))
        assert errors(c.ask(f.bind(), f.SYNC))[0]["C"] == "26000"
        assert not errors(c.ask(f.bind(statement="s"), f.SYNC))
        c.ask(f.query("deallocate all"))
        assert errors(c.ask(f.bind(statement="s"), f.SYNC))[0]["C"] == "26000"


def test_what_a_session_keeps_is_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MAX_STATEMENTS", 3)
    monkeypatch.setattr(portals, "MAX_PORTALS", 2)
    monkeypatch.setattr(limits, "MAX_KEPT_BYTES", 1000)
    with served.raw() as c:
        got = c.ask(*(f.parse("select $1::text", f"s{i}") for i in range(4)), f.SYNC)
        assert (tags(got), errors(got)[0]["C"]) == ("111EZ", "54000")
        got = c.ask(*(f.bind([b"x"], f"p{i}", "s0") for i in range(3)), f.SYNC)
        assert (tags(got), errors(got)[0]["C"]) == ("22EZ", "54000")
        got = c.ask(f.bind([b"x" * 1001], "p", "s0"), f.SYNC)
        assert errors(got)[0]["C"] == "54000"
        # Closing makes room again.
        assert tags(c.ask(f.close(b"S", "s1"), f.parse("select 1", "new"), f.SYNC)) == "31Z"


# -- while a statement runs


def cancel(served: Served, process_id: int, key: bytes) -> None:
    with Raw(served.port, login=False) as c:
        c.send(f.cancel(process_id, key))
        assert c.rest() == []


def test_cancel_needs_the_key(served: Served) -> None:
    with served.raw() as c:
        c.send(f.query("select sleep(0.5)"))
        eventually(lambda: served.engine.sessions[-1].alone)
        cancel(served, c.process_id, b"\0\0\0\0")
        cancel(served, c.process_id + 1, c.key)
        assert tags(c.until("Z")) == "TDCZ"
        c.send(f.query("select sleep(30)"))
        eventually(lambda: served.engine.sessions[-1].open_streams == 1)
        cancel(served, c.process_id, c.key)
        assert errors(c.until("Z"))[0]["C"] == "57014"
        # A cancel that comes when nothing runs is forgotten.
        cancel(served, c.process_id, c.key)
        assert tags(c.ask(f.query("select 1"))) == "TDCZ"


def test_cancel_reaches_a_server_that_waits_for_the_client(served: Served) -> None:
    served.engine.tables["in"] = table(("a", model.INT4))
    with served.raw() as c:
        c.send(f.query("copy in from stdin"))
        assert tags(c.until("G")) == "G"
        cancel(served, c.process_id, c.key)
        assert errors(c.until("Z"))[0]["C"] == "57014"
        assert served.engine.sessions[-1].sinks[-1].failed is not None
    with Raw(served.port, receive_buffer=4096) as c:
        c.send(f.query("select wide(100000)"))
        eventually(lambda: served.engine.sessions[-1].pulled > 0)
        time.sleep(0.2)
        cancel(served, c.process_id, c.key)
        # Before the client reads on.
        eventually(lambda: served.engine.sessions[-1].open_streams == 0)
        assert errors(c.until("Z"))[0]["C"] == "57014"


def test_notices_come_while_the_statement_runs(served: Served) -> None:
    with served.raw() as c:
        c.send(f.query("select notice(hello)"))
        assert c.next()[0] == "T"  # pyright: ignore[reportOptionalSubscript]
        tag, body = c.next() or ("", b"")
        assert (tag, f.fields(body)["M"], f.fields(body)["S"]) == ("N", "hello", "NOTICE")
        assert tags(c.until("Z")) == "DCZ"
        assert c.ask(f.query("set application_name = 'x'"))[0] == ("S", b"application_name\0x\0")


def test_a_client_that_vanishes_releases_everything(served: Served) -> None:
    c = Raw(served.port, receive_buffer=4096)
    c.send(f.query("select wide(1000000)"))
    eventually(lambda: served.engine.sessions[-1].pulled > 0)
    # A reset instead of a goodbye.
    c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    eventually(lambda: served.listener.connections == 0)
    session = served.engine.sessions[-1]
    assert (session.open_streams, session.closed) == (0, 1)


def test_a_client_that_vanishes_does_not_fill_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    c = served.raw(login=False)
    # Gone while five thousand answers are being written.
    c.send(f.startup(), f.SYNC * 5000)
    c.socket.recv(1)
    c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    eventually(lambda: served.listener.connections == 0)
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


@pytest.mark.parametrize("goodbye", [b"", f.TERMINATE])
def test_leaving_breaks_off_reading_but_not_writing(served: Served, goodbye: bytes) -> None:
    c = served.raw()
    c.send(f.query("select sleep(30)"), goodbye)
    eventually(lambda: served.engine.sessions[-1].open_streams == 1 or served.listener.connections == 0)
    c.close()
    eventually(lambda: served.listener.connections == 0)
    c = served.raw()
    c.send(f.query("insert slowly 0.2"), goodbye)
    c.close()
    eventually(lambda: served.listener.connections == 0)
    assert "written" in served.engine.tables


def test_a_slow_reader_does_not_pile_up_memory(served: Served) -> None:
    with Raw(served.port, receive_buffer=4096) as c:
        c.send(f.query("subscribe 100000"))
        session = served.engine.sessions[-1]
        # Each batch is 12,500 rows of about 15 bytes. Kernel buffers take a few MB on loopback, we take less
        # than one; then nothing is produced any more.
        still = -1
        deadline = time.monotonic() + 60
        while session.pulled != still:
            assert time.monotonic() < deadline, "the server does not wait for its client"
            still = session.pulled
            time.sleep(0.3)
        assert session.pulled * 12_500 * 15 < 16 * limits.MB


def test_reading_ahead_is_bounded(served: Served) -> None:
    """A client that pipelines without end while its first statement runs is held back by TCP."""
    with served.raw() as c:
        c.send(f.query("select sleep(3600)"))
        c.socket.settimeout(1)
        flood = f.query("insert" + " " * 10_000) * 100
        sent = 0
        try:
            for _ in range(200):
                sent += c.socket.send(flood)
        except TimeoutError:
            pass
        assert sent < 64 * limits.MB
        c.socket.settimeout(120)
        cancel(served, c.process_id, c.key)
        assert errors(c.until("Z"))[0]["C"] == "57014"
        assert tags(c.until("Z")) == "CZ"


def test_a_select_that_sends_too_much_is_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_RESULT_BYTES", limits.MB)
    with served.raw() as c:
        assert errors(c.ask(f.query("select wide(20)")))[0]["C"] == "54000"
        assert tags(c.ask(f.query("subscribe 20"))).count("D") == 250_000
        assert tags(c.ask(f.query("select 1"))) == "TDCZ"


# -- ends


@pytest.mark.parametrize(
    ("setting", "before", "sqlstate"),
    [
        ("idle_session_timeout", "", "57P05"),
        ("idle_in_transaction_session_timeout", "begin", "25P03"),
    ],
)
def test_idle_timeouts(served: Served, setting: str, before: str, sqlstate: str) -> None:
    with served.raw() as c:
        c.ask(f.query(f"set {setting} = '100ms'"))
        if before:
            c.ask(f.query(before))
        (error,) = errors(c.rest())
        assert (error["S"], error["C"]) == ("FATAL", sqlstate)


def test_shutdown_tells_everyone(served: Served) -> None:
    with served.raw() as idle, served.raw() as busy, served.raw(login=False) as stranger:
        busy.send(f.query("select sleep(30)"))
        eventually(lambda: served.engine.sessions[-1].open_streams == 1)
        served.run(served.listener.stop(grace=30))
        for c in (idle, busy):
            (error,) = errors(c.rest())
            assert (error["S"], error["C"]) == ("FATAL", "57P01")
        assert stranger.rest() == []
        with pytest.raises(OSError):
            served.raw()


def test_too_many_clients() -> None:
    with Served(Tablets(), max_connections=2) as served, served.raw() as a, served.raw() as b:
        with served.raw(login=False) as c:
            c.send(f.startup())
            (error,) = errors(c.rest())
            assert (error["S"], error["C"]) == ("FATAL", "53300")
            assert error["M"] == "sorry, too many clients already"
        # A full server still takes cancels.
        a.send(f.query("select sleep(30)"))
        eventually(lambda: served.engine.sessions[0].open_streams == 1)
        cancel(served, a.process_id, a.key)
        assert errors(a.until("Z"))[0]["C"] == "57014"
        b.send(f.TERMINATE)
        assert b.rest() == []
        eventually(lambda: served.listener.connections == 1)
        with served.raw():
            pass
