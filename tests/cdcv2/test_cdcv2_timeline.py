"""What is surveyed and drawn of a stream is what the definition says, cell by cell, message by message."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import pytest
from cdcv2_oracle import Oracle, after, stream

from tidemill.cdcv2 import Message, Progress, Updates
from tidemill.cdcv2.steps import MAX_STEPS
from tidemill.cdcv2.survey import MAX_NOTED, StreamReport, Survey
from tidemill.cdcv2.svg import svg
from tidemill.cdcv2.timeline import MAX_COLUMNS, MEANINGS, Cell, Picture, TimelineState, picture

SIDES = {0: 7, 2: 4, 3: 3}


def surveyed(messages: list[Message]) -> Survey:
    survey = Survey()
    for message in messages:
        survey.take(StreamReport(message))
    return survey


def _expected(oracle: Oracle, first: Any, inside: Any) -> tuple[TimelineState, str]:
    """Of a cell whose least time is `first`, and of whose times only those of `inside` may have updates."""
    if not after(oracle.frontier(), first):
        return TimelineState.DONE, ""
    have = sum(t == inside for _, t, _ in oracle.updates)
    covering = [s for s in oracle.statements if after(s[0], first) and not after(s[1], first)]
    if not covering:
        return (TimelineState.UNSTATED, f"{have}/?") if have else (TimelineState.GAP, "")
    want = dict(covering[0][2]).get(inside, 0)
    if not want:
        return TimelineState.EMPTY, ""
    return (TimelineState.READY if have == want else TimelineState.MISSING), f"{have}/{want}"


@pytest.mark.parametrize("seed", range(60))
def test_each_line_of_the_timeline_is_the_definition(seed: int) -> None:
    rng = Random(f"drawn {seed}")
    messages = stream(rng, 0, SIDES[0], writers=1, size=rng.randint(0, 6), cuts=2)[: MAX_STEPS - 1]
    shown = picture(surveyed(messages).steps())
    assert shown is not None and len(shown.lines) == len(messages)
    starts = [int(head) for head in shown.heads]
    oracle = Oracle(0, SIDES[0])
    for line, message in zip(shown.lines, messages, strict=True):
        oracle.take(message)
        frontier = oracle.frontier()
        for start, cell in zip(starts, line.cells, strict=True):
            state, text = _expected(oracle, start, start)
            assert cell.state is state
            # What was just handed out is shown once more, as it went.
            assert cell.text == text or state is TimelineState.DONE
            assert cell.frontier == (start in frontier)


@pytest.mark.parametrize("seed", range(60))
def test_the_plane_is_the_definition(seed: int) -> None:
    rng = Random(f"plane {seed}")
    messages = stream(rng, 2, SIDES[2], writers=1, size=rng.randint(1, 6), cuts=2)
    messages = messages[: rng.randint(1, len(messages))]
    shown = picture(surveyed(messages).steps())
    assert shown is not None
    oracle = Oracle(2, SIDES[2])
    for message in messages:
        oracle.take(message)
    for line in shown.lines:
        for head, cell in zip(shown.heads, line.cells, strict=True):
            corner = (int(head), int(line.label))
            state, text = _expected(oracle, corner, corner)
            assert (cell.state, cell.text) == (state, text)
            assert cell.frontier == (corner in oracle.frontier())


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_findings(kind: int) -> None:
    for n in range(60):
        rng = Random(f"found {kind} {n}")
        messages = stream(rng, kind, SIDES[kind])
        messages = messages[: rng.randint(1, len(messages))]
        oracle = Oracle(kind, SIDES[kind])
        for message in messages:
            oracle.take(message)
        found = surveyed(messages).findings()
        frontier = oracle.frontier()
        said = [u for m in messages if isinstance(m, Updates) for u in m.updates]
        known = any(isinstance(m, Progress) or m.updates for m in messages)
        assert not known or tuple(found.frontier) == frontier
        assert found.messages == len(messages)
        assert found.updates == len(said)
        assert found.statements == sum(isinstance(m, Progress) for m in messages)
        assert found.released == len(oracle.released(frontier))
        # Repetitions of what was handed out are not kept: all that differ are counted once all the same.
        assert found.distinct == len(oracle.updates)
        assert found.times == len({t for _, t, _ in oracle.updates})
        assert found.most_stashed >= found.stashed == found.distinct - found.released
        assert bool(found.waits) == bool(found.stashed or found.pending_statements)


def test_since_when_a_time_waits() -> None:
    survey = Survey()
    survey.take(StreamReport(Progress([0], [3], origin="a"), 1000))
    survey.take(StreamReport(Progress([3], [9], [(3, 1), (5, 2)], origin="b"), 2000))
    survey.take(StreamReport(Updates([("x", 3, 1)], "c"), 3000))
    survey.take(StreamReport(Updates([("x", 5, 1)], "d"), 4000))
    [waiting] = survey.findings().waits
    assert waiting.since is not None and not waiting.open_end
    assert (waiting.since.message, waiting.since.origin, waiting.since.at) == (3, "c", 3000)
    assert waiting.stall.by == "progress from [3] to [9] of b"
    assert not survey.findings().sound


def test_updates_that_no_statement_counts_yet_are_how_a_stream_is_written() -> None:
    found = surveyed([Progress([0], [3]), Updates([("x", 5, 1)])]).findings()
    assert found.waits[0].open_end and found.sound
    found = surveyed([Progress([0], [3]), Progress([5], [6])]).findings()
    assert not found.waits[0].open_end and not found.sound


def test_a_long_stream_has_few_steps_and_columns() -> None:
    messages: list[Message] = []
    for t in range(2_000):
        messages += [Updates([("x", 7 * t, 1)]), Progress([7 * t], [7 * t + 7], [(7 * t, 1)])]
    survey = surveyed(messages)
    steps = survey.steps()
    assert MAX_STEPS // 2 - 1 <= len(steps) <= MAX_STEPS
    assert sum(s.messages for s in steps) == len(messages)
    assert sum(s.released_count for s in steps) == survey.findings().released == 2_000
    shown = picture(steps)
    assert shown is not None and len(shown.heads) <= MAX_COLUMNS
    assert [c.state for c in shown.lines[-1].cells[:-1]] == [TimelineState.DONE] * (len(shown.heads) - 1)


def test_many_contradictions_are_counted_and_the_first_ones_kept() -> None:
    survey = surveyed([Updates([(n, n, 0)]) for n in range(2 * MAX_NOTED)])
    found = survey.findings()
    assert found.contradicted == 2 * MAX_NOTED and len(found.contradictions) == MAX_NOTED
    shown = picture(survey.steps())
    assert shown is not None
    assert {c.state for c in shown.lines[-1].cells} == {TimelineState.WRONG, TimelineState.GAP}


def test_three_components_are_not_drawn_nor_is_nothing() -> None:
    assert picture(surveyed([Progress([(0, 0, 0)], [(1, 0, 0)])]).steps()) is None
    assert picture([]) is None


def test_svg_is_xml_and_escapes() -> None:
    from xml.etree import ElementTree

    cells = [Cell(state, "1/2", state is TimelineState.GAP) for state in TimelineState]
    shown = Picture("message", [str(n) for n in range(len(cells))], [])
    shown.lines.append(picture_line("<&>", cells))
    root = ElementTree.fromstring(svg(shown, 'a "title" <of> &'))
    texts = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert 'a "title" <of> &' in texts and "<&>" in texts
    assert set(MEANINGS.values()) <= set(texts)
    assert all(math.isfinite(float(root.attrib[a])) for a in ("width", "height"))


@pytest.mark.parametrize(("rounds", "updates"), [(1, 1), (4, 123_456), (5, 1), (60, 3)])
@pytest.mark.parametrize("first", [7, 1763251200123, 2**63 - 10**6])
@pytest.mark.parametrize("kind", [0, 2])
def test_no_two_texts_lie_upon_each_other(rounds: int, updates: int, first: int, kind: int) -> None:
    """Whatever the times are and however many: in the file no two on a line, in the terminal none shifted."""
    from xml.etree import ElementTree

    from tidemill.cli.cdcv2_draw import drawn

    def at(n: int) -> Any:
        return first + 1000 * n if kind == 0 else (first + 1000 * n, first + 1000 * (rounds - n))

    said: list[Message] = []
    for n in range(rounds):
        said += [Updates([("x", at(n), 1)]), Progress([at(n)], [], [(at(n), updates)])]
    shown = picture(surveyed(said).steps())
    assert shown is not None
    root = ElementTree.fromstring(svg(shown, "a\x01name"))
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        # A character of this font is at most so wide.
        lines.setdefault(y, []).append((x, x + 7.25 * len("".join(text.itertext()))))
    for spans in lines.values():
        ordered = sorted(spans)
        assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ordered))
        assert ordered[-1][1] <= float(root.attrib["width"])
    if shown.wide:
        head, *rest = (str(text) for text in itertools.islice(drawn(shown), len(shown.lines) + 1))
        begins = [head.index(h, len(shown.corner)) for h in shown.heads[1:]]
        cut = [max(begins[-1], len(line)) for line in rest]
        assert all(
            line.ljust(end + 1)[at - 1] == " " for line, end in zip(rest, cut, strict=True) for at in begins
        )


def picture_line(label: str, cells: list[Cell]) -> Any:
    from tidemill.cdcv2.timeline import TimelineLine

    return TimelineLine(label, cells, "note")
