"""The dashboard and the alert rules of examples/monitoring ask for metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
RULES = [r for g in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for r in g["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """(where it stands, the expression, with a value for Grafana's variables)."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            yield panel["title"], text.replace("$job", ".*")
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def test_every_expression_can_be_read() -> None:
    for _, text in expressions():
        promql_parser.parse(text)


def test_every_alert_says_what_to_do() -> None:
    guide = (ROOT / "docs" / "operators-guide.md").read_text()
    told = re.findall(r"^\| `(Tidemill\w+)` \|", guide, re.MULTILINE)
    assert told == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    cells = [
        (x, y)
        for p in panels
        for g in [p["gridPos"]]
        for x in range(g["x"], g["x"] + g["w"])
        for y in range(g["y"], g["y"] + g["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
