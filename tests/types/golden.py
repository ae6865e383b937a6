"""The golden row hashes: golden_hashes.txt, one value to a line (type, JSON text or null, hash of a row of
just it)."""

from __future__ import annotations

import json
from pathlib import Path

from tidemill.types.model import SqlType
from tidemill.types.parse_name import parse_type


def read() -> list[tuple[SqlType, str | None, int]]:
    found: list[tuple[SqlType, str | None, int]] = []
    for line in (Path(__file__).parent / "golden_hashes.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            type_text, text, number = line.split("\t")
            found.append((parse_type(type_text), json.loads(text), int(number)))
    return found


GOLDEN = read()
