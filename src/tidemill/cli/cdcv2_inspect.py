"""`tidemill cdcv2 inspect`: reads a stream to its end, reports its content, and draws it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tidemill.cdcv2.problems import ResumeMismatch
from tidemill.cdcv2.stalls import Waits
from tidemill.cdcv2.survey import Findings, Since, Survey, Waiting
from tidemill.cdcv2.svg import svg
from tidemill.cdcv2.timeline import Picture, picture
from tidemill.cdcv2.times import Time, checked, minimal
from tidemill.cdcv2.wording import sentence
from tidemill.cli.cdcv2_draw import drawn
from tidemill.cli.cdcv2_input import MessageInput, files, topic
from tidemill.errors import InvalidValue

# Wider than any line: cut lines would hide results.
_WIDTH = 1000
# The maximum number of contradictions and other findings on the screen; JSON has more.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """The options of the command line."""

    names: tuple[str, ...]
    brokers: str | None = None
    registry: str | None = None
    schema: str | None = None
    resume_from: tuple[str, ...] = ()
    svg: str | None = None
    timeline: bool = True
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.brokers is None and (self.registry or self.schema):
            raise InvalidValue("--registry and --schema are for topics", hint="Name the --brokers.")
        if self.registry and self.schema:
            raise InvalidValue("--registry and --schema exclude each other")
        if not all(self.names):
            raise InvalidValue("a name is empty", hint="Give a file, a folder, or a topic with --brokers.")
        if self.brokers is not None and len(self.names) != 1:
            raise InvalidValue("one topic at a time")
        if self.brokers is not None and not self.brokers.strip(", "):
            raise InvalidValue("--brokers names no broker", hint="--brokers localhost:9092")


def run(wish: InspectOptions) -> int:
    """Run the command; return the exit status."""
    start = _frontier(wish.resume_from)
    source = files(wish.names) if wish.brokers is None else _topic(wish, wish.brokers)
    survey = Survey(start)
    try:
        with _progress(source) as advance:
            for heard in source.read(advance):
                survey.take(heard)
        found = survey.findings()
    except ResumeMismatch as e:
        raise InvalidValue(
            f"--resume-from has {e.told}, and the stream has {e.found}",
            detail=e.detail,
            hint="7 for integers, 3,4 for pairs: the times at which there is a snapshot of this stream.",
        ) from None
    shown = picture(survey.steps()) if wish.svg or (wish.timeline and not wish.as_json) else None
    if wish.as_json:
        print(json.dumps({"name": source.name, **as_json(found)}, indent=2))
    else:
        _show(source.name, found, shown if wish.timeline else None)
    if wish.svg:
        _write(wish.svg, source.name, shown)
    return 0 if found.sound else 1


def _topic(wish: InspectOptions, brokers: str) -> MessageInput:
    return topic(wish.names[0], brokers, wish.registry, wish.schema)


def _frontier(texts: tuple[str, ...]) -> list[Time] | None:
    if not texts:
        return None
    try:
        times: list[Time] = []
        for text in texts:
            parts = [int(part) for part in text.split(",")]
            times.append(checked(parts[0] if len(parts) == 1 else parts, "--resume-from"))
    except ValueError:
        raise InvalidValue(
            f"--resume-from {' '.join(texts)} is no time", hint="7, or 3,4 for pairs."
        ) from None
    if len({isinstance(t, int) or len(t) for t in times}) > 1:
        raise InvalidValue("--resume-from has times of two kinds")
    return list(minimal(times))


@contextmanager
def _progress(source: MessageInput) -> Generator[Callable[[int], None]]:
    """A progress line on a terminal; no output elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(source.name, total=source.total, told="")
        read = 0

        def advance(more: int) -> None:
            nonlocal read
            read += more
            of = "" if source.total is None else f" of {source.total:,}"
            shown.update(task, completed=read, told=f"{read:,}{of} {source.unit}")

        yield advance


# -- as text


def _show(name: str, found: Findings, shown: Picture | None) -> None:
    console = Console(width=_WIDTH, highlight=False)
    for line in summary(name, found):
        console.print(Text(line))
    if shown is not None:
        console.print()
        for text in drawn(shown):
            console.print(text)
    problems = [*contradictions(found), *unreadable(found)]
    waits = [_waiting(w, found.messages) for w in found.waits]
    if problems or waits:
        console.print()
    for wait, line in zip(found.waits, waits, strict=True):
        console.print(Text(line, style="" if wait.open_end else "yellow"))
    for line in problems:
        console.print(Text(line, style="bold red"))


def summary(name: str, found: Findings) -> list[str]:
    span = "" if found.first is None else f", from {found.first} to {found.last}"
    complete = f"before {_bound(found.frontier)}" if found.frontier else "for ever"
    times = f"at {_number(found.times, 'time')}{span}"
    kept = f"{_number(found.stashed, 'update')} and {_number(found.pending_statements, 'statement')}"
    return [
        f"{name}: {_number(found.messages, 'message')}",
        f"updates     {found.updates:,} said, {found.distinct:,} different, {times}",
        f"statements  {found.statements:,}",
        f"complete    {complete}, {_number(found.released, 'update')} handed out",
        f"kept        {kept}; at most {_number(found.most_stashed, 'update')}",
    ]


def _waiting(waiting: Waiting, messages: int) -> str:
    stall = waiting.stall
    if stall.waits is Waits.MISSING:
        missing = _number(stall.want - stall.have, "update")
        text = f"MISSING: time {stall.time} waits for {missing} of {stall.want:,}, counted by {stall.by}"
    elif stall.waits is Waits.CONTRADICTION:
        text = f"WITHHELD: time {stall.time}, {stall.reason}"
    elif waiting.open_end:
        text = f"OPEN: updates have come at {stall.time} or beyond it that no statement counts yet"
    else:
        text = f"GAP: time {stall.time} waits for a statement; the nearest begins at {_bound(stall.nearest)}"
    return f"{text}; {_since(waiting.since, messages)}"


def _since(since: Since | None, messages: int) -> str:
    if since is None:
        return "from the beginning"
    at = f" of {_moment(since.at)}" if since.at is not None else ""
    return f"since {since.origin}{at}, {_number(messages - since.message, 'message')} ago"


def contradictions(found: Findings) -> list[str]:
    lines: list[str] = []
    for c in found.contradictions[:SHOWN]:
        lines += [f"CONTRADICTION{'' if c.time is None else f' at {c.time}'}: {c.kind}", f"  {c.first}"]
        lines += [f"  {c.second}"] if c.second is not None else []
    return [*lines, *_more(found.contradicted, "contradictions")]


def unreadable(found: Findings) -> list[str]:
    lines: list[str] = []
    for e in found.unreadable[:SHOWN]:
        lines.append(f"UNREADABLE: {e.primary}. {e.detail or ''}")
        lines += [f"  {e.hint}"] if e.hint else []
    return [*lines, *_more(found.unread, "unreadable messages")]


def _more(total: int, what: str) -> list[str]:
    return [f"... and {total - SHOWN:,} more {what}"] if total > SHOWN else []


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _bound(times: Any) -> str:
    return " and ".join(map(str, times))


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


# -- for machines


def as_json(found: Findings) -> dict[str, Any]:
    return {
        "sound": found.sound,
        "messages": found.messages,
        "updates": found.updates,
        "distinct_updates": found.distinct,
        "statements": found.statements,
        "times": found.times,
        "first_time": found.first,
        "last_time": found.last,
        "frontier": found.frontier,
        "released_updates": found.released,
        "stashed_updates": found.stashed,
        "most_stashed_updates": found.most_stashed,
        "pending_statements": found.pending_statements,
        "waits": [_wait_json(w) for w in found.waits],
        "contradictions": found.contradicted,
        "first_contradictions": [
            {"time": c.time, "kind": c.kind, "first": c.first, "second": c.second}
            for c in found.contradictions
        ],
        "unreadable": found.unread,
        "first_unreadable": [
            {"origin": e.origin, "text": e.primary, "detail": e.detail} for e in found.unreadable
        ],
    }


def _wait_json(waiting: Waiting) -> dict[str, Any]:
    stall, since = waiting.stall, waiting.since
    about: dict[str, Any] = {"time": stall.time, "for": stall.waits.value, "open_end": waiting.open_end}
    if stall.waits is Waits.MISSING:
        about |= {"have": stall.have, "want": stall.want, "counted_by": stall.by}
    elif stall.waits is Waits.GAP:
        about |= {"nearest_statements": list(stall.nearest)}
    else:
        about |= {"reason": stall.reason}
    about["since"] = since and {"message": since.message, "origin": since.origin, "at": since.at}
    return about


def _write(path: str, name: str, shown: Picture | None) -> None:
    if shown is None:
        raise InvalidValue(
            "there is no timeline to write", detail="It is empty, or not of integers or pairs."
        )
    try:
        Path(path).write_text(svg(shown, name))
    except OSError as e:
        raise InvalidValue(f'the file "{path}" cannot be written', detail=sentence(e)) from None
