"""Decoders for tests of what stands around them: plain ones, with errors on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidemill.decode.contract import Decoded
from tidemill.types.model import BYTEA, INT8, TEXT, Column

# What cannot be decoded, for all of them.
BAD = b"garbage"


WRONG = "it is garbage"


class OneColumn:
    """The message is the value: text or bytes."""

    def __init__(self, name: str = "text", *, raw: bool = False) -> None:
        self.columns: tuple[Column, ...] = (Column(name, BYTEA if raw else TEXT, nullable=False),)
        self._type = pa.binary() if raw else pa.string()

    def decode(self, messages: pa.Array) -> Decoded:
        plain = messages.to_pylist()
        bad = [message == BAD for message in plain]
        values = [None if b else message for message, b in zip(plain, bad, strict=True)]
        errors = [WRONG if b else None for b in bad]
        column = pa.array(values, pa.binary()).cast(self._type)
        return Decoded([column], pa.array(errors, pa.string()) if any(bad) else None)


class Numbers:
    """The message is whole numbers with commas between them, one per column."""

    def __init__(self, *names: str) -> None:
        self.columns: tuple[Column, ...] = tuple(Column(name, INT8, nullable=False) for name in names)

    def decode(self, messages: pa.Array) -> Decoded:
        rows: list[list[int | None]] = []
        errors: list[str | None] = []
        for message in messages.to_pylist():
            bad = message == BAD
            none: list[int | None] = [None] * len(self.columns)
            rows.append(none if message is None or bad else [int(n) for n in message.split(b",")])
            errors.append(WRONG if bad else None)
        columns = [pa.array(list(column), pa.int64()) for column in zip(*rows, strict=True)]
        if not rows:
            columns = [pa.array([], pa.int64()) for _ in self.columns]
        return Decoded(columns, pa.array(errors, pa.string()) if any(errors) else None)


def spec(
    envelope: str = "none",
    *,
    key: str | Mapping[str, Any] | None = "text",
    value: str | Mapping[str, Any] = "text",
    include: list[dict[str, Any]] | None = None,
    name: str = "t",
    **of_envelope: Any,
) -> dict[str, Any]:
    """An output as a definition has it."""

    def form(of: str | Mapping[str, Any]) -> dict[str, Any]:
        return {"format": of} if isinstance(of, str) else dict(of)

    return {
        "name": name,
        "key": None if key is None else form(key),
        "value": form(value),
        "include": include or [],
        "envelope": {"kind": envelope, **of_envelope},
    }
