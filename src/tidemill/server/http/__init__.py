"""The HTTP door: `POST /api/sql`, live queries as events, a WebSocket, health, readiness, metrics, and a
page that says what this is.

`serve.serve_http` is called by the process that runs the server and lives in its event loop. Whatever
reaches a statement goes through `engine.api`, as on the SQL port. Promises: a page in somebody's browser
cannot reach the server through a name of its own (`guard`), every buffer has a limit (`limits`), a client
that goes away takes its statement with it, and bytes that are no HTTP are answered 400.
"""

from tidemill.server.http.serve import HttpServer, serve_http

__all__ = ["HttpServer", "serve_http"]
