"""Digests of progress statements: detect errors that counts alone cannot.

A count gives the number of updates at a time, not their contents. A statement may carry a digest of the
content of each time that it counts, and a seal over the whole statement. The seal is checked when the
statement arrives, the content before the time is released. Both are 64 bits without a key: they detect
accidental corruption of messages, and do not protect against deliberate forgery.

The content of a time is the sum, modulo 2^64, of one hash for each (data, time, diff). It does not depend on
order, batches or cuts, so several writers agree on it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from hashlib import blake2b
from typing import Any, cast

from tidemill.cdcv2.messages import Progress, Update
from tidemill.cdcv2.times import Time
from tidemill.errors import Unsupported

_MASK = 2**64 - 1

# A hash of one update that is the same in every process and on every machine.
UpdateHash = Callable[[Any, Time, int], int]


def signed(value: int) -> int:
    """The number modulo 2^64 as a signed 64-bit integer, as in the encodings."""
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def python_hash(data: Hashable, time: Time, diff: int) -> int:
    """The hash of an update whose data is a plain Python value: None, bool, int, float, str, bytes, Decimal,
    and tuples and frozensets of them. Equal values have equal hashes (1, 1.0 and True are equal in Python).
    """
    raw = b"".join(_spell((data, time, diff)))
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")


def _spell(value: Any) -> Iterable[bytes]:
    """Bytes that identify a value: a letter for the kind, a length, the content."""
    if isinstance(value, (bool, int, float, Decimal)):
        # Equal numbers have equal bytes, independent of their type.
        if value != value:
            text = b"nan"
        elif value in (float("inf"), float("-inf")):
            text = b"inf" if value > 0 else b"-inf"
        else:
            numerator, denominator = value.as_integer_ratio()
            text = f"{numerator}/{denominator}".encode()
        yield b"n%d:" % len(text)
        yield text
    elif value is None:
        yield b"0"
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        yield b"s%d:" % len(text)
        yield text
    elif isinstance(value, bytes):
        yield b"b%d:" % len(value)
        yield value
    elif isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        yield b"t%d:" % len(items)
        for item in items:
            yield from _spell(item)
    elif isinstance(value, frozenset):
        members = sorted(b"".join(_spell(item)) for item in cast("frozenset[Any]", value))
        yield b"f%d:" % len(members)
        yield from members
    else:
        raise Unsupported(
            f"no digest of a {type(value).__name__}",
            hint="Pass a hash of your own data as update_hash, or turn digests off.",
        )


def content_of(updates: Iterable[Update], update_hash: UpdateHash = python_hash) -> int:
    """The digest of one time's content."""
    return signed(sum(update_hash(*update) for update in updates))


def seal_of(progress: Progress) -> int:
    """The digest of a statement's contents. Bounds and counts are sets: their order does not count."""
    contents = progress.contents or ()
    counts = sorted(
        (_flat(time), int(count), signed(content))
        for (time, count), content in zip(progress.counts, contents, strict=True)
    )
    hashed = blake2b(digest_size=8)
    for bound in (progress.lower, progress.upper):
        _numbers(hashed.update, [len(bound), *(n for time in sorted(map(_flat, bound)) for n in time)])
    _numbers(
        hashed.update, [len(counts), *(n for time, count, content in counts for n in (*time, count, content))]
    )
    return signed(int.from_bytes(hashed.digest(), "little"))


def sealed(progress: Progress, contents: Sequence[int]) -> Progress:
    """The statement with digests: one content for each of its counts, and the seal."""
    full = replace(progress, contents=tuple(map(signed, contents)))
    return replace(full, seal=seal_of(full))


def _flat(time: Time) -> tuple[int, ...]:
    """A time as numbers; their number distinguishes the kinds."""
    return (1, time) if isinstance(time, int) else (len(time) + 1, *time)


def _numbers(update: Callable[[bytes], None], numbers: Sequence[int]) -> None:
    update(struct.pack(f"<{len(numbers)}q", *numbers))
