"""What is received from PubNub: messages, and gaps between them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

# A timetoken counts units of 100 ns since 1970.
TICKS_PER_SECOND = 10_000_000
# Messages of the history call, and gaps: the service does not say where they were published. Its own regions
# begin at 1.
HISTORY_REGION = 0
# The greatest timetoken that a position can have; beyond it is not a time.
MAX_TOKEN = 2**62


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a subscription stands: by the clock of a region, None if the service shall choose one."""

    token: int
    region: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A message. `subscription` is the group or pattern by which it came, if it was one. `payload` is the
    JSON as it was published; of a `quoted` one, which is a JSON string, its text."""

    region: int
    token: int
    channel: str
    subscription: str | None
    publisher: str | None
    payload: str
    quoted: bool

    @property
    def identity(self) -> tuple[str, int]:
        return self.channel, self.token

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.channel) + 100


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of a channel (None: of any) with timetokens between the two may be missing."""

    channel: str | None
    after: int
    before: int
    why: str

    @property
    def text(self) -> str:
        """As an error of rows."""
        of = "" if self.channel is None else f'Channel "{self.channel}", '
        return (
            f"messages may be missing: {self.why}\n"
            f"{of}{'t' if of else 'T'}imetokens between {self.after} and {self.before}."
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a subscribe call: where the next one goes on, and the messages."""

    cursor: Cursor
    messages: tuple[Received, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What was received up to a cursor."""

    cursor: Cursor
    messages: tuple[Received, ...]
    gaps: tuple[Gap, ...] = ()
