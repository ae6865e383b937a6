"""The page at `/`: explains the port to a person who opens it in a browser."""

from __future__ import annotations

import html
import shlex

from tidemill.config import Address

# Addresses to listen on that are none to connect to.
_EVERYWHERE = ("0.0.0.0", "::")

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tidemill</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 42em; margin: 3em auto; padding: 0 1em }
code { background: #8882 }
</style>
<h1>Tidemill</h1>
<p>This is the HTTP port of a Tidemill server. SQL is spoken on its PostgreSQL port: connect with
<code>%s</code>.</p>
<ul>
<li><code>POST /api/sql</code> with <code>{"query": "SELECT 1"}</code> as <code>application/json</code></li>
<li><code>GET /api/subscribe?query=SELECT ...</code>: a live query as server-sent events</li>
<li><code>/api/experimental/sql</code>: a WebSocket</li>
<li><a href="/healthz">/healthz</a>: the server answers</li>
<li><a href="/readyz">/readyz</a>: 200 once Spark is warm, 503 before</li>
<li><a href="/metrics">/metrics</a>: figures for Prometheus</li>
</ul>
"""


def page(sql: Address | None) -> str:
    """The page, with the command that connects to the SQL port at `sql`."""
    where = ""
    if sql is not None:
        host = "localhost" if sql.host in _EVERYWHERE else sql.host
        where = f"-h {shlex.quote(host)} -p {sql.port} "
    return _PAGE % html.escape(f"psql {where}-U materialize materialize")
