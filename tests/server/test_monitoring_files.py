"""The dashboard and the alert rules of examples/monitoring ask for metrics and labels that there are."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import psycopg
import pytest
import yaml
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from support.server import ServerProcess, connected
from tidemill.server import metrics

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
RULES = [r for g in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for r in g["rules"]]
# A counter with labels has no sample before its first event: its labels are those that it was made with.
DECLARED: dict[str, set[str]] = {
    f"{m._name}_total": set(m._labelnames)  # pyright: ignore[reportPrivateUsage]
    for m in vars(metrics).values()
    if isinstance(m, Counter)
}
# What Prometheus adds to what it reads.
ADDED = {"instance", "job", "le"}
SETUP = """
CREATE SOURCE s FROM LOAD GENERATOR COUNTER (TICK INTERVAL '100ms');
CREATE TABLE t (id int);
CREATE MATERIALIZED VIEW v AS SELECT id FROM t;
CREATE SINK k FROM t INTO FILES '{0}' FORMAT JSON ENVELOPE MATERIALIZE;
CREATE SUBSCRIPTION d FOR t
"""


def expressions() -> Iterator[tuple[str, str]]:
    """(where it stands, the expression, with a value for Grafana's variables)."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            yield panel["title"], text.replace("$job", ".*")
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def parts(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (below := getattr(node, name, None)) is not None:
            yield from parts(below)
    for below in getattr(node, "args", None) or ():
        yield from parts(below)


def test_every_expression_names_what_there_is(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        for statement in SETUP.format(database).strip().split(";\n"):
            c.execute(statement.encode())
        with pytest.raises(psycopg.Error):
            c.execute("WRONG")
        found = scraped(server)
        for where, text in expressions():
            used = list(parts(promql_parser.parse(text)))
            labels: set[str] = set()
            for selector in (n for n in used if isinstance(n, promql_parser.VectorSelector)):
                asked = {m.name: m.value for m in selector.matchers.matchers}
                of_name = asked.pop("__name__", None)
                names = [n for n in found if re.fullmatch(of_name, n)] if of_name else [selector.name]
                assert names, (where, of_name)
                for name in names:
                    if name == "up":
                        continue
                    assert name in found, (where, name)
                    labels |= found[name]
                    assert set(asked) - ADDED <= found[name], (where, name)
            for node in used:
                if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                    assert set(node.modifier.labels) <= labels | ADDED, where
            for shown in legend(where):
                assert shown in labels, (where, shown)


def legend(where: str) -> set[str]:
    """The labels that the panel or the alert shows."""
    shown = [
        t["legendFormat"] for p in DASHBOARD["panels"] if p["title"] == where for t in p.get("targets", ())
    ]
    shown += [r["annotations"]["summary"] for r in RULES if r["alert"] == where]
    return set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", " ".join(shown))) - ADDED


def scraped(server: ServerProcess) -> dict[str, set[str]]:
    """Each metric with its labels, once all objects have theirs."""
    deadline = time.monotonic() + 300
    while True:
        with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            # A family without a sample has its name all the same: a histogram's, a counter's.
            for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
                family.type, [""]
            ):
                name = family.name + suffix
                found.setdefault(name, set(DECLARED.get(name, ())))
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        awaited = [n for n in found if re.fullmatch(r"tidemill_(source|view|sink|durable\w+)_lag_seconds", n)]
        if len(awaited) == 4 and all(found[n] for n in awaited) and found["tidemill_source_records_behind"]:
            return found
        assert time.monotonic() < deadline, awaited
        time.sleep(0.1)


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
