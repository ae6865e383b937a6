"""The HTTP server: `POST /api/sql`, live queries as events, a WebSocket, health, readiness, metrics and a
start page.

The server process calls `serve.serve_http`, which runs in its event loop. Statements run through
`engine.api`, as on the SQL port. Promises: a web page cannot reach the server through a hostname of its
own (`guard`). Every buffer has a limit (`limits`). When a client disconnects, its statement is cancelled.
Bytes that are not HTTP are answered with 400.
"""

from tidemill.server.http.serve import HttpServer, serve_http

__all__ = ["HttpServer", "serve_http"]
