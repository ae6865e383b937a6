"""Log lines: one event is one line, whatever a client sent; JSON parses back."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import logs
from tidemill.errors import Unavailable


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format: str, write: object, level: str = "info") -> str:
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        logs.setup(log_format, level, stream)
        assert callable(write)
        write(logging.getLogger("tidemill.engine"))
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
    return stream.getvalue()


def test_text_has_time_level_name_message_and_fields() -> None:
    line = logged("text", lambda log: log.info("opened %s", "x", extra={"fields": {"rows": 3, "why": "a b"}}))
    assert line.endswith('opened x rows=3 why="a b"\n')
    assert " info  engine" in line
    assert "\x1b" not in line


def test_json_carries_the_same() -> None:
    line = logged("json", lambda log: log.warning("slow", extra={"fields": {"ms": 12, "level": "x"}}))
    found = json.loads(line)
    assert found["level"] == "warn"
    assert found["logger"] == "tidemill.engine"
    assert found["ms"] == 12
    assert found["field_level"] == "x"
    assert found["ts"].endswith("Z")


def test_a_deliberate_error_has_no_trace_and_a_bug_has() -> None:
    def deliberate(log: logging.Logger) -> None:
        try:
            raise Unavailable("no disk", hint="free some")
        except Unavailable:
            log.exception("failed")

    def bug(log: logging.Logger) -> None:
        try:
            raise ZeroDivisionError("1/0")
        except ZeroDivisionError:
            log.exception("failed")

    assert "Traceback" not in logged("text", deliberate)
    assert "HINT: free some" in logged("text", deliberate)
    assert json.loads(logged("json", deliberate))["error"]["code"] == "57P03"
    assert "Traceback" in logged("text", bug)
    assert "Traceback" in json.loads(logged("json", bug))["trace"]


@given(st.text())
def test_no_message_makes_two_lines(text: str) -> None:
    def write(log: logging.Logger) -> None:
        log.info("client said %s", text, extra={"fields": {"name": text}})

    assert logged("text", write).count("\n") == 1
    assert len(logged("text", write).splitlines()) == 1
    assert json.loads(logged("json", write))["name"] == text


def test_the_gateway_of_spark_never_logs_its_calls() -> None:
    def write(_log: logging.Logger) -> None:
        logging.getLogger("py4j.clientserver").debug("Command to send: secret")
        logging.getLogger("py4j").info("Command to send: secret")

    assert logged("text", write, level="debug") == ""


def test_levels() -> None:
    assert logged("text", lambda log: log.info("x"), level="warning") == ""
