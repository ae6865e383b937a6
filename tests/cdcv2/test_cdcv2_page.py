"""What docs/cdcv2.md shows is what happens."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cdcv2.md"


def test_the_page() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 30 and not found.failed
