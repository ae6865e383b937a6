"""A CDCv2 timeline drawn in the terminal, with a legend of the signs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from tidemill.cdcv2.timeline import MEANINGS, Cell, Picture, TimelineState

_STYLES = {
    TimelineState.DONE: "green",
    TimelineState.READY: "cyan",
    TimelineState.EMPTY: "dim",
    TimelineState.MISSING: "yellow",
    TimelineState.UNSTATED: "magenta",
    TimelineState.GAP: "dim",
    TimelineState.WRONG: "bold red",
}
# Used as numbers where the width allows.
_COUNTED = (TimelineState.READY, TimelineState.MISSING, TimelineState.UNSTATED)
FRONTIER = "R"
# The minimum width of a column with numbers.
_WIDTH = 4
# In a narrow picture only every n-th column has its time above it.
_TICK = 15
# A longer text of a message is cut, so that the drawing stays on the screen.
_MOST_LABEL = 44


def drawn(picture: Picture) -> Iterator[Text]:
    label = max(len(picture.corner), *(len(_cut(line.label)) for line in picture.lines)) + 2
    width = 1
    if picture.wide:
        cells = (len(c.text) + c.frontier for line in picture.lines for c in line.cells)
        width += max(_WIDTH, *cells, *map(len, picture.heads))
    yield Text(picture.corner.ljust(label) + _heads(picture, width), style="bold")
    for line in picture.lines:
        text = Text(_cut(line.label).ljust(label))
        for cell in line.cells:
            text.append(_sign(cell, width), style=_STYLES[cell.state])
        text.append(f"  {line.note}" if line.note else "")
        text.rstrip()
        yield text
    yield Text("")
    for state in picture.states():
        if picture.wide and state in _COUNTED:
            continue
        yield Text.assemble((_sign(Cell(state), 1), _STYLES[state]), f"  {MEANINGS[state]}")
    if picture.wide and any(cell.text for line in picture.lines for cell in line.cells):
        yield Text("a/b: so many updates have come of so many; a/? where no statement counts them yet")
    yield Text(f"{FRONTIER}  the frontier: everything before it is complete")


def _heads(picture: Picture, width: int) -> str:
    if picture.wide:
        return "".join(head.ljust(width) for head in picture.heads).rstrip()
    line = ""
    for i in range(0, len(picture.heads), _TICK):
        head = picture.heads[i]
        # A time that is too long for its place is omitted, not moved to another column.
        line = line.ljust(i) + head if len(line) < i or not i else line
    return line


def _sign(cell: Cell, width: int) -> str:
    if width == 1:
        return FRONTIER if cell.frontier else cell.state.value
    shown = cell.text or cell.state.value * (
        3 if cell.state in (TimelineState.DONE, TimelineState.GAP) else 1
    )
    if cell.frontier:
        return f"{FRONTIER}{shown}".ljust(width)
    return shown.ljust(width)


def _cut(label: str) -> str:
    return label if len(label) <= _MOST_LABEL else f"{label[: _MOST_LABEL - 1]}…"
