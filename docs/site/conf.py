"""The documentation as a site: `make docs` builds it from the pages of docs/ as they are.

The source is the whole repository, so that links between pages, and to the examples, lead where they do in a
checkout.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "Tidemill"
version = release = _PROJECT["version"]
project_copyright = "the Tidemill authors, Apache-2.0"
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**.md",
    "examples/**.md",
]
exclude_patterns = ["**/.*", ".venv*"]
extensions = ["myst_parser"]
# As GitHub names headings, where people read the pages too.
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Tidemill {version}"
html_show_sphinx = False
html_copy_source = False
# Summaries would be fetched, which a browser refuses to a page that is a file.
html_show_search_summary = False
# Nothing is asked of another machine: the fonts are the system's, the search is a file of the site.
html_theme_options = {"top_of_page_buttons": []}
# What a shell or psql understands and a lexer does not.
suppress_warnings = ["misc.highlighting_failure"]
nitpicky = True

# The navigation. Pages that it does not name come last, under "More".
NAVIGATION: dict[str, list[str]] = {
    "Start": [
        "docs/tour",
        "README",
        "docs/from-foreachbatch",
        "docs/comparison",
        "docs/glossary",
        "docs/dev-kafka",
        "docs/dev-postgres",
    ],
    "Sources": ["docs/sources", "docs/sources/*", "docs/formats"],
    "SQL": ["docs/sql/README", "docs/functions/README", "docs/types/README", "docs/catalogs/README"],
    "Clients": [
        "docs/client",
        "docs/shell",
        "docs/watch",
        "docs/console",
        "docs/http",
        "docs/clients/README",
        "docs/delta",
        "docs/cdcv2",
    ],
    "Operation": [
        "docs/operators-guide",
        "docs/operations",
        "docs/backup",
        "docs/deploy",
        "docs/tracing",
        "docs/configuration",
        "docs/authentication",
        "SECURITY",
        "docs/more-than-one-machine",
        "docs/benchmarks",
    ],
    "Inside": [
        "docs/architecture",
        "docs/protocol",
        "docs/dependencies",
        "docs/design/*",
        "CONTRIBUTING",
        "CHANGELOG",
    ],
    "Examples": ["examples/README", "examples/*/README"],
}
# Folders whose first page leads to the others.
_FOLDERS = ("docs/sql", "docs/functions", "docs/types", "docs/catalogs", "docs/clients")


def _others() -> list[str]:
    """The pages of docs/ that the navigation does not name."""
    named = [p for pages in NAVIGATION.values() for p in pages] + [f"{folder}/*" for folder in _FOLDERS]
    pages = sorted(p.relative_to(ROOT).with_suffix("").as_posix() for p in (ROOT / "docs").rglob("*.md"))
    return [p for p in pages if p != root_doc and not any(fnmatch(p, pattern) for pattern in named)]


def _toctree(pages: list[str], caption: str = "") -> str:
    options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])


def _with_navigation(_: Any, name: str, source: list[str]) -> None:
    if name == root_doc:
        navigation = {**NAVIGATION, "More": _others()}
        source[0] += "".join(_toctree(pages, caption) for caption, pages in navigation.items() if pages)
    for folder in _FOLDERS:
        if name == f"{folder}/README":
            others = sorted(p.stem for p in (ROOT / folder).glob("*.md") if p.stem != "README")
            source[0] += _toctree([f"{folder}/{other}" for other in others])


def _first_page(app: Any, failed: Exception | None) -> None:
    """The root of the site leads to the first page."""
    if failed is None and app.builder.name == "html":
        to = f"{root_doc}.html"
        page = f'<!doctype html><meta charset="utf-8"><title>Tidemill</title><a href="{to}">Tidemill</a>'
        page += f'<meta http-equiv="refresh" content="0; url={to}">\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Any) -> None:
    app.connect("source-read", _with_navigation)
    app.connect("build-finished", _first_page)
