"""What spares a small answer its way through the server: shapes that are kept, messages that are read once,
counts that are plain numbers."""

from __future__ import annotations

import pgframes as f
import pytest
from prometheus_client import CollectorRegistry, Histogram
from tablets import Tablets
from wireserver import Served

from tidemill.server import counters
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.shapes import MAX_KEPT, Shapes
from tidemill.types.model import INT4, TEXT, Column


def columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, INT4) for name in names)


def test_a_shape_is_made_once_for_the_same_columns() -> None:
    shapes = Shapes()
    asked = columns("a")
    shape = shapes.of(asked, (0,), "UTC")
    assert shape.description == replies.row_description(asked, (0,))
    assert shapes.of(asked, (0,), "UTC") is shape
    assert shapes.of(asked, (1,), "UTC").description == replies.row_description(asked, (1,))
    assert shapes.of(asked, (0,), "Asia/Tokyo") is not shape
    # Equal is not enough to be looked up, and does no harm.
    assert shapes.of((Column("a", TEXT),), (0,), "UTC").description != shape.description


def test_a_connection_keeps_few_shapes() -> None:
    shapes = Shapes()
    kept = [columns(f"c{n}") for n in range(MAX_KEPT)]
    first = shapes.of(kept[0], (0,), "UTC")
    for asked in kept[1:]:
        shapes.of(asked, (0,), "UTC")
    assert shapes.of(kept[0], (0,), "UTC") is first
    shapes.of(columns("one more"), (0,), "UTC")
    assert shapes.of(kept[0], (0,), "UTC") is not first


def test_statements_that_alternate_are_answered_each_in_its_shape() -> None:
    with Served(Tablets()) as served, served.raw() as c:
        once = [c.ask(f.query(text)) for text in ("select 1", "select 1, 2", "subscribe 1")]
        for _ in range(3):
            again = [c.ask(f.query(text)) for text in ("select 1", "select 1, 2", "subscribe 1")]
            assert again == once


@pytest.mark.parametrize("tag", [b"D", b"E"])
def test_a_name_that_is_too_long_is_refused_each_time_anew(tag: bytes) -> None:
    body = (b"P" if tag == b"D" else b"") + b"n" * 300 + b"\0" + (b"" if tag == b"D" else b"\0\0\0\0")
    first, second = (m.read_message(tag[0], body) for _ in range(2))
    assert isinstance(first, m.MessageRefused) and isinstance(second, m.MessageRefused)
    assert first.error is not second.error


def test_messages_that_say_names_alone_are_read_once() -> None:
    assert m.read_message(b"D"[0], b"Pp\0") is m.read_message(b"D"[0], b"Pp\0")
    assert m.read_message(b"D"[0], b"Pp\0") == m.Describe("P", "p")
    assert m.read_message(b"D"[0], b"Sp\0") == m.Describe("S", "p")
    # What a client's values or texts are is nowhere kept.
    assert m.read_message(b"Q"[0], b"SELECT 1\0") is not m.read_message(b"Q"[0], b"SELECT 1\0")


def test_timings_are_as_those_of_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, theirs = CollectorRegistry(), CollectorRegistry()
    monkeypatch.setattr(counters, "REGISTRY", registry)
    bounds = (0.01, 0.5, 1.0)
    ours = counters.Timings(("n", "How many."), ("s", "How long."), bounds)
    histogram = Histogram("s", "How long.", ["verb"], buckets=bounds, registry=theirs)
    for seconds in (0.0, 0.01, 0.02, 0.5, 0.7, 1.0, 3.0, 100.0):
        ours.of("SELECT").add(seconds)
        histogram.labels("SELECT").observe(seconds)
    for name in ("s_count", "s_sum"):
        labels = {"verb": "SELECT"}
        assert registry.get_sample_value(name, labels) == theirs.get_sample_value(name, labels)
    for edge in ("0.01", "0.5", "1.0", "+Inf"):
        labels = {"verb": "SELECT", "le": edge}
        assert registry.get_sample_value("s_bucket", labels) == theirs.get_sample_value("s_bucket", labels)
    assert registry.get_sample_value("n_total", {"verb": "SELECT"}) == 8
