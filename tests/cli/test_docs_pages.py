"""The pages that must follow the code: dependencies, links, and what no page may name."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    p for f in ("docs", "examples", "") for p in ((ROOT / f).rglob("*.md") if f else ROOT.glob("*.md"))
)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", r, maxsplit=1)[0] for r in requirements}


def test_every_dependency_is_listed_with_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = names(project["project"]["dependencies"])
    for group in project["dependency-groups"].values():
        declared |= names(group)
    page = (ROOT / "docs" / "dependencies.md").read_text()
    listed = dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", page, flags=re.MULTILINE))
    for head in ("package", "---"):
        listed.pop(head)
    assert set(listed) == declared
    assert all(len(reason) > 10 for reason in listed.values())


@pytest.mark.parametrize("name", ["run", "dev", "docs"])
def test_locks_name_no_index_and_hash_everything(name: str) -> None:
    text = (ROOT / "lock" / f"{name}.txt").read_text()
    assert "://" not in text
    packages = re.split(r"\n(?=[a-z0-9])", text.replace("\\\n", " "))
    assert len(packages) > 20
    assert all("--hash=sha256:" in package for package in packages)


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may end with, as GitHub and the site name headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", prose(page)):
        if "://" in target:
            continue
        to = (page.parent / target).resolve() if target else page
        assert to.exists(), f"{page.name} links to {target}"
        if heading and to.suffix == ".md":
            assert heading in anchors(to), f"{page.name} links to {target}#{heading}"


def test_the_limits_are_as_documented() -> None:
    from tidemill.server import limits
    from tidemill.server.http import limits as http

    page = (ROOT / "docs" / "operations.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", page, flags=re.MULTILINE))
    mb, gb = 1 << 20, 1 << 30
    assert rows["SQL connections"] == f"{limits.MAX_CONNECTIONS:,}"
    assert rows["length of a query"] == f"{limits.MAX_QUERY_BYTES // mb} MB"
    assert rows["length of a message"] == f"{limits.MAX_MESSAGE_BYTES // mb} MB"
    assert rows["length of an identifier"] == f"{limits.MAX_IDENTIFIER_BYTES} bytes"
    assert rows["result of one SELECT on the SQL port"].startswith(f"{limits.MAX_RESULT_BYTES // gb} GB")
    assert rows["time to log in"] == f"{limits.LOGIN_SECONDS:.0f} s"
    assert rows["body of an HTTP request"] == f"{http.MAX_BODY_BYTES // mb} MB"
    answer = f"{http.MAX_RESULT_BYTES // mb} MB, {http.MAX_HELD_BYTES // mb} MB for all together"
    assert rows["answer of an HTTP request"] == answer
    assert rows["HTTP connections"] == f"{http.MAX_CONNECTIONS}"
