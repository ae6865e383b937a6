"""The interface to a bucket or a folder, and the words of its errors.

`Store` is the half that is sent to the tasks: it reads bytes of one object. `Listing` is the half of the
driver: it finds objects, a part at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidemill.decode.contract import legible
from tidemill.errors import LimitExceeded
from tidemill.sources.contract import Forgotten, UpstreamError, UpstreamLost

# The maximum number of objects of one source. Each is a row of its bindings, and some hundred bytes of
# memory.
MAX_OBJECTS = 250_000
# Bytes of one read.
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a listing says of an object. `tag` changes when the contents change; `modified` is in microseconds
    since 1970."""

    size: int
    modified: int
    tag: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """An object as it was when a part of it was bound: `print` identifies the bytes that are bound. The
    others are the listing's; rows show `modified`."""

    print: str
    size: int
    modified: int

    def to_text(self) -> str:
        return json.dumps([self.print, self.size, self.modified], separators=(",", ":"))

    @staticmethod
    def of(text: str) -> Stamp:
        return Stamp(*json.loads(text))


class Store(ABC):
    """Picklable, without open connections."""

    # What one of its objects is called in errors.
    called: str

    @abstractmethod
    def stat(self, key: str) -> ObjectStat:
        """Raises UpstreamError."""

    @abstractmethod
    def read(self, key: str, print_: str, lower: int, upper: int) -> bytes:
        """Exactly the bytes [lower, upper) of the object that has this print. Raises UpstreamError."""

    def stream(self, key: str, print_: str, lower: int, upper: int) -> Iterator[bytes]:
        """The same, chunk by chunk."""
        for at in range(lower, upper, CHUNK_BYTES):
            yield self.read(key, print_, at, min(upper, at + CHUNK_BYTES))


class Listing(ABC):
    """What is there. `found` has every object that is known."""

    def __init__(self) -> None:
        self.found: dict[str, ObjectStat] = {}
        # Every object was seen at least once.
        self.complete = False

    @abstractmethod
    def advance(self, seconds: float) -> Mapping[str, ObjectStat | None]:
        """Look for about so long. Returns the objects that are new or have changed, None for those that are
        gone. Raises UpstreamError, LimitExceeded."""

    def note(self, key: str, stat: ObjectStat) -> bool:
        """Whether this is news."""
        if self.found.get(key) == stat:
            return False
        self.found[key] = stat
        if len(self.found) > MAX_OBJECTS:
            raise LimitExceeded(
                f"more than {MAX_OBJECTS} objects in one source",
                hint="Read several folders with a source each, or fewer and larger objects.",
            )
        return True


def changed(called: str, key: str, detail: str) -> UpstreamError:
    return UpstreamLost(
        f'{called} "{legible(key)}" has changed since it was read',
        detail=detail,
        hint="What was read must stay as it is: put it back as it was, or drop the source and create it "
        "again. New contents belong under a new name.",
    )


def gone(called: str, key: str, lower: int, upper: int, found: str) -> UpstreamError:
    return Forgotten(
        f'{called} "{legible(key)}" is not what it was when it was bound',
        detail=f"Its bytes from {lower} up to {upper} are to be read. {found}",
        hint="Put it back as it was, or drop the source and create it again.",
    )
