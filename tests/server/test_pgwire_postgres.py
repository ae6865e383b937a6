"""The same conversations with PostgreSQL and with Tidemill: the same replies, message by message.

`dialogues.txt` has them: conversations under a heading, one turn a line, the messages of a turn separated by
`;;` (a Sync is added where a turn has none and no Query). Compared is what programs act on: kinds and order
of messages, types, formats and values, tags, SQLSTATEs, places of errors, severities, parameters, transaction
status. A place where PostgreSQL gives none is welcome.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

import pgframes as f
import pytest
from dialogue import Dialogue

from support.embedded import postgres_server
from support.server import ServerProcess

FILE = Path(__file__).with_name("dialogues.txt")
SETUP = (
    """CREATE TABLE zz (a int4, b text, c numeric(10,2), d timestamptz, e bool, f int8, g float8, h date,
    i uuid, j jsonb)""",
    "CREATE TABLE cc (a int4, b text DEFAULT 'by itself')",
    "CREATE TABLE nn (a int4 NOT NULL, b text)",
)


def conversations() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    turns: list[str] = []
    for line in FILE.read_text().splitlines():
        if line.startswith("== "):
            turns = found.setdefault(line[3:], [])
        elif line and not line.startswith("#"):
            turns.append(line)
    return found


CONVERSATIONS = conversations()


@pytest.fixture(scope="module")
def socket_path() -> Iterator[str]:
    """A PostgreSQL."""
    with postgres_server() as uri:
        path = re.search(r"host=([^&]+)", uri)
        assert path is not None
        address = f"{path[1]}/.s.PGSQL.5432"
        with Dialogue(address, user="postgres", database="postgres") as c:
            c.played([f.query("ALTER SYSTEM SET timezone = 'UTC'"), f.query("SELECT pg_reload_conf()")])
            for statement in SETUP:
                assert c.played([f.query(statement)])[0][0].startswith("C "), statement
        yield address


@pytest.fixture(scope="module")
def port(server: ServerProcess) -> Iterator[int]:
    """Tidemill, with the same tables in a database of their own."""
    with Dialogue(server.sql_port, user="materialize", database="materialize") as c:
        c.played([f.query("CREATE DATABASE dialogues")])
        with Dialogue(server.sql_port, user="materialize", database="dialogues") as inside:
            for statement in SETUP:
                assert inside.played([f.query(statement)])[0][0].startswith("C "), statement
        yield server.sql_port
        c.played([f.query("DROP DATABASE dialogues CASCADE")])


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_replies(name: str, socket_path: str, port: int) -> None:
    turns = [turn_of(line) for line in CONVERSATIONS[name]]
    # The time zone of PostgreSQL's own settings may be reported under another name than ours.
    with Dialogue(socket_path, user="postgres", database="postgres", TimeZone="UTC") as theirs:
        expected = theirs.played(turns)
    with Dialogue(port, user="materialize", database="dialogues", TimeZone="UTC") as ours:
        got = ours.played(turns)
    for line, a, b in zip(CONVERSATIONS[name], expected, got, strict=True):
        assert [_without_surplus(y, x) for x, y in zip(a, b, strict=False)] == a and len(a) == len(b), (
            f"{line}\nPostgreSQL: {a}\nTidemill:   {b}"
        )


def _without_surplus(ours: str, theirs: str) -> str:
    return re.sub(r" P=\d+", "", ours) if " P=" not in theirs else ours


def turn_of(line: str) -> bytes:
    messages = [message(part.strip()) for part in line.split(";;")]
    if not any(part.strip()[0] in "QS?!b" for part in line.split(";;")):
        messages.append(f.SYNC)
    return b"".join(messages)


def message(text: str) -> bytes:
    """One message, or for `?` (describe) and `!` (run) the chain that asks for it, Sync included."""
    kind, _, rest = text.partition(" ")
    words = rest.split()
    oids = [int(n) for n in re.findall(r"\d+", kind)]
    match kind[0]:
        case "Q":
            return f.query(rest)
        case "?":
            return f.parse(rest, oids=oids) + f.describe(b"S") + f.SYNC
        case "!":
            sql, *params = (part.strip() for part in rest.split(" | "))
            bound = f.bind([None if p == "\\N" else p.encode() for p in params], result_formats=oids)
            chain = f.parse(sql) + f.describe(b"S") + bound + f.describe()
            return chain + f.execute() + f.SYNC
        case "b":
            sql, param = (part.strip() for part in rest.split(" | "))
            raw = codecs.escape_decode(param.encode())[0]
            bound = f.bind([raw], param_formats=oids)  # pyright: ignore[reportArgumentType]
            return f.parse(sql) + bound + f.execute() + f.SYNC
        case "P":
            name, _, sql = rest.partition(" ")
            return f.parse(sql, _name(name), oids)
        case "B":
            return f.bind([w.encode() for w in words[2:]], _name(words[0]), _name(words[1]))
        case "D":
            return f.describe(words[0].encode(), _name(words[1]))
        case "C":
            return f.close(words[0].encode(), _name(words[1]))
        case "E":
            return f.execute(_name(words[0]), int(words[1]) if len(words) > 1 else 0)
        case "d":
            return f.copy_data(codecs.escape_decode(rest.encode())[0])  # pyright: ignore[reportArgumentType]
        case _:
            return {"S": f.SYNC, "H": f.FLUSH, "c": f.COPY_DONE, "f": f.copy_fail(rest)}[kind]


def _name(word: str) -> str:
    return "" if word == "-" else word


@pytest.mark.parametrize("options", [(), ("_pq_.x",), ("_pq_.x", "_pq_.y")], ids=len)
@pytest.mark.parametrize("minor", [0, 1, 2, 3, 9999])
def test_the_same_greeting(minor: int, options: tuple[str, ...], socket_path: str, port: int) -> None:
    """Versions and options are negotiated alike: the version, what is not known of it, the length of the key,
    the parameters that are reported."""
    asked = dict.fromkeys(options, "1")
    with Dialogue(socket_path, user="postgres", database="postgres", minor=minor, **asked) as c:
        expected = _greeting(c.greeting)
    with Dialogue(port, user="materialize", database="dialogues", minor=minor, **asked) as c:
        assert _greeting(c.greeting) == expected


def _greeting(messages: list[tuple[str, bytes]]) -> list[object]:
    found: list[object] = [(tag, body) for tag, body in messages if tag in "vRZ"]
    found += [len(body) for tag, body in messages if tag == "K"]
    # How often SCRAM hashes is a setting of PostgreSQL's that concerns whoever sets a password there.
    names = sorted(body.split(b"\0")[0] for tag, body in messages if tag == "S")
    return [*found, [name for name in names if name != b"scram_iterations"]]
