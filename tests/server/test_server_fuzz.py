"""A real server and those who mean it harm: limits hold, memory is bounded, and a witness who keeps asking is
always answered.

Some hundred conversations, texts at the limits, TLS asked for twice; `make chaos` has a hundred thousand
conversations, 500 stalled handshakes, thousands of guessed passwords and a gigabyte that one client reads and
another does not; and results that are computed, larger than Spark's memory.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import LiteralString

import pgframes as f
import psutil
import psycopg
import pytest
from guarded import ROOT, Guarded
from mischief import conversation, play
from wireserver import Raw, errors, tags

from support.server import ServerProcess, server_process

PATIENCE = 300.0
# What a server may grow by, whatever is done to it: buffers, threads, what an allocator does not give back.
GROWTH_BYTES = 256 << 20


class Witness:
    """A session beside the mischief: it asks all the while, and every answer is the right one."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._stop = threading.Event()
        self.answers = 0
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stop.wait(0.01):
            try:
                row = self._connection.execute("SELECT %s::text", (f"witness {self.answers}",)).fetchone()
            except psycopg.Error as e:
                self.wrong.append(e)
                return
            if row != (f"witness {self.answers}",):
                self.wrong.append(row)
                return
            self.answers += 1

    def close(self) -> None:
        """Raises if an answer was wrong, or none came any more."""
        seen = self.answers
        _until(lambda: self.answers > seen or bool(self.wrong), "the witness got no answer")
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self.wrong, self.wrong
        self._connection.close()


def _until(check: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextlib.contextmanager
def watched(server: ServerProcess) -> Generator[None]:
    """Around mischief: the witness is answered, memory does not run away, nobody stays, no bug is logged."""
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    witness = Witness(server.sql_dsn)
    try:
        yield
    finally:
        witness.close()
    _until(lambda: _clients(process, server.sql_port) == 0, "connections are left over")
    # Cycles are let go of a little later.
    _until(
        lambda: process.memory_info().rss - before < GROWTH_BYTES,
        f"more than {before >> 20} MB and the limit",
    )
    assert "unexpected error" not in server.log and "Traceback" not in server.log


def _clients(process: psutil.Process, port: int) -> int:
    """Not those to Spark, which stay."""
    established = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    return sum(1 for c in established if c.laddr.port == port)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("fuzzed") / "data")
    process.spark = False
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    process = Guarded(tmp_path_factory.mktemp("guarded"), {"TIDEMILL_LOG_LEVEL": "info"})
    try:
        process.start()
        yield process
    finally:
        process.close()


def _mischief(server: ServerProcess, seeds: range) -> None:
    with watched(server), ThreadPoolExecutor(4) as players:
        for _ in players.map(lambda seed: play(server.sql_port, conversation(seed)), seeds):
            pass


@pytest.mark.server
def test_mischief(server: ServerProcess) -> None:
    _mischief(server, range(250))


@pytest.mark.chaos
def test_much_mischief(server: ServerProcess) -> None:
    for first in range(0, 100_000, 10_000):
        _mischief(server, range(first, first + 10_000))


def _stalled(server: ServerProcess, count: int) -> None:
    """Handshakes that stop at every stage: none holds anything up, and the server ends them by itself."""
    stages = [b"", b"\0", f.SSL[:5], f.SSL, f.startup()[:20], f.cancel(1, b"1234")[:15]]
    with watched(server):
        stalled = [socket.create_connection(("127.0.0.1", server.sql_port), PATIENCE) for _ in range(count)]
        for n, sock in enumerate(stalled):
            sock.sendall(stages[n % len(stages)])
        with Raw(server.sql_port) as other:
            assert tags(other.ask(f.query("SELECT 'in between'"))) == "TDCZ"
        for sock in stalled:
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(100):
                    pass
            sock.close()


@pytest.mark.chaos
def test_500_stalled_handshakes(server: ServerProcess) -> None:
    for _ in range(5):
        _stalled(server, 500)


def _long_queries(server: ServerProcess, share: int) -> None:
    """Texts at the limit of two megabytes; those of many tokens are a `share` of that."""
    limit = 2 << 20
    many = limit // share
    with watched(server), Raw(server.sql_port) as c:
        for text in (
            "SELECT '" + "x" * (limit - 100) + "'",
            "SELECT '" + "x" * limit + "'",
            "/*" * (limit // 4),
            "SELECT " + "(" * (many // 2),
            "SELECT 1" + "+1" * (many // 4),
            "SELECT " + "1," * (many // 4) + "1",
            "SELECT 1 WHERE 1 IN (" + "1," * (many // 8) + "1)",
            "SELECT 1;" * (many // 9),
            ";" * many,
        ):
            got = c.ask(f.parse(text) + f.describe(b"S") + f.SYNC)
            assert tags(got)[-1] == "Z"
            assert all(e["C"][:2] in ("54", "42", "0A") for e in errors(got)), errors(got)
        too_long = c.ask(f.query("x" * (limit + 1)))
        assert errors(too_long)[0]["C"] == "54000"
        # A message that says that it is a gigabyte is not waited for.
        c.send(b"d" + struct.pack("!i", 1 << 30))
        assert errors(c.rest())[0]["V"] == "FATAL"


@pytest.mark.server
def test_long_queries(server: ServerProcess) -> None:
    _long_queries(server, 64)


@pytest.mark.chaos
def test_queries_of_two_megabytes(server: ServerProcess) -> None:
    _long_queries(server, 2)


def _guess(guarded: Guarded, count: int) -> None:
    """Wrong passwords: refused alike whether the role is there or not, and soon not even looked at."""
    context = guarded.context

    def once(n: int) -> str:
        raw = socket.create_connection(("127.0.0.1", guarded.sql_port), timeout=PATIENCE)
        raw.sendall(f.SSL)
        assert raw.recv(1) == b"S"
        with context.wrap_socket(raw, server_hostname="localhost") as sock:
            sock.sendall(f.startup(user=f"guessed{n % 3}"))
            first = b"n,,n=,r=" + str(n).encode() * 8
            head = b"SCRAM-SHA-256\0" + struct.pack("!i", len(first)) + first
            sock.sendall(f.password(head))
            data = _read_reply(sock)
            if data[:1] == b"R" and struct.unpack("!i", data[5:9])[0] == 10:
                data = _read_reply(sock)
            if data[:1] == b"R":
                nonce = data[9:].split(b",")[0]
                sock.sendall(f.password(b"c=biws," + nonce + b",p=" + b"A" * 43 + b"="))
                data = _read_reply(sock)
        assert data[:1] == b"E", data
        return f.fields(data[5:])["C"]

    with watched(guarded), ThreadPoolExecutor(8) as guessers:
        states = list(guessers.map(once, range(count)))
    assert set(states) <= {"28P01", "28000"} and "28P01" in states
    # After the free ones hardly any is looked at.
    assert states.count("28P01") < 100
    # Who knows the password gets in, when the wait that all from this address have by now is over.
    _until(lambda: _gets_in(guarded), "the password does not let in any more")


def _gets_in(guarded: Guarded) -> bool:
    try:
        with psycopg.connect(guarded.dsn("mz_system", ROOT), autocommit=True) as c:
            return c.execute("SELECT 'still here'").fetchone() == ("still here",)
    except psycopg.OperationalError as e:
        assert "too many failed logins" in str(e), e
        return False


def _read_reply(sock: ssl.SSLSocket) -> bytes:
    data = b""
    while len(data) < 5 or len(data) < 1 + struct.unpack("!i", data[1:5])[0]:
        piece = sock.recv(1 if len(data) < 5 else 1 + struct.unpack("!i", data[1:5])[0] - len(data))
        assert piece, data
        data += piece
    return data


@pytest.mark.chaos
def test_thousands_of_wrong_passwords(guarded: Guarded) -> None:
    _guess(guarded, 5_000)


@pytest.mark.server
def test_tls_asked_for_twice_and_in_the_middle(guarded: Guarded) -> None:
    """One TLS handshake per connection: a second request is refused, garbage inside or outside ends it
    alone."""
    with watched(guarded):
        for inside in (f.SSL, f.GSS + f.SSL, b"\x16\x03\x01\x02\x00" + b"x" * 600, f.SSL + f.startup()):
            raw = socket.create_connection(("127.0.0.1", guarded.sql_port), timeout=PATIENCE)
            raw.sendall(f.SSL)
            assert raw.recv(1) == b"S"
            with guarded.context.wrap_socket(raw, server_hostname="localhost") as sock:
                sock.sendall(inside)
                said = b""
                with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                    while piece := sock.recv(4096):
                        said += piece
                assert b"FATAL" in said, (inside[:9], said)
        for outside in (
            f.SSL + f.startup(),
            f.SSL + b"\x16\x03\x01",
            b"\x16\x03\x01\x00\x05hello",
            b"\x16" * 900,
        ):
            with socket.create_connection(("127.0.0.1", guarded.sql_port), timeout=PATIENCE) as raw:
                raw.sendall(outside)
                raw.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while raw.recv(4096):
                        pass


class Memory:
    """The largest resident size of a process while it is watched."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._before = self._most = process.memory_info().rss
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self._most = max(self._most, self._process.memory_info().rss)

    def grown(self) -> int:
        """By how much, at most; and the end of it."""
        self._stop.set()
        self._thread.join(PATIENCE)
        return self._most - self._before


def _read_all(c: Raw, statement: str) -> tuple[int, bytes]:
    """How many bytes the answer has, and the last of them. Message by message would take minutes."""
    c.socket.settimeout(PATIENCE)
    c.send(f.query(statement))
    size, end = 0, b""
    while not end.endswith(b"Z\0\0\0\5I"):
        piece = c.socket.recv(1 << 20)
        assert piece, end
        size += len(piece)
        end = (end + piece)[-100:]
    return size, end


# Beyond what a task may return, or a JVM of one gigabyte hold: (query, rows or None, SQLSTATE or None).
COMPUTED: list[tuple[LiteralString, int, str | None]] = [
    ("SELECT repeat('x', 1000), g FROM generate_series(1, 1040000) g", 1_040_000, None),
    ("SELECT a, b FROM generate_series(1, 1000) a, generate_series(1, 1000) b", 1_000_000, None),
    ("SELECT repeat('x', 1000000) FROM generate_series(1, 2000)", 0, "54000"),
    ("SELECT repeat('x', 1000000), g FROM generate_series(1, 900) g ORDER BY g DESC", 900, None),
    ("SELECT a.k, repeat(a.v, 10) FROM many a JOIN many b USING (k)", 1_000_000, None),
    ("SELECT row_number() OVER (), repeat('x', 1000000) FROM generate_series(1, 500)", 500, None),
    ("SELECT count(*) FROM generate_series(1, 1000000000)", 1, None),
    ("SELECT count(*) FROM (SELECT generate_series(1, 1000000000)) AS g", 0, "54000"),
    ("SELECT repeat('x', 2000000000)", 0, "54000"),
    ("SELECT repeat('x', 60000000) FROM generate_series(1, 40)", 0, "53200"),
    ("SELECT length(string_agg(repeat('x', 1000000), '')) FROM generate_series(1, 2000)", 0, "53200"),
]


@pytest.mark.chaos
@pytest.mark.spark
def test_gigabytes_that_are_computed(tmp_path: Path) -> None:
    """Each streams, or is an error of its own session: the JVM lives, and others are answered."""
    with server_process(tmp_path / "data", args=("--spark-driver-memory", "1g"), wait_ready=True) as server:
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            c.execute("CREATE TABLE many (k int, v text)")
            c.execute("INSERT INTO many SELECT 1, repeat('y', 100) FROM generate_series(1, 1000)")
        (jvm,) = [p for p in psutil.Process(server.pid).children(recursive=True) if p.name() == "java"]
        memory = Memory(psutil.Process(server.pid))
        with watched(server):
            for text, rows, state in COMPUTED:
                found = 0
                with psycopg.connect(server.sql_dsn, autocommit=True) as c, c.cursor() as cursor:
                    try:
                        for _ in cursor.stream(text, size=100):
                            found += 1
                        assert (found, None) == (rows, state), text
                    except psycopg.Error as e:
                        assert e.sqlstate == state, text
                    # On Spark, at once.
                    assert c.execute("SELECT count(*) FROM many").fetchone() == (1000,), text
                assert jvm.is_running() and jvm.status() != psutil.STATUS_ZOMBIE, text
        assert memory.grown() < GROWTH_BYTES


@pytest.mark.chaos
@pytest.mark.spark
def test_a_gigabyte_that_one_reads_and_another_does_not(tmp_path: Path) -> None:
    """Who stops reading has no more made than fits on the way, and a cancel ends it. Who reads gets all of it
    meanwhile, and is told where the limit is if it is beyond. Others are served."""
    step, rows = 80_000, 1_040_000
    with server_process(tmp_path / "data", wait_ready=True) as server:
        with psycopg.connect(server.sql_dsn, autocommit=True) as c, c.cursor() as cursor:
            c.execute("CREATE TABLE big (a text, b bigint)")
            for first in range(0, rows, step):
                with cursor.copy("COPY big FROM STDIN") as copy:
                    copy.write("".join([f"{'x' * 1000}\t{b}\n" for b in range(first, first + step)]))
            assert c.execute("SELECT count(*) FROM big").fetchone() == (rows,)
        with watched(server):
            memory = Memory(psutil.Process(server.pid))
            with Raw(server.sql_port, receive_buffer=4096) as idle:
                idle.send(f.query("SELECT * FROM big"))
                assert idle.next() is not None
                with Raw(server.sql_port) as reader:
                    size, end = _read_all(reader, "SELECT * FROM big")
                assert f"SELECT {rows}\0".encode() in end
                # A head, a count, two lengths and the values; and what comes before and after the rows.
                assert 0 <= size - sum(1015 + len(str(b)) for b in range(rows)) < 200
                with Raw(server.sql_port, login=False) as canceller:
                    canceller.send(f.cancel(idle.process_id, idle.key))
                    assert canceller.rest() == []
                assert errors(idle.until("Z"))[0]["C"] == "57014"
            assert memory.grown() < GROWTH_BYTES
            with psycopg.connect(server.sql_dsn, autocommit=True) as c, c.cursor() as cursor:
                with pytest.raises(psycopg.Error) as caught:
                    for _ in cursor.stream("SELECT * FROM big UNION ALL SELECT * FROM big", size=1000):
                        pass
                assert caught.value.sqlstate == "54000"
