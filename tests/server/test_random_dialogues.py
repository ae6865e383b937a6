"""Random conversations with PostgreSQL and with Tidemill: the same messages come back.

Compared are the kinds and the order of messages, command tags, rows and their types, SQLSTATEs, parameters
that are reported and the transaction status. What is known to differ is `KNOWN`, with the reason. A
conversation that differs is made as small as it goes, in the form of `dialogues.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import pgframes as f
import pytest
from dialogue import Dialogue, shown
from random_dialogues import Maker
from test_pgwire_postgres import message

from support.embedded import postgres_server
from support.server import ServerProcess

SETUP = "CREATE TABLE random_rows (seed int4, n int4)"
# Rows that are no part of any conversation tell where a turn's replies end, whatever state it left.
_END = f.SYNC + f.close(b"S", "no such") * 4 + f.SYNC
_ENDED = ["3", "3", "3", "3"]


class Known(NamedTuple):
    """A difference that is known: patterns of the line and of the first replies that differ."""

    why: str
    line: str
    theirs: str
    ours: str


# Where one is met, the conversation is compared up to there.
KNOWN = (
    Known(
        "the portal of a simple query's failed statement stays until the block ends",
        "[DE] (P )?-",
        "n|E .*C=(25P02|55000)",
        "E .*C=34000",
    ),
    Known("EXECUTE is looked at when it is prepared", "P . EXECUTE", "1", "E .*C=(42601|0A000)"),
    # docs/protocol.md; PostgreSQL sends rows to a client that was told of others, or of none.
    Known("an EXECUTE that has changed since it was described fails", "(^|; )E ", "[DC] ", "E .*C=0A000"),
    Known(
        "PostgreSQL warns that it did not clean up a portal that was bound in a failed block",
        ".*",
        "N S=WARNING V=WARNING C=01000",
        "C ROLLBACK",
    ),
    Known("FETCH from a portal that has no rows", ".*", "E .*C=XX000", "E .*C=55000"),
    Known("an empty statement begins no pipeline", r"P \S  ;;", "E .*C=25P01", "C DECLARE"),
    Known("EXECUTE of a prepared BEGIN begins nothing", "EXECUTE", "Z I", "Z [TE]"),
    Known("PostgreSQL gives up the connection", "EXECUTE", "E S=FATAL .*C=XX000", ""),
    Known(
        "another message than the copy's own ends the connection: two errors tell it, or one",
        ".*",
        "E S=ERROR .*C=08P01",
        "E S=FATAL .*C=08P01",
    ),
)


def known(line: str, expected: Sequence[str], got: Sequence[str]) -> Known | None:
    theirs, ours = next(((a, b) for a, b in zip_longest(expected, got, fillvalue="") if a != b))
    for one in KNOWN:
        if re.search(one.line, line) and re.match(one.theirs, theirs) and re.match(one.ours, ours):
            return one
    return None


class Pair:
    """PostgreSQL and Tidemill, to be told the same."""

    def __init__(self, theirs: Callable[[], Dialogue], ours: Callable[[], Dialogue]) -> None:
        self._theirs = theirs
        self._ours = ours

    def difference(self, lines: Sequence[str]) -> str | None:
        """Of the first turn that they answer differently."""
        with self._theirs() as theirs, self._ours() as ours:
            for line in lines:
                turn = b"".join(message(part.strip()) for part in line.split(";;")) + _END
                expected, got = answers(theirs, turn), answers(ours, turn)
                if got == expected and "the end" in got:
                    return None
                if expected != got and known(line, expected, got) is not None:
                    return None
                if expected != got:
                    return f"{line}\nPostgreSQL: {expected}\nTidemill:   {got}"
        return None

    def smallest(self, lines: Sequence[str]) -> list[str]:
        """Without the turns and messages that the difference does not need."""
        turns = [line.split(" ;; ") for line in lines]

        def differs(turns: list[list[str]]) -> bool:
            return self.difference([" ;; ".join(t) for t in turns if t]) is not None

        shrunk = True
        while shrunk:
            shrunk = False
            for n in reversed(range(len(turns))):
                without = turns[:n] + turns[n + 1 :]
                if differs(without):
                    turns, shrunk = without, True
                    continue
                for m in reversed(range(len(turns[n]))):
                    less = [*turns[:n], turns[n][:m] + turns[n][m + 1 :], *turns[n + 1 :]]
                    if turns[n][m] not in ("c", "f no more") and differs(less):
                        turns, shrunk = less, True
        return [" ;; ".join(t) for t in turns if t]


def answers(dialogue: Dialogue, turn: bytes) -> list[str]:
    found: list[str] = []
    try:
        dialogue.socket.sendall(turn)
    except OSError:
        return ["the end"]
    while found[-5:-1] != _ENDED or not found[-1].startswith("Z"):
        try:
            reply = dialogue.next()
        except ConnectionError:
            reply = None
        if reply is None:
            return [*found, "the end"]
        found.append(comparable(shown(*reply)))
    return found[:-5]


def comparable(reply: str) -> str:
    # Where in the text the error is, and what of the table, is compared elsewhere.
    return re.sub(r" [Pstcdn]=\S+", "", reply) if reply[0] == "E" else reply


@pytest.fixture(scope="module")
def pair(server: ServerProcess) -> Iterator[Pair]:
    with postgres_server() as uri:
        path = re.search(r"host=([^&]+)", uri)
        assert path is not None
        address = f"{path[1]}/.s.PGSQL.5432"

        def theirs() -> Dialogue:
            return Dialogue(address, user="postgres", database="postgres", TimeZone="UTC")

        def ours(database: str = "random_dialogues") -> Dialogue:
            return Dialogue(server.sql_port, user="materialize", database=database, TimeZone="UTC")

        with ours("materialize") as c:
            c.played([f.query("CREATE DATABASE random_dialogues")])
            for opened in (theirs, ours):
                with opened() as d:
                    assert d.played([f.query(SETUP)])[0][0].startswith("C ")
            yield Pair(theirs, ours)
            c.played([f.query("DROP DATABASE random_dialogues CASCADE")])


def compare(pair: Pair, seeds: Sequence[int]) -> None:
    for seed in seeds:
        lines = Maker(seed).conversation()
        if pair.difference(lines) is not None:
            small = pair.smallest(lines)
            pytest.fail(f"seed {seed}:\n" + "\n".join(small) + f"\n\n{pair.difference(small)}")


@pytest.mark.parametrize("block", range(4))
def test_the_same_messages_come_back(block: int, pair: Pair) -> None:
    compare(pair, range(block * 50, (block + 1) * 50))


@pytest.mark.chaos
@pytest.mark.parametrize("block", range(20))
def test_the_same_messages_come_back_in_thousands(block: int, pair: Pair) -> None:
    compare(pair, range(10_000 + block * 250, 10_000 + (block + 1) * 250))
