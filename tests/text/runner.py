"""Runs the blocks of a text test over real connections and says what came back, in the form that the file
has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from support.wire import Answers, Wire

from .slt import Block, Narration, format_rows


class Mismatch(AssertionError):
    """A directive's promise was not kept (a statement failed that must succeed, or the other way round)."""


class Runner:
    """One file's connections, variables and masks. `connect` opens a connection for a role."""

    def __init__(self, connect: Callable[[str], Wire]) -> None:
        self._connect = connect
        self._connections: dict[str, Wire] = {}
        self._current = "default"
        self._role = "materialize"
        self._variables: dict[str, str] = {}
        self._masks: list[tuple[re.Pattern[str], str]] = []

    def run(self, blocks: Sequence[Block | Narration]) -> list[Block | Narration]:
        """The blocks with the results that were got, where a result is kept at all."""
        return [block if isinstance(block, Narration) else self._run(block) for block in blocks]

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _run(self, block: Block) -> Block:
        match block.kind:
            case "connection":
                self._switch(block.arguments)
            case "sleep":
                time.sleep(float(block.arguments[0]) / 1000)
            case "mask":
                self._masks.append((re.compile(block.arguments[0]), block.arguments[1]))
            case "let":
                self._let(block)
            case _:
                return self._statement(block)
        return block

    def _switch(self, arguments: list[str]) -> None:
        self._current = arguments[0]
        self._role = "materialize"
        if len(arguments) > 1:
            self._role = arguments[1].removeprefix("user=")

    def _wire(self) -> Wire:
        if self._current not in self._connections:
            self._connections[self._current] = self._connect(self._role)
        return self._connections[self._current]

    def _execute(self, block: Block) -> Answers:
        sql = block.sql
        for name, value in self._variables.items():
            sql = sql.replace(f"${{{name}}}", value)
        return self._wire().run(sql, block.extended)

    def _let(self, block: Block) -> None:
        found = self._execute(block)
        if found.failure or not found.answers or [len(r) for r in found.answers[-1].rows] != [1]:
            raise Mismatch(f"line {block.line}: the statement did not return one value: {found}")
        self._variables[block.arguments[0]] = found.answers[-1].rows[0][0] or ""

    def _statement(self, block: Block) -> Block:
        found = self._execute(block)
        wants_error = block.kind == "statement error"
        if bool(found.failure) != wants_error:
            raise Mismatch(f"line {block.line}: expected {block.head!r} and got {found}\n{block.sql}")
        if block.kind == "statement ok" and block.expected is None:
            return block
        lines = [self._masked(line) for line in self._lines(block, found)]
        return replace(block, expected=lines)

    def _lines(self, block: Block, found: Answers) -> list[str]:
        if found.failure:
            failure = found.failure
            lines = [f"{failure.sqlstate}: {failure.message}"]
            lines += [f"DETAIL: {failure.detail}"] if failure.detail else []
            lines += [f"HINT: {failure.hint}"] if failure.hint else []
            return [*found.notices, *"\n".join(lines).splitlines()]
        lines = list(found.notices)
        for answer in found.answers:
            if answer.names is None:
                lines.append(answer.tag)
            else:
                lines += format_rows(answer.names, answer.rows, rowsort=block.rowsort)
        return lines

    def _masked(self, line: str) -> str:
        for name, value in self._variables.items():
            if value:
                line = line.replace(value, f"${{{name}}}")
        for pattern, text in self._masks:
            line = pattern.sub(text, line)
        return line.rstrip() or "(empty)"
