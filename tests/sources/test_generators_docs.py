"""The page on load generators names what there is: every option with its default, every relation and
column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise, option_kinds

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sql" / "create-source-load-generator.md").read_text()
SECTIONS = dict(re.findall(r"^## ([A-Z ]+)$(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL))
COMMON = PAGE.split("## Options of every generator")[1].split("\n## ")[0]


@pytest.mark.parametrize("generator", ["COUNTER", "KEY VALUE", "AUCTION"])
def test_the_page_names_everything(generator: str) -> None:
    text = COMMON + SECTIONS[generator]
    listed = set(re.findall(r"^\| `([A-Z ]+)` \|", text, flags=re.MULTILINE))
    assert listed == option_kinds(generator).keys() - {"ENVELOPE"}
    source = open_source(normalise(generator, {"KEYS": 2, "PARTITIONS": 2} if "KEYS" in listed else {}, 0))
    for output in source.outputs:
        columns = [
            (c.name, str(c.type).replace("timestamp with time zone", "timestamptz"))
            for c in output.desc.columns
        ]
        if len(source.outputs) == 1:
            for name, type_name in columns:
                assert f"| `{name}` | `{type_name}` |" in SECTIONS[generator]
        else:
            shown = ", ".join(f"`{name} {type_name}`" for name, type_name in columns)
            assert f"| `{output.name}` | {shown} |" in SECTIONS[generator]


def test_the_sections_are_those_of_the_generators() -> None:
    assert list(SECTIONS) == ["COUNTER", "KEY VALUE", "AUCTION"]
