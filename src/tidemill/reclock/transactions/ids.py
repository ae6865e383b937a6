"""Ids of transactions, as connectors write them, as numbers.

| connector | id | origin | number |
| --- | --- | --- | --- |
| PostgreSQL | `txid:lsn`; the lsn differs between records of a transaction | none | of END: the lsn |
| MariaDB | `domain-server-sequence` | `domain-server` | the sequence |
| MySQL | `uuid:sequence`, `uuid:tag:sequence` | `uuid`, `uuid:tag` | the sequence |

Numbers of one origin grow in the order of commits. The key of a transaction is equal in all of its records.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.types.columns import leading_numbers, spans, valid_mask
from tidemill.types.kernels import pc

# More bytes of log than a server can write.
_MAX_LSN = 10**18
_MAX_DIGITS = 18
# A key is the number of the origin, and below these bits the transaction's own.
_OWN_BITS = 48
_UUID_LETTERS = 36
# Of MariaDB, and of MySQL. Ids of other connectors have separators too, such as SQL Server's three numbers.
_ORIGIN = "^([0-9]+-[0-9]+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(:[a-zA-Z_][a-zA-Z0-9_]*)?)$"
# Origins that a group keeps; servers of a replication topology.
MAX_ORIGINS = 4096
# Of a record that belongs to no transaction.
NO_KEY = -1
# The origin of PostgreSQL's transactions.
NO_ORIGIN = ""


class UnknownId(TidemillError):
    """The id of a transaction has a form that no known connector writes."""

    sqlstate = "22000"

    def __init__(self, shown: str) -> None:
        super().__init__(
            "the id of a transaction cannot be read",
            detail=f'It is "{shown[:200]}".',
            hint="Known are the ids of Debezium's connectors for PostgreSQL (txid:lsn), MariaDB "
            "(domain-server-sequence) and MySQL with GTIDs (uuid:sequence).",
        )


@dataclass(frozen=True, slots=True)
class TransactionIds:
    """`keys`: `NO_KEY` where the id is null. `numbers`: what is behind the last separator: the sequence, or
    PostgreSQL's lsn. `origins` has codes."""

    keys: np.ndarray
    numbers: np.ndarray
    origins: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)


def no_ids() -> TransactionIds:
    none = np.zeros(0, np.int64)
    return TransactionIds(none, none, none)


class Origins:
    """The codes of origins; 0 is `NO_ORIGIN`. Thread-safe: topics are read beside the announcements."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._codes: dict[str, int] = {NO_ORIGIN: 0}

    def code(self, origin: str) -> int:
        with self._lock:
            if origin not in self._codes:
                if len(self._codes) >= MAX_ORIGINS:
                    raise TidemillError(
                        "the transaction topic has transactions of too many servers",
                        detail=f"The limit is {MAX_ORIGINS}.",
                        sqlstate="54000",
                    )
                self._codes[origin] = len(self._codes)
            return self._codes[origin]

    def name(self, code: int) -> str:
        with self._lock:
            return next(origin for origin, of in self._codes.items() if of == code)

    @staticmethod
    def origin_of(key: int) -> int:
        return key >> _OWN_BITS

    def describe(self, key: int) -> str:
        """The id of a transaction, without what differs between its records."""
        origin, own = self.name(self.origin_of(key)), key & ((1 << _OWN_BITS) - 1)
        return f"{origin}{_mark(origin)}{own}" if origin else str(own)

    def key_of(self, described: str) -> int:
        """The key of what `describe` gave, or a person wrote. Raises UnknownId."""
        if described.isdecimal():
            described = f"{described}:0"
        return int(self.read(pa.array([described], pa.string())).keys[0])

    def read(self, ids: pa.Array) -> TransactionIds:
        """Of a column of text. Raises UnknownId."""
        if len(ids) == 0 or ids.null_count == len(ids):
            none = np.zeros(len(ids), np.int64)
            return TransactionIds(np.full(len(ids), NO_KEY, np.int64), none, none)
        found = _pairs(ids)
        if found is not None:
            return found
        known = np.asarray(ids.is_valid())
        filled = pc.fill_null(ids, "0:0")
        colon = pc.fill_null(pc.match_substring(filled, ":"), False)
        if pc.all(colon).as_py():
            heads, tails = _split(filled, ":")
            numeric = pc.match_substring_regex(heads, "^[0-9]+$")
            if pc.all(numeric).as_py():
                # One of them is none of PostgreSQL: it is named.
                own, lsn = _whole(heads, ids, 1 << _OWN_BITS), _whole(tails, ids)
                return TransactionIds(np.where(known, own, NO_KEY), lsn, np.zeros(len(ids), np.int64))
            if known.all() and not pc.any(numeric).as_py():
                return self._sequences(heads, tails, known, ids)
            return self._mixed(ids)
        if known.all() and not pc.any(colon).as_py():
            return self._sequences(*_split(filled, "-"), known, ids)
        return self._mixed(ids)

    def _mixed(self, ids: pa.Array) -> TransactionIds:
        """Ids of several forms, or some that are null: each form by itself."""
        keys, numbers, origins = (np.zeros(len(ids), np.int64) for _ in range(3))
        keys[:] = NO_KEY
        colon = np.asarray(pc.fill_null(pc.match_substring(ids, ":"), False))
        known = np.asarray(ids.is_valid())
        postgres = np.asarray(pc.fill_null(pc.match_substring_regex(ids, "^[0-9]+:[^:]*$"), False))
        for mask in (postgres, known & colon & ~postgres, known & ~colon):
            if mask.any():
                found = self.read(ids.filter(pa.array(mask)))
                keys[mask], numbers[mask], origins[mask] = found.keys, found.numbers, found.origins
        return TransactionIds(keys, numbers, origins)

    def _sequences(
        self, heads: pa.Array, tails: pa.Array, known: np.ndarray, ids: pa.Array
    ) -> TransactionIds:
        own = _whole(tails, ids, 1 << _OWN_BITS)
        encoded = heads.dictionary_encode()
        named = pc.match_substring_regex(encoded.dictionary, _ORIGIN)
        if not pc.all(named).as_py():
            unknown = pc.equal(encoded.indices, pc.index(named, False))
            raise UnknownId(ids[pc.index(unknown, True).as_py()].as_py())
        codes = np.array([self.code(name) for name in encoded.dictionary.to_pylist()], np.int64)
        origins = codes[np.asarray(encoded.indices)]
        return TransactionIds(np.where(known, (origins << _OWN_BITS) | own, NO_KEY), own, origins)


def _pairs(ids: pa.Array) -> TransactionIds | None:
    """Of PostgreSQL, as they nearly always are; None if one of them is another one."""
    offsets, data = spans(ids)
    first, last = int(offsets[0]), int(offsets[-1])
    octets = np.concatenate([data[first:last], np.zeros(1, np.uint8)])
    start, end = offsets[:-1].astype(np.int64) - first, offsets[1:].astype(np.int64) - first
    own, colon = leading_numbers(octets, start, end, _MAX_DIGITS)
    lsn, stop = leading_numbers(octets, colon + 1, end, _MAX_DIGITS)
    good = (octets[colon] == ord(":")) & (colon > start) & (stop > colon + 1) & (stop == end)
    good &= own < 1 << _OWN_BITS
    known = valid_mask(ids)
    if not (good | ~known).all():
        return None
    return TransactionIds(np.where(known, own, NO_KEY), np.where(known, lsn, 0), np.zeros(len(ids), np.int64))


def _mark(origin: str) -> str:
    """MySQL's origins are uuids."""
    return ":" if len(origin) >= _UUID_LETTERS else "-"


def _split(ids: pa.Array, mark: str) -> tuple[pa.Array, pa.Array]:
    """What is before and behind the last mark. Raises UnknownId where there is none."""
    parts = pc.split_pattern(ids, mark, max_splits=1, reverse=True)
    short = pc.less(pc.list_value_length(parts), 2)
    if pc.any(short).as_py():
        raise UnknownId(ids[pc.index(short, True).as_py()].as_py())
    return pc.list_element(parts, 0), pc.list_element(parts, 1)


def _whole(texts: pa.Array, ids: pa.Array, limit: int = _MAX_LSN) -> np.ndarray:
    """As int64. Raises UnknownId."""
    digits = pc.match_substring_regex(texts, "^[0-9]{1,18}$")
    if not pc.all(digits).as_py():
        raise UnknownId(ids[pc.index(digits, False).as_py()].as_py())
    found = np.asarray(texts.cast(pa.int64()))
    if (found >= limit).any():
        raise UnknownId(ids[int(np.argmax(found))].as_py())
    return found
