"""Catching up: which messages a subscriber may have missed, and the history call that has them.

Called by `receiver` for each answer. The service keeps about a hundred messages of a channel, or twenty
minutes, for a subscriber that comes back. Whoever was away longer, or gets as many as are kept, cannot know
from the answer whether there were more. Then the history of the channel is read. What it does not have is a
`Gap`. The history is also read when the service has moved the subscriber to another region.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tidemill.sources.pubnub.messages import TICKS_PER_SECOND, Answer, Cursor, Gap, Received
from tidemill.sources.pubnub.service import HISTORY_PAGE, Refused, Service

# What the service keeps for subscribers: messages of a channel, and how long (less a margin for its clocks).
CACHE_MESSAGES = 100
CACHE_TICKS = 16 * 60 * TICKS_PER_SECOND
# Messages of other regions arrive later than their timetokens say. So history is read from a while before the
# last answer on.
OVERLAP_TICKS = 60 * TICKS_PER_SECOND
# Identities of messages that are remembered: with a hundred each second, eight minutes.
MAX_KNOWN = 50_000
# What is read from the history at once. A longer time is read in several windows.
MAX_WINDOW_BYTES = 16 << 20
# A window that is not made smaller, however much is in it.
LEAST_WINDOW_TICKS = TICKS_PER_SECOND


class Known:
    """The latest messages by channel and timetoken: duplicates come when the service changes the region of a
    subscriber, and from the history. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        # Every message that was received with a later timetoken is remembered.
        self.floor = 0

    @property
    def channels(self) -> set[str]:
        return {channel for channel, _ in self._seen}

    def add(self, message: Received) -> bool:
        """Whether it is new."""
        if message.identity in self._seen:
            return False
        self.remember(message.channel, message.token)
        return True

    def remember(self, channel: str, token: int) -> None:
        self._seen[channel, token] = None
        if len(self._seen) > MAX_KNOWN:
            (_, oldest), _ = self._seen.popitem(last=False)
            self.floor = max(self.floor, oldest)

    def __contains__(self, message: Received) -> bool:
        return message.identity in self._seen


@dataclass(frozen=True, slots=True)
class Missed:
    """What was missed up to a timetoken."""

    upto: int
    messages: tuple[Received, ...]
    gaps: tuple[Gap, ...] = ()


class _TooMuch(Exception):
    """A window has more than `MAX_WINDOW_BYTES`."""


class CatchUp:
    """`begin` is the timetoken before which messages are not wanted; `kept` how long the service's history
    goes back, in ticks (0: there is none)."""

    def __init__(
        self, service: Service, channels: Sequence[str], groups: Sequence[str], begin: int, kept: int
    ) -> None:
        self._service = service
        self._channels = [name for name in channels if "*" not in name]
        self._patterns = [name for name in channels if "*" in name]
        self._groups = groups
        self._begin = begin
        self._kept = kept

    def missed(self, since: Cursor, answer: Answer, known: Known) -> Iterator[Missed]:
        """What may lie between a cursor and the answer to it, beside the answer, in order. Raises
        UpstreamError; then it is asked for again from the last `upto` on."""
        now = answer.cursor.token
        away = now - since.token
        gaps: list[Gap] = []
        moved = since.region not in (None, answer.cursor.region)
        # Of several channels an answer may have a part of what is kept of each. So many messages of all
        # channels together may mean that one of them had more.
        full = self._all(answer, known) if len(answer.messages) >= CACHE_MESSAGES else {}
        if away > CACHE_TICKS:
            why = f"the subscription was interrupted for {away // TICKS_PER_SECOND} seconds"
            channels = self._all(answer, known)
            unseen = f"{why}, and channels of a pattern that had no messages before are not known"
            gaps += [Gap(pattern, since.token, now, unseen) for pattern in self._patterns]
        elif moved and not full:
            # Nothing says that anything is missing. What had reached one region before it reached the other
            # could be.
            why = None
            channels = self._all(answer, known) if self._kept else {}
        else:
            why = f"{CACHE_MESSAGES} messages or more came at once, and the service keeps no more"
            channels = full
        lower = since.token
        if channels and not self._kept:
            gaps += [Gap(name, lower, now, f"{why}, and HISTORY is off") for name in sorted(channels)]
            channels = {}
        elif channels and lower < now - self._kept:
            if why is not None:
                late = f"{why}, and HISTORY does not reach back as far"
                gaps += [Gap(name, lower, now - self._kept, late) for name in sorted(channels)]
            lower = now - self._kept
        if gaps:
            yield Missed(lower, (), tuple(gaps))
        if not channels:
            return
        received = {message.identity for message in answer.messages}
        # Messages of other regions come later than their timetokens say.
        after = max(lower - OVERLAP_TICKS, min(known.floor, lower), self._begin)
        width = now - lower
        while lower < now:
            upper = min(now, lower + width)
            try:
                yield self._window(channels, after, upper, why, received, known)
            except _TooMuch:
                width = max(LEAST_WINDOW_TICKS, width // 4)
                continue
            after = lower = upper
            width *= 2

    def _all(self, answer: Answer, known: Known) -> dict[str, str | None]:
        """Every channel of the subscription, with the group by which it is read."""
        found: dict[str, str | None] = {}
        for group in self._groups:
            found.update(dict.fromkeys(self._service.group(group), group))
        seen = {*known.channels, *(message.channel for message in answer.messages)}
        for pattern in self._patterns:
            found.update({name: pattern for name in seen if fnmatchcase(name, pattern)})
        return found | dict.fromkeys(self._channels)

    def _window(
        self,
        channels: Mapping[str, str | None],
        after: int,
        upto: int,
        why: str | None,
        received: Collection[tuple[str, int]],
        known: Known,
    ) -> Missed:
        """The messages with after < timetoken <= upto that are new. Without a `why`, nothing is known to be
        missing."""
        messages: list[Received] = []
        gaps: list[Gap] = []
        size = 0
        for channel, by in sorted(channels.items()):
            before = upto + 1
            try:
                while True:
                    page = self._service.history(channel, after, before)
                    for message in page:
                        if message not in known and message.identity not in received:
                            messages.append(replace(message, subscription=by))
                            size += message.size
                    if size > MAX_WINDOW_BYTES and upto - after > 2 * LEAST_WINDOW_TICKS:
                        raise _TooMuch
                    if len(page) < HISTORY_PAGE:
                        break
                    before = page[0].token
            except Refused as e:
                if why is None:
                    continue
                reason = (e.detail or e.primary).removesuffix(".")
                gaps.append(Gap(channel, after, upto, f"{why}, and the history cannot be read ({reason})"))
        return Missed(upto, tuple(messages), tuple(gaps))
