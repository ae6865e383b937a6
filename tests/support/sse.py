"""Reading server-sent events as the HTML standard tells it: what a browser would hand to a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """`id` is what the event itself said, None where it said nothing."""

    kind: str
    data: str
    id: str | None


class EventReader:
    """Fed with bytes as they come. `last_id` is what a browser would come back with."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry: int | None = None
        self.comments = 0
        self._rest = b""
        self._kind, self._data = "", list[str]()
        self._id: str | None = None

    def feed(self, data: bytes) -> list[Event]:
        found: list[Event] = []
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = self._line(line.decode().removesuffix("\r"))
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                self.comments += 1
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id":
                self._id = value
            case "retry":
                self.retry = int(value)
            case _:
                raise AssertionError(f"a line that is no field: {line!r}")
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._kind or "message", "\n".join(self._data), self._id) if self._data else None
        if self._id is not None:
            self.last_id = self._id
        self._kind, self._id = "", None
        self._data.clear()
        return event


def parse_events(data: bytes) -> list[Event]:
    """Of a text that ends with an event."""
    assert data == b"" or data.endswith(b"\n\n")
    return EventReader().feed(data)
