"""SVG form of a timeline: the same picture as in the terminal, for pages and reports.

The SVG text is written directly: rectangles and text need no library.
"""

from __future__ import annotations

from math import ceil
from xml.sax.saxutils import escape

from tidemill.cdcv2.timeline import MEANINGS, Picture, TimelineState

_COLOURS = {
    TimelineState.DONE: "#2e8b57",
    TimelineState.READY: "#9fd8b4",
    TimelineState.EMPTY: "#e8eef4",
    TimelineState.MISSING: "#f0b84a",
    TimelineState.UNSTATED: "#b9a7e0",
    TimelineState.GAP: "#ffffff",
    TimelineState.WRONG: "#cc3b3b",
}
_KIND = 'xmlns="http://www.w3.org/2000/svg" font-family="monospace" font-size="12"'
_LINE = 22
_CHARACTER = 7.3
# The minimum width of a column with numbers, the width of one without, and the space between two texts.
_WIDE, _NARROW, _BETWEEN = 46, 10, 10
_TOP = 30


def svg(picture: Picture, title: str) -> str:
    """The file's text. Texts never overlap: a column with numbers is as wide as the longest time or number;
    of narrow columns only every n-th shows its time."""
    longest = _CHARACTER * max(map(len, picture.heads), default=0) + _BETWEEN
    counted = _CHARACTER * max((len(c.text) for line in picture.lines for c in line.cells), default=0)
    cell = ceil(max(_WIDE, longest, counted + _BETWEEN)) if picture.wide else _NARROW
    step = 1 if picture.wide else max(10, ceil(longest / cell))
    left = 12 + _CHARACTER * max([len(picture.corner), *(len(line.label) for line in picture.lines)]) + 10
    right = left + cell * len(picture.heads)
    notes = _CHARACTER * max([0, *(len(line.note) for line in picture.lines)])
    states = picture.states()
    height = _TOP + _LINE * (len(picture.lines) + 2 + len(states)) + 20
    ticks = range(0, len(picture.heads), step)
    last = left + cell * ticks[-1] + longest if ticks else left
    width = max(right + 14 + notes, last, left + 420, 24 + _CHARACTER * len(title)) + 12
    out = [
        f'<svg {_KIND} width="{width:.0f}" height="{height}">',
        f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
        _text(12, 18, title),
        _text(12, _TOP + 16, picture.corner),
    ]
    for i in ticks:
        out.append(_text(left + i * cell, _TOP + 16, picture.heads[i]))
    for row, line in enumerate(picture.lines):
        y = _TOP + _LINE * (row + 1)
        out.append(_text(12, y + 15, line.label))
        for i, shown in enumerate(line.cells):
            x = left + i * cell
            # Times that no statement covers have no background, only an outline.
            stroke = "#c8c8c8" if shown.state is TimelineState.GAP else "white"
            out.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{cell - 1}" height="{_LINE - 4}" '
                f'fill="{_COLOURS[shown.state]}" stroke="{stroke}"/>'
            )
            if picture.wide and shown.text:
                out.append(_text(x + 5, y + 15, shown.text))
            if shown.frontier:
                out.append(f'<rect x="{x - 1.5:.1f}" y="{y}" width="3" height="{_LINE}" fill="black"/>')
        if line.note:
            out.append(_text(right + 14, y + 15, line.note))
    y = _TOP + _LINE * (len(picture.lines) + 1) + 10
    for state in states:
        out.append(
            f'<rect x="12" y="{y + 3}" width="16" height="14" fill="{_COLOURS[state]}" stroke="#c8c8c8"/>'
        )
        out.append(_text(36, y + 15, MEANINGS[state]))
        y += _LINE
    return "\n".join([*out, "</svg>", ""])


def _text(x: float, y: float, text: str) -> str:
    # XML cannot represent control characters, which file names may contain.
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return f'<text x="{x:.1f}" y="{y}" xml:space="preserve">{escape(shown)}</text>'
