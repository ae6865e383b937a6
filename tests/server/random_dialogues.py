"""Conversations at the level of messages, made at random from a seed, for test_random_dialogues.

A conversation is what `dialogues.txt` has: lines of messages, so that what is found can be put there as it
is. Statements need no Spark: constants, relations of the catalog, INSERT, COPY. Names are few, so that they
clash; an error may come anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable

STATEMENTS = ("-", "s", "t")
PORTALS = ("-", "p", "c")
# A cursor and a portal are of one name space.
CURSORS = ("p", "c", "h")

# What returns rows and takes no parameters.
QUERIES = (
    "SELECT 1",
    "SELECT 'x' AS t, NULL::int4 AS n",
    "VALUES (1), (2), (3), (4), (5)",
    "VALUES (1, 'a'), (2, NULL), (3, 'c')",
    "SELECT name FROM pg_cursors WHERE name <> '' ORDER BY name",
    "SHOW application_name",
)
WITH_PARAMETERS = ("SELECT $1::int4", "SELECT $1::int4 AS n, 'y'", "SELECT $1::text")
WRONG = ("SELEC", "SELECT nope", "SELECT 'x'::int4", "SELECT * FROM nope", "EXECUTE nope", "FETCH nope", "")
SETTINGS = ("application_name", "timezone")
VALUES = {"application_name": ("one", "two"), "timezone": ("UTC", "Asia/Tokyo", "Europe/Berlin")}


class Maker:
    """Makes one conversation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.row = 0

    def conversation(self) -> list[str]:
        return [self._turn() for _ in range(self.random.randint(4, 14))]

    def _turn(self) -> str:
        make = self._of((5, self._simple), (8, self._extended), (1, self._copy_in), (1, self._odd))
        return " ;; ".join(make())

    def _of(self, *choices: tuple[int, Callable[[], list[str]]]) -> Callable[[], list[str]]:
        return self.random.choices([c[1] for c in choices], [c[0] for c in choices])[0]

    def _one(self, values: tuple[str, ...]) -> str:
        return self.random.choice(values)

    # -- statements

    def _insert(self) -> str:
        self.row += 1
        return f"INSERT INTO random_rows VALUES ({self.seed}, {self.row})"

    def _set(self) -> str:
        name = self._one(SETTINGS)
        local = self._one(("", "", "LOCAL "))
        return self._one((f"SET {local}{name} = '{self._one(VALUES[name])}'", f"RESET {name}"))

    def _block(self) -> str:
        return self._one(
            (
                *("BEGIN", "BEGIN", "BEGIN", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT b"),
                *("ROLLBACK TO a", "ROLLBACK TO b", "RELEASE a", "RELEASE b", "COMMIT AND CHAIN"),
            )
        )

    def _cursor(self) -> str:
        name = self._one(CURSORS)
        count = self._one(("", "1 FROM ", "2 FROM ", "ALL FROM ", "0 FROM ", "NEXT FROM "))
        hold = self._one(("", "", "", "WITH HOLD "))
        binary = self._one(("", "", "", "BINARY "))
        return self._one(
            (
                f"DECLARE {name} {binary}CURSOR {hold}FOR {self._one(QUERIES[:4])}",
                f"DECLARE {name} CURSOR {hold}FOR {self._one(QUERIES[:4])}",
                f"FETCH {count}{name}",
                f"FETCH {count}{name}",
                f"MOVE {count}{name}",
                f"CLOSE {name}",
                "CLOSE ALL",
            )
        )

    def _prepared(self) -> str:
        name = self._one(("s", "t"))
        return self._one(
            (
                f"PREPARE {name} AS {self._one(QUERIES[:4])}",
                f"PREPARE {name} (int4) AS SELECT $1",
                f"EXECUTE {name}",
                f"EXECUTE {name}(7)",
                f"DEALLOCATE {name}",
                "DEALLOCATE ALL",
            )
        )

    def _statement(self) -> str:
        make = self.random.choices(
            (
                lambda: self._one(QUERIES),
                self._insert,
                self._set,
                self._block,
                self._cursor,
                self._prepared,
                lambda: self._one(WRONG),
                lambda: self._one(("DISCARD ALL", "COPY (VALUES (1), (2)) TO STDOUT")),
            ),
            (5, 3, 2, 5, 8, 2, 1, 1),
        )[0]
        return make()

    # -- turns

    def _simple(self) -> list[str]:
        count = self.random.choices((1, 2, 3, 4), (10, 3, 2, 1))[0]
        return ["Q " + "; ".join(self._statement() for _ in range(count))]

    def _extended(self) -> list[str]:
        messages: list[str] = []
        for _ in range(self.random.randint(1, 4)):
            messages += self._of(
                (8, self._chain), (2, self._again), (2, self._describe), (1, self._close), (1, self._flush)
            )()
        return messages

    def _chain(self) -> list[str]:
        statement, portal = self._one(STATEMENTS), self._one(PORTALS)
        parameter = ""
        if self.random.random() < 0.2:
            sql = self._one(WITH_PARAMETERS)
            parameter = " " + self._one(("7", "7", "x", ""))
        else:
            sql = self._statement()
            if sql.startswith(("EXECUTE", "FETCH")):
                statement = "-"  # PostgreSQL crashes at EXECUTE of these
        messages = [f"P {statement} {sql}", f"B {portal} {statement}{parameter}"]
        if self.random.random() < 0.3:
            messages.append(f"D P {portal}")
        messages += [f"E {portal} {self._one(('0', '0', '1', '2'))}"]
        if self.random.random() < 0.15:
            messages.pop(self.random.randrange(len(messages)))
        return messages

    def _again(self) -> list[str]:
        portal = self._one((*PORTALS, "h"))
        return self._one_list(
            [f"E {portal} {self._one(('0', '1', '2'))}"],
            [f"B {portal} {self._one(STATEMENTS)}"],
            [f"B {portal} {self._one(STATEMENTS)}", f"E {portal} 1"],
        )

    def _one_list(self, *choices: list[str]) -> list[str]:
        return self.random.choice(choices)

    def _describe(self) -> list[str]:
        return self._one_list([f"D S {self._one(STATEMENTS)}"], [f"D P {self._one((*PORTALS, 'h'))}"])

    def _close(self) -> list[str]:
        return self._one_list([f"C S {self._one(STATEMENTS)}"], [f"C P {self._one((*PORTALS, 'h'))}"])

    def _flush(self) -> list[str]:
        return ["H"]

    def _copy_in(self) -> list[str]:
        self.row += 1
        begin = self._one_list(
            ["Q COPY random_rows FROM STDIN"],
            ["P - COPY random_rows FROM STDIN", "B - -", "E -"],
        )
        data = self._one((f"d {self.seed}\\t{self.row}\\n", f"d {self.seed}\\n", f"d {self.seed}\\tx\\n"))
        return [*begin, data, self._one(("c", "c", "f no more"))]

    def _odd(self) -> list[str]:
        """Data that nobody asked for; several ends of one chain."""
        return self._one_list(
            ["d x\\n", "c"],
            ["S", "S"],
            [*self._chain(), "S", *self._chain()],
        )
