"""Times in messages: what AS OF takes, and the moment that it is."""

from __future__ import annotations

import pytest

from tidemill.time.shown import show_time


@pytest.mark.parametrize(
    ("ts", "text"),
    [
        (1795011172000, "1795011172000 (2026-11-18 14:12:52+00)"),
        (1795011172120, "1795011172120 (2026-11-18 14:12:52.12+00)"),
        (1795011172007, "1795011172007 (2026-11-18 14:12:52.007+00)"),
        (253402300799999, "253402300799999 (9999-12-31 23:59:59.999+00)"),
        # No moment that anyone means.
        (0, "0"),
        (1, "1"),
        (10**12 - 1, "999999999999"),
        (253402300800000, "253402300800000"),
        (2**63 - 1, "9223372036854775807"),
    ],
)
def test_both_forms_of_a_time(ts: int, text: str) -> None:
    assert show_time(ts) == text


def test_a_time_of_another_timeline_is_a_number() -> None:
    assert show_time(1795011172000, "orders") == "1795011172000"
