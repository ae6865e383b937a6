"""The page at `/`: for a person who opened the port in a browser and wants to know what it is."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tidemill</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 42em; margin: 3em auto; padding: 0 1em }
code { background: #8882 }
</style>
<h1>Tidemill</h1>
<p>This is the HTTP port of a Tidemill server. SQL is spoken on its PostgreSQL port; connect with
<code>psql -h localhost -p 6875 -U materialize materialize</code> if it has the default address.</p>
<ul>
<li><code>POST /api/sql</code> with <code>{"query": "SELECT 1"}</code> as <code>application/json</code></li>
<li><a href="/healthz">/healthz</a>: the server answers</li>
<li><a href="/readyz">/readyz</a>: 200 once Spark is warm, 503 before</li>
<li><a href="/metrics">/metrics</a>: figures for Prometheus</li>
</ul>
"""
