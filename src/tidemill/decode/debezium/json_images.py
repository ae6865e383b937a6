"""Debezium changes in JSON, with `before`, `after`, `op` and `source`. A row is one jsonb.

Messages of known shapes are read by columns (`json_columns`), the others one by one (`json_message`).
Messages and keys may have the schema of Kafka Connect around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode import utf8
from tidemill.decode.contract import Decoder
from tidemill.decode.debezium.images import DELETE, INSERT, UPDATE, Images, letters
from tidemill.decode.debezium.json_changes import complaint, suspects
from tidemill.decode.debezium.json_columns import ChangeColumns, ChangeGroup
from tidemill.decode.debezium.json_message import ChangeParser, has_key
from tidemill.decode.debezium.placeholders import filled, lacks
from tidemill.decode.debezium.positions import CONNECTORS, SourceFields
from tidemill.decode.merge import merge
from tidemill.errors import TidemillError
from tidemill.types.columns import valid_mask
from tidemill.types.json import canonical_json
from tidemill.types.kernels import pc

_WHOLE_NUMBER = r"^-?[0-9]{1,18}$"
_NOTHING: Mapping[str, Any] = {}


class MemberFields:
    """The members of the objects `source`, made columns when they are asked for."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        self._sources = sources

    def text(self, name: str) -> pa.Array:
        found = [source.get(name) for source in self._sources]
        try:
            return pa.array(found, pa.string())
        except (pa.ArrowTypeError, pa.ArrowInvalid, UnicodeEncodeError):
            return pa.array([_spelt(each) for each in found], pa.string())

    def number(self, name: str) -> pa.Array:
        return _numbers(self.text(name))  # as they are spelt


def _numbers(spelt: pa.Array) -> pa.Array:
    try:
        return spelt.cast(pa.int64())
    except pa.ArrowInvalid:
        whole = pc.match_substring_regex(spelt, _WHOLE_NUMBER)
        return pc.if_else(whole, spelt, None).cast(pa.int64())


def _spelt(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A half of a surrogate pair may stand there, as an escape.
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


class JsonImages:
    """Values as JSON; the rows are in the decoder's one column."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._columns = ChangeColumns()
        self._parser = ChangeParser()

    def read(self, values: pa.Array, raw_keys: pa.Array, keys: Sequence[pa.Array]) -> Images:
        likely = suspects(values)
        texts, wrong = utf8.texts(values)
        plain = valid_mask(values) & valid_mask(raw_keys) & ~likely
        if wrong is not None:
            plain &= ~wrong
        groups = self._columns.read(texts, raw_keys, np.flatnonzero(plain))
        rest = np.ones(len(values), np.bool_)
        for group in groups:
            rest[group.rows] = False
        rest &= valid_mask(values)
        others = np.flatnonzero(rest)
        if not len(others):
            return _joined(len(values), groups, None, others)
        if len(others) == len(values):
            return self._one_by_one(values, raw_keys, likely)
        chosen = pa.array(others)
        read = self._one_by_one(values.take(chosen), raw_keys.take(chosen), likely[others])
        return _joined(len(values), groups, read, others)

    def _one_by_one(self, values: pa.Array, raw_keys: pa.Array, likely: np.ndarray) -> Images:
        count = len(values)
        befores: list[str | None] = [None] * count
        afters: list[str | None] = [None] * count
        sources: list[Mapping[str, Any]] = [_NOTHING] * count
        ops: list[str | None] = [None] * count
        errors: dict[int, str] = {}
        foreign = np.zeros(count, np.bool_)
        for at, (value, key) in enumerate(zip(values.to_pylist(), raw_keys.to_pylist(), strict=True)):
            if value is None:
                continue
            try:
                change = self._parser.parse(value.decode())
                if change is None:
                    continue
                befores[at], afters[at], sources[at] = change.before, change.after, change.source
                ops[at] = change.op
                if key is not None and not has_key(change, key.decode(errors="replace")):
                    foreign[at] = True
            except (ValueError, RecursionError) as error:
                errors[at] = complaint(self._decoder, value, error)
        op = letters(pa.array(ops, pa.string()))
        unfilled = _fill(likely, befores, afters, sources, op)
        old, old_wrong = self._rows(befores)
        new, new_wrong = self._rows(afters)
        own = pa.array([errors.get(at) for at in range(count)], pa.string()) if errors else None
        wrong = [each for each in (own, old_wrong, new_wrong) if each is not None]
        return Images(
            op,
            [old],
            [new],
            valid_mask(old),
            valid_mask(new),
            MemberFields(sources),
            unfilled,
            foreign,
            pc.coalesce(*wrong) if wrong else None,
        )

    def _rows(self, texts: list[str | None]) -> tuple[pa.Array, pa.Array | None]:
        decoded = self._decoder.decode(pa.array(texts, pa.string()).cast(pa.binary()))
        return decoded.columns[0], decoded.errors


def _fill(
    likely: np.ndarray,
    befores: list[str | None],
    afters: list[str | None],
    sources: list[Mapping[str, Any]],
    op: np.ndarray,
) -> np.ndarray:
    """Put members of the old rows in place of placeholders; gives which rows lack some."""
    unfilled = np.zeros(len(op), np.bool_)
    for at in np.flatnonzero(likely).tolist():
        connector = CONNECTORS.get(str(sources[at].get("connector")))
        # A snapshot reads the values: what looks like a placeholder is one of them.
        if connector is None or not connector.placeholders or op[at] not in (INSERT, UPDATE, DELETE):
            continue
        before, after = befores[at], afters[at]
        if before is not None and lacks(before):
            unfilled[at] = True
        elif after is not None and lacks(after):
            try:
                if before is not None:
                    after = afters[at] = filled(canonical_json(after), canonical_json(before))
            except TidemillError:
                continue  # the decoder says what is wrong
            unfilled[at] = lacks(after)
    return unfilled


class _JoinedFields:
    """The fields of sources that were read in several ways."""

    def __init__(
        self, count: int, groups: Sequence[ChangeGroup], rest: SourceFields | None, others: np.ndarray
    ) -> None:
        self._count, self._groups, self._rest, self._others = count, groups, rest, others

    def text(self, name: str) -> pa.Array:
        parts = [(group.rows, column) for group in self._groups if (column := group.field(name)) is not None]
        if self._rest is not None:
            parts.append((self._others, self._rest.text(name)))
        return merge(self._count, parts, pa.string())

    def number(self, name: str) -> pa.Array:
        return _numbers(self.text(name))


def _joined(count: int, groups: Sequence[ChangeGroup], rest: Images | None, others: np.ndarray) -> Images:
    """What was read by columns and one by one, as one."""
    op, foreign, unfilled = np.zeros(count, np.uint8), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    before = [(group.rows, group.before) for group in groups if group.before is not None]
    after = [(group.rows, group.after) for group in groups if group.after is not None]
    for group in groups:
        op[group.rows], foreign[group.rows] = group.op, group.foreign
    errors = None
    if rest is not None:
        op[others], foreign[others], unfilled[others] = rest.op, rest.foreign, rest.unfilled
        before.append((others, rest.before[0]))
        after.append((others, rest.after[0]))
        errors = None if rest.errors is None else merge(count, [(others, rest.errors)], pa.string())
    old, new = merge(count, before, pa.string()), merge(count, after, pa.string())
    source = _JoinedFields(count, groups, None if rest is None else rest.source, others)
    return Images(op, [old], [new], valid_mask(old), valid_mask(new), source, unfilled, foreign, errors)
