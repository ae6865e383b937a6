"""Whatever is kept between statements must not change an answer: random sequences of statements
(`sequences.py`) in a server with all its caches and in one without any, message by message the same; and
beside PostgreSQL, with the same rows, tags and SQLSTATEs.

`make test` plays a few seeds, `make chaos` many. What one finds is mended, and its smallest form is a case of
`dialogues.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pgframes as f
import pytest
from dialogue import Dialogue, shown
from sequences import sequence
from test_pgwire_postgres import turn_of

from support.embedded import postgres_server
from support.server import ServerProcess

pytestmark = pytest.mark.server

FEW, MANY = range(5), range(1000, 1400)
LENGTH = 120
USER = "seq_owner"
SETUP = (f"CREATE ROLE {USER} SUPERUSER LOGIN", "CREATE ROLE seq_a", "CREATE ROLE seq_b")
# So that a statement that needs Spark after all ends.
SETTINGS = {"TimeZone": "UTC", "search_path": "public", "statement_timeout": "3000"}
_MOMENT = re.compile(r"20(?:2[4-9]|[3-9]\d)-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d(?::\d\d)?")


@pytest.fixture(scope="module", params=["few", pytest.param("many", marks=pytest.mark.chaos)])
def seeds(request: pytest.FixtureRequest) -> range:
    return FEW if request.param == "few" else MANY


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of a server with its caches and of one without. Both are sent the same and nothing else: memberships of
    roles and the numbers of relations depend on all that was sent before."""
    home = tmp_path_factory.mktemp("sequences")
    with _server(home / "with") as ours, _server(home / "without", {"TIDEMILL_TEST_CACHES": "off"}) as plain:
        yield ours, plain


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of the server that is compared with PostgreSQL."""
    with _server(tmp_path_factory.mktemp("sequences") / "beside") as port:
        yield port


@contextmanager
def _server(home: Path, env: Mapping[str, str] | None = None) -> Generator[int]:
    server = ServerProcess(home, env)
    server.spark = False
    try:
        server.start()
        _execute(server.sql_port, *SETUP)
        yield server.sql_port
    finally:
        server.close()


@pytest.fixture(scope="module")
def socket_path() -> Iterator[str]:
    with postgres_server() as uri:
        path = re.search(r"host=([^&]+)", uri)
        assert path is not None
        address = f"{path[1]}/.s.PGSQL.5432"
        _execute(address, *SETUP)
        yield address


def _execute(address: str | int, *statements: str) -> None:
    """As the first superuser."""
    user, database = ("postgres", "postgres") if isinstance(address, str) else ("mz_system", "materialize")
    with Dialogue(address, user=user, database=database) as c:
        for statement in statements:
            assert c.played([f.query(statement)])[0][0].startswith("C "), statement


class Player:
    """A session in a database of its own. Moments of now are shown as `later` or the `same`."""

    def __init__(self, address: str | int, database: str) -> None:
        _execute(address, f"CREATE DATABASE {database}")
        self._dialogue = Dialogue(address, user=USER, database=database, minor=0, **SETTINGS)
        self._last = datetime.min

    def play(self, line: str) -> list[str]:
        return [self._shown(tag, body) for tag, body in self._dialogue.exchange(turn_of(line))]

    def _shown(self, tag: str, body: bytes) -> str:
        if tag in "EN":
            return f"{tag} {sorted(f.fields(body).items())}"
        return _MOMENT.sub(self._moment, shown(tag, body))

    def _moment(self, found: re.Match[str]) -> str:
        at = datetime.fromisoformat(found[0])
        before, self._last = self._last, at.replace(tzinfo=None) - (at.utcoffset() or at - at)
        return "same" if before == self._last else "later" if before < self._last else "EARLIER"

    def close(self) -> None:
        self._dialogue.close()


def test_caches_do_not_change_an_answer(ports: tuple[int, int], seeds: range) -> None:
    for seed in seeds:
        ours, plain = (Player(port, f"own_{seed}") for port in ports)
        lines = sequence(seed, LENGTH, beside_postgres=False)
        for n, line in enumerate(lines):
            got, expected = ours.play(line), plain.play(line)
            assert got == expected, _told(seed, lines[: n + 1], expected, got)
            assert not any("XX000" in reply for reply in got), (seed, line, got)
        ours.close()
        plain.close()


def test_sequences_beside_postgres(port: int, socket_path: str, seeds: range) -> None:
    for seed in seeds:
        ours, theirs = Player(port, f"pg_{seed}"), Player(socket_path, f"pg_{seed}")
        lines = sequence(seed, LENGTH, beside_postgres=True)
        for n, line in enumerate(lines):
            got, expected = _outcome(ours.play(line)), _outcome(theirs.play(line))
            assert got == expected, _told(seed, lines[: n + 1], expected, got)
        ours.close()
        theirs.close()


def _outcome(replies: list[str]) -> list[str]:
    """Rows, tags, SQLSTATEs and the transaction's status."""
    found = [r for r in replies if r[:2] in ("D ", "C ", "E ", "Z ")]
    return ["E " + "".join(re.findall(r"\('C', '(.{5})'\)", r)) if r[0] == "E" else r for r in found]


def _told(seed: int, lines: list[str], expected: list[str], got: list[str]) -> str:
    return "\n".join([f"seed {seed}", *lines, f"expected: {expected}", f"got:      {got}"])
